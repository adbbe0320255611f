"""Probes: larger batches alone, then one other parameter changed at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from autotune.core.objective import Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Config
from autotune.search.grid import Attempt, Grid, Point

MAX_DOUBLINGS = 6


def batch_probes(grid: Grid, base: Point, history: Sequence[Attempt]) -> Iterator[Point]:
    """Larger and larger batches with everything else as in the baseline, until one cannot run."""
    batches = _batches(grid)
    if batches is None:
        return
    position, sizes = batches
    start = max(sizes[base[position]], 1.0)
    rungs = min(MAX_DOUBLINGS, math.ceil(math.log2(max(sizes[-1] / start, 1.0))))
    broken = {a.config for a in history if a.record and a.record.verdict.outcome.is_infeasible}
    for rung in range(1, rungs + 1):
        point = larger_batch(grid, base, rung / rungs)
        if point is None or grid.config(point) in broken:
            return
        if grid.allows(point):
            yield point


def larger_batch(grid: Grid, base: Point, share: float) -> Point | None:
    """`base` with the batch that lies a share of the doublings on the way to the largest.

    Returns:
        None if the batch size is not searched.
    """
    batches = _batches(grid)
    if batches is None:
        return None
    position, sizes = batches
    start = max(sizes[base[position]], 1.0)
    target = start * max(sizes[-1] / start, 1.0) ** share
    index = min(range(len(sizes)), key=lambda i: abs(math.log(max(sizes[i], 1.0) / target)))
    return (*base[:position], index, *base[position + 1 :])


def _batches(grid: Grid) -> tuple[int, list[float]] | None:
    """Position of the batch size among the parameters, and its choices."""
    for position, parameter in enumerate(grid.params):
        if parameter.name == "batch_size" and parameter.is_numeric:
            return position, [float(choice) for choice in parameter.choices]
    return None


def is_batch_only(config: Config, baseline: Config) -> bool:
    """True for the baseline with any batch size."""
    return config.changed(batch_size=baseline.batch_size) == baseline


def one_change_probes(grid: Grid, good: Point) -> Iterator[tuple[int, Point]]:
    """One other parameter changed at a time: first each one's nearest choice, then the next."""
    alternatives = {
        k: sorted((i for i in range(size) if i != good[k]), key=lambda i, k=k: abs(i - good[k]))  # type: ignore[misc]
        for k, size in enumerate(grid.sizes)
        if size > 1 and grid.params[k].name != "batch_size"
    }
    for turn in range(max(map(len, alternatives.values()), default=0)):
        for position, indices in alternatives.items():
            if turn < len(indices):
                yield position, (*good[:position], indices[turn], *good[position + 1 :])


def best_point(grid: Grid, objective: Objective, history: Sequence[Attempt]) -> Point | None:
    """The measured point with the best score, among those that keep their limits if any."""
    measured = [
        (grid.point(a.config), a.record)
        for a in history
        if a.record is not None and a.record.verdict.outcome.is_measured
    ]
    known = [(point, record) for point, record in measured if point is not None]
    keeping = [(p, r) for p, r in known if r.verdict.outcome is not Outcome.OVER_LIMIT]
    best = max(
        keeping or known,
        key=lambda pr: objective.score(pr[1].verdict.objectives),
        default=None,
    )
    return None if best is None else best[0]
