"""How soon, and how safely, each way of searching finds a good configuration.

    python benchmarks/search.py --seeds 30 --grid L1.csv=5ms --grid dlrm_cpu.csv

Every strategy runs on the same landscapes with the same measurement noise. It is judged by what
it would *recommend* after so many trials, or seconds: the loss of true throughput against the
true optimum under the limit, 100 % if the recommendation breaks the limit or there is none.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from landscapes import KINDS, Floats, Ints, Landscape, read_grid, simulate

from autotune.core.objective import Limit, Objective
from autotune.core.units import parse_quantity
from autotune.search.encoding import Dimension, Encoding
from autotune.search.mechanistic import Candidates, propose
from autotune.search.posterior import Observation, Posterior, Question

TRIAL_MARKS = (10, 20, 25, 30, 40, 50)
SECOND_MARKS = (60, 120, 180, 240)
WINDOW_S = 2.0  # measured time of a trial, beside the landscape's own cost of starting it
SCORE_POINTS = 50


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One measured configuration; no throughput if it could not run."""

    index: int
    throughput: float | None
    latency_p99_s: float
    end_s: float


class Game:
    """A landscape being searched by one strategy: measures, and keeps the history."""

    def __init__(self, land: Landscape, seed: int, trials: int) -> None:
        self.land = land
        self.seed = seed
        self.trials = trials
        self.rng = np.random.default_rng([seed, 1])
        self.history: list[Trial] = []
        self.recommended: list[int | None] = []
        self.index = {tuple(row): i for i, row in enumerate(land.rows.tolist())}
        self.sizes = [len(values) for values in land.params.values()]

    @property
    def over(self) -> bool:
        """True when the budget of trials is used up."""
        return len(self.history) >= self.trials

    def play(self, row: Sequence[int]) -> Trial:
        """Measure one configuration; the best observed becomes the recommendation."""
        index = self.index[tuple(row)]
        throughput, tail, _ = self.land.measure(index, self.rng)
        runs = self.land.status[index] == "ok"
        before = self.history[-1].end_s if self.history else 0.0
        trial = Trial(
            index=index,
            throughput=throughput if runs else None,
            latency_p99_s=tail,
            end_s=before + float(self.land.cost_s[index]) + WINDOW_S * bool(runs),
        )
        self.history.append(trial)
        self.recommended.append(self.best_observed())
        return trial

    def holds(self, trial: Trial) -> bool:
        """True if the trial ran and its measured P99 is within the limit."""
        limit = self.land.limit_s
        return trial.throughput is not None and (limit is None or trial.latency_p99_s <= limit)

    def best_observed(self) -> int | None:
        """The configuration with the largest measured throughput within the measured limit."""
        held = [t for t in self.history if self.holds(t)]
        return max(held, key=lambda t: t.throughput or 0.0).index if held else None

    def worth(self, trial: Trial) -> float:
        """For climbing: throughput if the limit holds, else less than nothing by its excess."""
        if trial.throughput is None:
            return -1e9
        if self.holds(trial):
            return trial.throughput
        return -trial.latency_p99_s / (self.land.limit_s or 1.0)


Strategy = Callable[[Game], None]


# --- ours --------------------------------------------------------------------------------------


def mechanistic(game: Game) -> None:
    """The project's sampler, and its rule of recommendation."""
    land = game.land
    encoding = Encoding([Dimension.of(n, v) for n, v in land.params.items()])
    limits = () if land.limit_s is None else (Limit(metric="latency_p99", bound=land.limit_s),)
    question = Question.of(Objective(name="bench", limits=limits), encoding)
    candidates = Candidates(encoding, None, game.seed, rows=land.rows)
    observations: list[Observation] = []
    broken: set[tuple[int, ...]] = set()
    posterior = Posterior(encoding, question, observations)
    while not game.over:
        number = len(observations)
        none: Ints = np.zeros((0, len(game.sizes)), dtype=np.int64)
        row = propose(
            posterior, candidates, pending=none, barred=broken, number=number, seed=game.seed
        )
        if row is None:
            break
        trial = game.play(row)
        if trial.throughput is None:
            broken.add(row)
            oom = land.status[trial.index] == "oom"
            observations.append(Observation(row=row, runs=False, out_of_memory=oom))
        else:
            values = {
                "throughput": math.log(trial.throughput),
                "latency_p99": math.log(trial.latency_p99_s),
            }
            observations.append(Observation(row=row, values=values))
        posterior = Posterior(encoding, question, observations)
        best = posterior.incumbent()
        game.recommended[-1] = None if best is None else game.index[best.row]


# --- optuna's ----------------------------------------------------------------------------------


