"""How soon, and how safely, each way of searching finds a good configuration.

    python benchmarks/search.py --seeds 30 --processes 2 --grid L1.csv=5ms --grid dlrm_cpu.csv

Every strategy runs on the same landscapes with the same measurement noise. It is judged by what
it would *recommend* after so many trials, or seconds: the loss of true throughput against the
true optimum under the limit, 100 % if the recommendation breaks the limit or there is none.

One line per game as it ends, then the table, which Ctrl-C brings as well. With `--games FILE` a
benchmark can be run in parts: what is in the file is not played again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from games import Played, Task, played, stop_line
from landscapes import KINDS, read_triton
from search_plot import regret_plot
from strategies import STRATEGIES

TRIAL_MARKS = (10, 20, 25, 30, 40, 50)
SECOND_MARKS = (60, 120, 180, 240)
STEP_S, MAX_CURVE_S = 10, 300
LEAST_GAINS = (0.02, 0.01, 0.005, 0.002)


def tasks_of(arguments: argparse.Namespace) -> list[Task]:
    """All games, seed by seed, so that those of an interrupted benchmark are of all kinds."""
    sources = [*(arguments.kinds.split(",") if arguments.kinds else []), *arguments.grid]
    if arguments.triton:
        count = sum(1 for _ in read_triton(arguments.triton))
        sources += [f"{arguments.triton}#{place}" for place in range(count)]
    return [
        Task(
            source=source,
            strategy=strategy,
            seed=seed,
            trials=arguments.trials,
            noise=arguments.noise,
            gains=arguments.gain and strategy in ("auto", "mechanistic"),
        )
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds)
        for source in sources
        for strategy in arguments.strategies.split(",")
    ]


# --- the table ---------------------------------------------------------------------------------


def summary(games: Sequence[Played], trials: int) -> dict[str, Any]:
    """Means over the games of one strategy, regrets in per cent."""
    marks = [m for m in TRIAL_MARKS if m <= trials]
    return {
        "trials": {m: _mean(g.regret_at(m) for g in games) for m in marks},
        "seconds": {s: _mean(g.regret_at_s(s) for g in games) for s in SECOND_MARKS},
        "curve": _mean_curve(games, Played.regret_at, range(1, trials + 1)),
        "curve_s": _mean_curve(games, Played.regret_at_s, range(STEP_S, MAX_CURVE_S + 1, STEP_S)),
        "violations": sum(g.broke for g in games),
        "runs": len(games),
        "score": float(np.mean([g.score for g in games])),
        "cpu_s": float(np.mean([g.cpu_s for g in games])),
    }


def _mean(shares: Iterator[float]) -> float:
    return 100 * float(np.mean(list(shares)))


def _mean_curve(
    games: Sequence[Played], regret: Callable[[Played, int], float], marks: Sequence[int]
) -> list[tuple[int, float]]:
    """Mean regret in per cent at every mark."""
    return [(m, round(_mean(regret(g, m) for g in games), 3)) for m in marks]


def line(name: str, strategy: str, found: dict[str, Any]) -> str:
    """One row of the table."""
    trials = " ".join(f"{v:6.1f}" for v in found["trials"].values())
    seconds = " ".join(f"{v:6.1f}" for v in found["seconds"].values())
    return (
        f"{name:16} {strategy:12} {trials} | {seconds} | "
        f"{found['violations']:3d}/{found['runs']:<4d} {found['score']:5.2f} {found['cpu_s']:6.1f}"
    )


def report_of(games: Sequence[Played], trials: int) -> dict[str, dict[str, Any]]:
    """Figures by landscape and strategy, and by strategy over all landscapes.

    A landscape that is smaller than the budget ends early; its last recommendation stays.
    """
    names = list(dict.fromkeys(game.land for game in games))
    strategies = list(dict.fromkeys(game.strategy for game in games))
    found = {}
    for name in (*names, "all"):
        for strategy in strategies:
            some = [g for g in games if g.strategy == strategy and name in (g.land, "all")]
            if some:
                found[f"{name}/{strategy}"] = summary(some, trials)
    return found


def print_table(report: dict[str, dict[str, Any]], trials: int) -> None:
    """The whole table."""
    marks = [m for m in TRIAL_MARKS if m <= trials]
    heads = " ".join(f"{m:6d}" for m in marks), " ".join(f"{s:5d}s" for s in SECOND_MARKS)
    print(
        "\nregret (%) after trials and seconds; broken limits from 25 trials on; score; "
        "CPU seconds per game"
    )
    print(f"{'landscape':16} {'strategy':12} {heads[0]} | {heads[1]} | broken   score  cpu_s")
    for key, found in report.items():
        name, _, strategy = key.rpartition("/")
        print(line(name, strategy, found))


# --- the program -------------------------------------------------------------------------------


def arguments_of(words: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--noise", type=float, default=0.03)
    parser.add_argument("--strategies", default=",".join(s for s in STRATEGIES if s != "blind"))
    parser.add_argument("--kinds", default=",".join(KINDS), help="simulated kinds, '' for none")
    parser.add_argument(
        "--grid", action="append", default=[], metavar="FILE[=LIMIT]", help="a recorded grid"
    )
    parser.add_argument(
        "--triton", type=Path, help="a table of published batch x concurrency sweeps"
    )
    parser.add_argument("--gain", action="store_true", help="what stopping by gain would change")
    parser.add_argument("--processes", type=int, default=1, help="games played side by side")
    parser.add_argument("--games", type=Path, help="keep every game here; go on from there")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--plot", type=Path, help="draw the mean over all landscapes (SVG)")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    arguments = arguments_of(words)
    tasks = tasks_of(arguments)
    games: dict[Task, Played] = {}
    for task, game in played(tasks, arguments.processes, arguments.games):
        games[task] = game
        print(
            f"{len(games):4d}/{len(tasks)} {game.land} {game.strategy} seed {game.seed}: "
            f"{100 * game.regrets[-1]:.1f} %{' broke its limit' if game.broke else ''}",
            flush=True,
        )
    if not games:
        return 1
    ordered = [games[task] for task in tasks if task in games]
    report = report_of(ordered, arguments.trials)
    print_table(report, arguments.trials)
    if asked := [game for game in ordered if game.gains]:
        print("\n".join(stop_line(asked, least) for least in LEAST_GAINS))
    if arguments.json:
        arguments.json.write_text(json.dumps(report))
    if arguments.plot:
        chosen = arguments.strategies.split(",")
        curves = {s: report[f"all/{s}"] for s in chosen if f"all/{s}" in report}
        arguments.plot.write_text(regret_plot(curves), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
