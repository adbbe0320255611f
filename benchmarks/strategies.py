"""Ways of searching a landscape: the tool's own, Optuna's, and what people do by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from landscapes import Landscape, space_of

from autotune.core.outcomes import Outcome
from autotune.core.records import Config, Measurement, TrialRecord, Verdict
from autotune.search.grid import Attempt
from autotune.search.sampler import Sampler, make_sampler

INPUTS = 28  # tensors of a request, in landscapes that tell what copies take
WINDOW_S = 2.0  # measured time of a trial, beside the landscape's own cost of starting it


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One measured configuration; no throughput if it could not run."""

    index: int
    throughput: float | None
    latency_p99_s: float
    end_s: float


class Game:
    """A landscape being searched by one strategy: measures, and keeps the history."""

    def __init__(self, land: Landscape, seed: int, trials: int, *, asks_gain: bool = False) -> None:
        self.land = land
        self.seed = seed
        self.trials = trials
        self.asks_gain = asks_gain
        self.with_stages = True
        self.gains: list[float | None] = []
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


def shipped(name: str) -> Strategy:
    """A sampler of the tool as `autotune run` uses it, and the recommendation of its model."""

    def play(game: Game) -> None:
        space = space_of(game.land, game.trials, name, game.seed)
        sampler = make_sampler(space, name, game.seed)
        assert isinstance(sampler, Sampler)
        configs = {c: tuple(r) for c, r in zip(game.land.configs, game.index, strict=True)}
        records: list[TrialRecord] = []
        while not game.over:
            history = [Attempt(r.config, r) for r in records]
            if game.asks_gain:
                game.gains.append(sampler.expected_gain(history))
            config = sampler.propose(history)
            if config is None:
                break
            records.append(record_of(game, config, game.play(configs[config])))
            best = sampler.model.recommended(records)
            game.recommended[-1] = None if best is None else game.index[configs[best]]
        _fill(game)

    return play


def blind(game: Game) -> None:
    """`auto` that is not told where the time of a call goes."""
    game.with_stages = False
    shipped("auto")(game)


def record_of(game: Game, config: Config, trial: Trial) -> TrialRecord:
    """A trial as the tool would keep it."""
    number = len(game.history) - 1
    before_s = game.history[-2].end_s if number else 0.0
    ran = trial.throughput is not None
    outcome = Outcome(str(game.land.status[trial.index]))
    if ran and not game.holds(trial):
        outcome = Outcome.OVER_LIMIT
    figures = Measurement(
        throughput_items_per_s=trial.throughput,
        latency_p99_s=trial.latency_p99_s,
        **_stages(game, config, trial),
    )
    return TrialRecord(
        number=number,
        config=config,
        phase="search",
        verdict=Verdict(
            outcome=outcome,
            objectives={"throughput_items_per_s": trial.throughput or 0.0} if ran else {},
        ),
        measurements=(figures,) if ran else (),
        cost_s=trial.end_s - before_s,
    )


def _stages(game: Game, config: Config, trial: Trial) -> dict[str, Any]:
    """Stage times of a call, where the landscape tells them and the game is played with them."""
    shares = game.land.copy_share
    if shares is None or trial.throughput is None or not game.with_stages:
        return {}
    cycle_s = config.total_instances * config.batch_size / trial.throughput
    copy_s = float(shares[trial.index]) * cycle_s
    return {
        "h2d_mean_s": copy_s,
        "compute_mean_s": cycle_s - copy_s,
        "copies_per_call": 2 if config.batched_h2d else INPUTS,
    }


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
    while not game.over and len(seen) < len(game.land.rows):
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
    _fill(game)


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
    "auto": shipped("auto"),
    "mechanistic": shipped("mechanistic"),
    "blind": blind,
    "gp": stock(_gp),
    "tpe": stock(lambda seed: optuna.samplers.TPESampler(seed=seed)),
    "random": random_search,
    "coordinate": coordinate_sweep,
    "hill": hill_climbing,
}
