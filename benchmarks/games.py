"""Games of the search benchmark: played side by side, and what is kept of each.

A game depends on nothing but its task, and every one is played in a process that has one thread
for arithmetic, so that figures are the same whatever the number of processes.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from held_out import HELD_OUT, draw_held_out
from landscapes import Floats, Landscape, read_grid, read_triton, simulate
from strategies import STRATEGIES, WINDOW_S, Game

from autotune.core.units import parse_quantity

SCORE_POINTS = 50
SAFE_FROM = 25  # trials from which no recommendation may break a limit
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class Task:
    """One game.

    Attributes:
        source: A simulated kind, "FILE" or "FILE=LIMIT" of a recorded grid, or "FILE#PLACE" of
            published sweeps.
        gains: True to ask before every trial what it is expected to gain.
    """

    source: str
    strategy: str
    seed: int
    trials: int
    noise: float
    gains: bool = False


@dataclass(frozen=True, kw_only=True)
class Played:
    """What a game came to.

    Attributes:
        land: Name of the landscape, without the seed.
        regrets: Loss by what was recommended after every trial, a share.
        ends_s: When every trial ended.
        broke: True if a recommendation after `SAFE_FROM` trials or more broke the limit.
        score: `performance_score`.
        gains: Before every trial, what it was expected to gain; None: unknown. Empty: not asked.
        cpu_s: CPU seconds of searching and of simulating.
    """

    land: str
    strategy: str
    seed: int
    regrets: list[float]
    ends_s: list[float]
    broke: bool
    score: float
    gains: list[float | None]
    cpu_s: float

    def regret_at(self, trials: int) -> float:
        """Loss by what is recommended after so many trials."""
        return self.regrets[min(trials, len(self.regrets)) - 1] if self.regrets else 1.0

    def regret_at_s(self, seconds: float) -> float:
        """Loss by what is recommended after so many seconds."""
        done = sum(1 for end_s in self.ends_s if end_s <= seconds)
        return self.regret_at(done) if done else 1.0


def play(task: Task) -> Played:
    """Play one game."""
    began_s = time.process_time()
    land = landscape(task.source, task.seed, task.noise)
    game = Game(land, task.seed, task.trials, asks_gain=task.gains)
    STRATEGIES[task.strategy](game)
    return figures_of(game, task.strategy, time.process_time() - began_s)


def figures_of(game: Game, strategy: str, cpu_s: float = 0.0) -> Played:
    """What is kept of a game that is over."""
    land, known = game.land, game.recommended
    return Played(
        land=land.name.removesuffix(f"-{game.seed}"),
        strategy=strategy,
        seed=game.seed,
        regrets=[land.regret(index) for index in known],
        ends_s=[t.end_s for t in game.history],
        broke=any(i is not None and not land.usable[i] for i in known[SAFE_FROM - 1 :]),
        score=performance_score(game),
        gains=game.gains,
        cpu_s=cpu_s,
    )


@lru_cache(maxsize=4)
def landscape(source: str, seed: int, noise: float) -> Landscape:
    """The landscape of a task."""
    if source in HELD_OUT:
        return draw_held_out(source, seed, noise)
    if "#" in source:
        path, _, place = source.partition("#")
        return next(islice(read_triton(Path(path), noise), int(place), None))
    path, _, limit = source.partition("=")
    if Path(path).is_file():
        return read_grid(Path(path), parse_quantity(limit, "duration") if limit else None, noise)
    return simulate(source, seed, noise)


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


# --- side by side ------------------------------------------------------------------------------


def side_by_side(
    function: Callable[[T], R], tasks: Sequence[T], processes: int
) -> Iterator[tuple[T, R]]:
    """Results of a picklable function as they come, from processes of one thread each.

    Ctrl-C or SIGTERM ends the iteration: what has come counts.
    """
    stopped = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopped
        if not stopped:  # `timeout` and terminals may tell more than once
            stopped = True
            raise KeyboardInterrupt

    os.environ.update(dict.fromkeys(THREADS, "1"))
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=spawn, initializer=_leave_interrupts)
    try:
        waiting = {pool.submit(function, task): task for task in tasks}
        for future in as_completed(waiting):
            yield waiting[future], future.result()
    except KeyboardInterrupt:
        for process in pool._processes.values():
            process.terminate()
        print("stopped early", flush=True)
    finally:
        pool.shutdown(cancel_futures=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave_interrupts() -> None:
    """Ctrl-C is for the process that waits for this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def played(
    tasks: Sequence[Task], processes: int, kept: Path | None
) -> Iterator[tuple[Task, Played]]:
    """All games of `tasks` as they end.

    Args:
        kept: A file of JSON lines, one per game. Games that are in it are not played again, and
            new ones are added, so that a long benchmark can be run in parts.
    """
    known = {} if kept is None or not kept.exists() else _read(kept.read_text().splitlines())
    for task in tasks:
        if task in known:
            yield task, known[task]
    for task, game in side_by_side(play, [t for t in tasks if t not in known], processes):
        if kept is not None:
            with kept.open("a") as file:
                file.write(json.dumps({"task": asdict(task), "played": asdict(game)}) + "\n")
        yield task, game


def _read(lines: Iterable[str]) -> dict[Task, Played]:
    found = (json.loads(line) for line in lines if line.strip())
    return {Task(**each["task"]): Played(**each["played"]) for each in found}


# --- stopping ----------------------------------------------------------------------------------


def stopped_at(game: Played, least: float) -> int:
    """Trials after which a study stops that wants an expected gain of at least `least`."""
    for done, gain in enumerate(game.gains):
        if gain is not None and gain < least:
            return done
    return len(game.regrets)


def stop_line(games: Sequence[Played], least: float) -> str:
    """What stopping early saves, and what it loses."""
    stops = [stopped_at(game, least) for game in games]
    lost = [g.regret_at(n) - g.regrets[-1] for g, n in zip(games, stops, strict=True)]
    early = [g.regret_at(n) for g, n in zip(games, stops, strict=True)]
    last = max(len(game.regrets) for game in games)
    mean = [100 * math.fsum(x) / len(games) for x in (early, [g.regrets[-1] for g in games], lost)]
    return (
        f"stop below {100 * least:g} % gain: after {math.fsum(stops) / len(stops):.1f} of {last} "
        f"trials, loss {mean[0]:.2f} % (of {last}: {mean[1]:.2f} %), worst change "
        f"{100 * max(lost):+.1f} %"
    )
