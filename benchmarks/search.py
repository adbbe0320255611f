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
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from held_out import HELD_OUT, draw_held_out
from landscapes import KINDS, Floats, Landscape, read_grid, read_triton, simulate
from search_plot import regret_plot
from strategies import STRATEGIES, WINDOW_S, Game

from autotune.core.units import parse_quantity

TRIAL_MARKS = (10, 20, 25, 30, 40, 50)
SECOND_MARKS = (60, 120, 180, 240)
SCORE_POINTS = 50
STEP_S, MAX_CURVE_S = 10, 300


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
        draw = draw_held_out if kind in HELD_OUT else simulate
        yield kind, lambda seed, kind=kind, draw=draw: draw(kind, seed, arguments.noise)  # type: ignore[misc]
    for text in arguments.grid:
        path, _, limit = text.partition("=")
        limit_s = parse_quantity(limit, "duration") if limit else None
        land = read_grid(Path(path), limit_s, arguments.noise)
        yield land.name, lambda _seed, land=land: land  # type: ignore[misc]
    for land in read_triton(arguments.triton, arguments.noise) if arguments.triton else ():
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
        "curve": _mean_curve(games, regret_at, range(1, games[0].trials + 1)),
        "curve_s": _mean_curve(games, regret_at_s, range(STEP_S, MAX_CURVE_S + 1, STEP_S)),
        "violations": int(sum(broken)),
        "runs": len(games),
        "score": float(np.mean([performance_score(g) for g in games])),
    }


def _mean_curve(
    games: Sequence[Game], regret: Callable[[Game, int], float], marks: Sequence[int]
) -> list[tuple[int, float]]:
    """Mean regret in per cent at every mark."""
    return [(m, round(100 * float(np.mean([regret(g, m) for g in games])), 3)) for m in marks]


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
    parser.add_argument(
        "--triton", type=Path, help="a table of published batch x concurrency sweeps"
    )
    parser.add_argument("--json", type=Path, help="write all figures here, after every landscape")
    parser.add_argument("--plot", type=Path, help="draw the mean over all landscapes (SVG)")
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
            if arguments.json:
                arguments.json.write_text(json.dumps(report))
    for strategy, games in everything.items():
        if not games:
            continue
        report[f"all/{strategy}"] = found = summary(games)
        print(line("all", strategy, found, math.nan))
    if arguments.json:
        arguments.json.write_text(json.dumps(report))
    if arguments.plot:
        curves = {s: report[f"all/{s}"] for s in chosen if f"all/{s}" in report}
        arguments.plot.write_text(regret_plot(curves), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
