"""Repeated measurements of configurations, pooled: means, counts and scatter per output."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autotune.core.records import Floats, Ints
from autotune.search.question import Observation
from autotune.search.scales import TYPICAL_NOISE

OUTLIER = 3.0  # standard deviations from the median of its repeats: further off, it does not count
MAD_TO_SD = 1.4826


def pool(
    observations: Sequence[Observation], outputs: Sequence[str], width: int
) -> tuple[Ints, Floats, Ints, Floats]:
    """Distinct configurations; of every output the mean, count and sum of squared deviations.

    Of three repeats or more, outliers do not count: one in thirty measured tails is far too large.
    """
    rows: dict[tuple[int, ...], list[Observation]] = {}
    for observation in observations:
        rows.setdefault(observation.row, []).append(observation)
    shape = len(rows), len(outputs)
    means, scatter = np.full(shape, math.nan), np.zeros(shape)
    counts = np.zeros(shape, dtype=np.int64)
    for column, name in enumerate(outputs):
        groups = [[o.values[name] for o in g if name in o.values] for g in rows.values()]
        reach = OUTLIER * _spread_within(groups)
        for i, group in enumerate(groups):
            kept = np.array(group)
            if len(group) > 2:
                kept = kept[np.abs(kept - np.median(kept)) <= reach]
            counts[i, column] = len(kept)
            if len(kept):
                means[i, column] = np.mean(kept)
                scatter[i, column] = np.sum((kept - means[i, column]) ** 2)
    tested = np.array(list(rows), dtype=np.int64).reshape(-1, width)
    return tested, means, counts, scatter


def _spread_within(groups: Sequence[Sequence[float]]) -> float:
    """Standard deviation of repeats about their median, by its own median; typical if unknown."""
    apart = [np.abs(np.array(g) - np.median(g)) for g in groups if len(g) > 2]
    known = np.concatenate([*apart, np.full(4, TYPICAL_NOISE / MAD_TO_SD)])
    return float(MAD_TO_SD * np.median(known))