def stock(make: Callable[[int], Any]) -> Strategy:
    """An Optuna sampler on real values, the knee's log axis included, best observed wins."""

    def play(game: Game) -> None:
        study = optuna.create_study(direction="maximize", sampler=make(game.seed))
        names = list(game.land.params)
        spaces = {n: _distribution(v) for n, v in game.land.params.items()}
        present = np.array(list(game.index))
        low = math.inf
        while not game.over:
            trial = study.ask(fixed_distributions=spaces)
            wish = [_nearest(game.land.params[n], trial.params[n]) for n in names]
            row = present[np.abs((present - wish) / np.array(game.sizes)).sum(1).argmin()]
            result = game.play(row.tolist())
            limit = game.land.limit_s
            excess = 1.0 if result.throughput is None else -1.0
            if limit is not None and result.throughput is not None:
                excess = math.log(result.latency_p99_s / limit)
            trial.set_constraint("limit", excess)
            if result.throughput is not None:
                low = min(low, math.log(result.throughput))
            value = low if result.throughput is None else math.log(result.throughput)
            study.tell(trial, value if math.isfinite(value) else 0.0)

    return play


def _distribution(values: Sequence[Any]) -> optuna.distributions.BaseDistribution:
    if all(type(v) is int for v in values):
        ratio = max(values) / max(min(values), 1)
        return optuna.distributions.IntDistribution(min(values), max(values), log=ratio > 10)
    return optuna.distributions.CategoricalDistribution(tuple(values))


def _nearest(values: Sequence[Any], wanted: Any) -> int:
    if wanted in values:
        return list(values).index(wanted)
    return int(np.argmin([abs(math.log(v / wanted)) for v in values]))


def _gp(seed: int) -> Any:
    return optuna.samplers.GPSampler(seed=seed, n_startup_trials=6)


def random_search(game: Game) -> None:
    """Distinct configurations in random order."""
    order = np.random.default_rng([game.seed, 2]).permutation(len(game.land.rows))
    for index in order[: game.trials]:
        game.play(game.land.rows[index].tolist())


# --- by hand -----------------------------------------------------------------------------------


def coordinate_sweep(game: Game) -> None:
    """Double the batch until it no longer pays, then try every choice of each other parameter."""
    seen: dict[tuple[int, ...], float] = {}
    row = [0] * len(game.sizes)
    names = list(game.land.params)
    while not game.over:
        before = list(row)
        for column in np.argsort([n != "batch_size" for n in names], kind="stable"):
            choices: Iterator[int] = iter(range(game.sizes[column]))
            if names[column] == "batch_size":
                choices = iter(_doublings(game.land.params["batch_size"]))
            for choice in choices:
                _try(game, seen, _changed(row, int(column), choice))
            row = list(_best_of(seen, row, int(column)))
        if row == before:
            break
    _fill(game)


def hill_climbing(game: Game) -> None:
    """From a random start to the best neighbour, again and again, as model analysers do it."""
    seen: dict[tuple[int, ...], float] = {}
    rng = np.random.default_rng([game.seed, 3])
    while not game.over:
        row = game.land.rows[rng.integers(len(game.land.rows))].tolist()
        _try(game, seen, row)
        while not game.over:
            for column, size in enumerate(game.sizes):
                for step in (-1, 1):
                    if 0 <= row[column] + step < size:
                        _try(game, seen, _changed(row, column, row[column] + step))
            around = [r for r in seen if sum(abs(a - b) for a, b in zip(r, row, strict=True)) <= 1]
            best = max(around, key=lambda r: seen[r])
            if list(best) == row:
                break
            row = list(best)


def _doublings(batches: Sequence[Any]) -> list[int]:
    powers = [i for i, b in enumerate(batches) if math.log2(b).is_integer()]
    return powers or list(range(len(batches)))


def _changed(row: Sequence[int], column: int, choice: int) -> list[int]:
    return [*row[:column], choice, *row[column + 1 :]]


def _try(game: Game, seen: dict[tuple[int, ...], float], row: Sequence[int]) -> None:
    key = tuple(row)
    if not game.over and key not in seen and key in game.index:
        seen[key] = game.worth(game.play(key))


def _best_of(
    seen: dict[tuple[int, ...], float], row: Sequence[int], column: int
) -> tuple[int, ...]:
    line = [r for r in seen if _changed(r, column, 0) == _changed(row, column, 0)]
    return max(line, key=lambda r: seen[r], default=tuple(row))


def _fill(game: Game) -> None:
    """A finished sweep waits: its recommendation stays what it was."""
    while not game.over:
        last = game.history[-1]
        game.history.append(last)
        game.recommended.append(game.recommended[-1])


STRATEGIES: dict[str, Strategy] = {
    "mechanistic": mechanistic,
    "gp": stock(_gp),
    "tpe": stock(lambda seed: optuna.samplers.TPESampler(seed=seed)),
    "random": random_search,
    "coordinate": coordinate_sweep,
    "hill": hill_climbing,
}


# --- scores ------------------------------------------------------------------------------------


def regret_at(game: Game, trials: int) -> float:
    """Loss by what is recommended after so many trials."""
    known = game.recommended[: min(trials, len(game.recommended))]
    return game.land.regret(known[-1] if known else None)


def regret_at_s(game: Game, seconds: float) -> float:
    """Loss by what is recommended after so many seconds."""
    done = sum(1 for t in game.history if t.end_s <= seconds)
    return regret_at(game, done) if done else 1.0


