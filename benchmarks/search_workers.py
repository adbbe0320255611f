"""Several workers on one study: does what they do not know of each other cost them?

    python benchmarks/search_workers.py --seeds 30 --workers 1,2,4 --processes 2
    python benchmarks/search_workers.py --storage postgresql+psycopg://user@host/db --seeds 10

Every worker opens the study by itself, on a real storage, and asks while the others' trials are
running; only the time that trials take is virtual. A landscape of another kind for every seed.
"""

from __future__ import annotations

import argparse
import heapq
import logging
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from games import side_by_side
from landscapes import KINDS, Landscape, simulate, space_of
from strategies import WINDOW_S, Game, record_of

from autotune.search.study import Asked, StopReason, Study
from autotune.search.study_model import StudyModel
from autotune.space.search_space import Source


@dataclass(frozen=True, kw_only=True)
class Played:
    """A study that was run.

    Attributes:
        regret: Of the recommendation after all trials.
        unasked: Trials of a configuration that had been tried, though no repeat was asked for.
    """

    regret: float
    unasked: int
    repeats: int


def play(land: Landscape, workers: int, trials: int, seed: int, storage: str) -> Played:
    """Run one study with so many workers."""
    space = space_of(land, trials, "auto", seed)
    space = replace(
        space, study=f"{land.name}-{workers}", storage=storage, source=Source(text="benchmark")
    )
    game = Game(land, seed, trials)
    rows = {c: tuple(r) for c, r in zip(land.configs, game.index, strict=True)}
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        studies = [
            Study.open(space, place, fingerprint={"benchmark": "1"}, worker=str(i))
            for i in range(workers)
        ]
        asks = Counter[object]()
        unasked = repeats = 0
        running: list[tuple[float, int, Asked]] = []
        idle = [(0.0, worker) for worker in range(workers)]
        while idle or running:
            for now_s, worker in idle:
                asked = studies[worker].ask()
                if isinstance(asked, StopReason):
                    continue
                unasked += bool(asks[asked.config]) and not asked.again
                repeats += asked.again
                asks[asked.config] += 1
                index = game.index[rows[asked.config]]
                runs = land.status[index] == "ok"
                ends_s = now_s + float(land.cost_s[index]) + WINDOW_S * runs
                heapq.heappush(running, (ends_s, worker, asked))
            idle = []
            if running:
                ends_s, worker, asked = heapq.heappop(running)
                trial = game.play(rows[asked.config])
                record = record_of(game, asked.config, trial)
                studies[worker].tell(replace(record, number=asked.number))
                idle = [(ends_s, worker)]
        best = StudyModel(space, seed).recommended(studies[0].records())
    regret = land.regret(None if best is None else game.index[rows[best]])
    return Played(regret=regret, unasked=unasked, repeats=repeats)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A study to run: how many workers, which landscape."""

    kind: str
    seed: int
    workers: int
    trials: int
    storage: str


def run(task: Task) -> Played:
    """Run one study."""
    logging.disable(logging.WARNING)
    land = simulate(task.kind, task.seed)
    return play(land, task.workers, task.trials, task.seed, task.storage)


def arguments_of(words: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--storage", default="journal")
    parser.add_argument("--processes", type=int, default=1, help="studies run side by side")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run and print."""
    arguments = arguments_of(words)
    kinds = [kind for kind in KINDS if kind != "only_batch"]
    counts = [int(w) for w in arguments.workers.split(",")]
    tasks = [
        Task(
            kind=kinds[seed % len(kinds)],
            seed=seed,
            workers=workers,
            trials=arguments.trials,
            storage=arguments.storage,
        )
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds)
        for workers in counts
    ]
    found: dict[int, list[Played]] = {workers: [] for workers in counts}
    for task, played in side_by_side(run, tasks, arguments.processes):
        found[task.workers].append(played)
        name = f"{task.kind}-{task.seed}"
        print(f"{name:18} {task.workers} workers: {100 * played.regret:5.1f} %", flush=True)
    for workers, games in found.items():
        if not games:
            continue
        regret = 100 * math.fsum(g.regret for g in games) / len(games)
        unasked, repeats = sum(g.unasked for g in games), sum(g.repeats for g in games)
        print(
            f"{workers} workers, {len(games)} studies of {arguments.trials} trials: mean regret "
            f"{regret:.2f} %, {repeats} repeats asked for, {unasked} not asked for"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