def performance_score(game: Game) -> float:
    """Best true throughput seen over time, between random search (0) and the optimum (1).

    (S(t) - R(t)) / (S_opt - R(t)), averaged over equidistant times; R is the expected maximum of
    so many random draws without replacement (Willemsen et al. 2024).
    """
    land = game.land
    worth = np.where(land.usable, land.throughput, 0.0)
    best_so_far = np.maximum.accumulate([worth[t.index] for t in game.history])
    ends = np.array([t.end_s for t in game.history])
    mean_cost = float(np.mean(land.cost_s)) + WINDOW_S
    scores = []
    for when in np.linspace(0.0, ends[-1], SCORE_POINTS + 1)[1:]:
        done = int(np.searchsorted(ends, when + 1e-9))
        found = best_so_far[done - 1] if done else 0.0
        chance = expected_maximum(worth, max(1, int(when / mean_cost)))
        if land.optimum > chance:
            scores.append((found - chance) / (land.optimum - chance))
    return float(np.mean(scores)) if scores else 1.0


def expected_maximum(values: Floats, draws: int) -> float:
    """Expected maximum of `draws` values drawn without replacement."""
    ordered = np.sort(values)
    count, draws = len(ordered), min(draws, len(ordered))
    ranks = np.arange(draws, count + 1)
    # P(maximum is the r-th smallest) = C(r-1, d-1) / C(n, d), by its ratio from one r to the next.
    log_p = np.concatenate([[0.0], np.cumsum(np.log((ranks[1:] - 1) / (ranks[1:] - draws)))])
    p = np.exp(log_p - log_p.max())
    return float((p * ordered[draws - 1 :]).sum() / p.sum())


# --- the program -------------------------------------------------------------------------------


def landscapes(arguments: argparse.Namespace) -> Iterator[tuple[str, Callable[[int], Landscape]]]:
    """Name and maker (from a seed) of every landscape asked for."""
    for kind in arguments.kinds.split(",") if arguments.kinds else []:
        yield kind, lambda seed, kind=kind: simulate(kind, seed, arguments.noise)  # type: ignore[misc]
    for text in arguments.grid:
        path, _, limit = text.partition("=")
        limit_s = parse_quantity(limit, "duration") if limit else None
        land = read_grid(Path(path), limit_s, arguments.noise)
        yield land.name, lambda _seed, land=land: land  # type: ignore[misc]


def summary(games: Sequence[Game]) -> dict[str, Any]:
    """Means over the games of one strategy on one landscape, regrets in per cent."""
    marks = [m for m in TRIAL_MARKS if m <= games[0].trials]
    broken = [
        any(i is not None and not g.land.usable[i] for i in g.recommended[24:]) for g in games
    ]
    return {
        "trials": {m: 100 * float(np.mean([regret_at(g, m) for g in games])) for m in marks},
        "seconds": {
            s: 100 * float(np.mean([regret_at_s(g, s) for g in games])) for s in SECOND_MARKS
        },
        "violations": int(sum(broken)),
        "runs": len(games),
        "score": float(np.mean([performance_score(g) for g in games])),
    }


def line(name: str, strategy: str, found: dict[str, Any], cpu_s: float) -> str:
    """One row of the table."""
    trials = " ".join(f"{v:6.1f}" for v in found["trials"].values())
    seconds = " ".join(f"{v:6.1f}" for v in found["seconds"].values())
    return (
        f"{name:16} {strategy:12} {trials} | {seconds} | "
        f"{found['violations']:3d}/{found['runs']:<4d} {found['score']:5.2f} {1e3 * cpu_s:7.0f}"
    )


def arguments_of(words: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--noise", type=float, default=0.03)
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--kinds", default=",".join(KINDS), help="simulated kinds, '' for none")
    parser.add_argument(
        "--grid", action="append", default=[], metavar="FILE[=LIMIT]", help="a recorded grid"
    )
    parser.add_argument("--json", type=Path, help="write all figures here")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    arguments = arguments_of(words)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    chosen = arguments.strategies.split(",")
    marks = [m for m in TRIAL_MARKS if m <= arguments.trials]
    heads = " ".join(f"{m:6d}" for m in marks), " ".join(f"{s:5d}s" for s in SECOND_MARKS)
    print("regret (%) after trials and seconds; broken limits from 25 trials on; score; ms per ask")
    print(f"{'landscape':16} {'strategy':12} {heads[0]} | {heads[1]} | broken   score  ms/ask")
    everything: dict[str, list[Game]] = {s: [] for s in chosen}
    report: dict[str, Any] = {}
    for name, make in landscapes(arguments):
        for strategy in chosen:
            began = time.process_time()
            games = []
            for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
                game = Game(make(seed), seed, arguments.trials)
                STRATEGIES[strategy](game)
                games.append(game)
            cpu_s = (time.process_time() - began) / (len(games) * arguments.trials)
            everything[strategy] += games
            report[f"{name}/{strategy}"] = found = summary(games)
            print(line(name, strategy, found, cpu_s), flush=True)
    for strategy, games in everything.items():
        report[f"all/{strategy}"] = found = summary(games)
        print(line("all", strategy, found, math.nan))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
