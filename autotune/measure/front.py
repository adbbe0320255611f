"""Trade-offs between several goals: which points no other beats, and how much they reach.

Goals are columns and higher is better in all of them; take logarithms, and the negative of what
should be low.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from autotune.core.records import Floats, Ints

Flags = npt.NDArray[np.bool_]


def non_dominated(values: Floats) -> Flags:
    """Which rows no other row beats: none is at least as good everywhere and better somewhere."""
    at_least = (values[:, None, :] >= values[None, :, :]).all(axis=2)
    better = (values[:, None, :] > values[None, :, :]).any(axis=2)
    return np.asarray(~(at_least & better).any(axis=0), dtype=np.bool_)


def hypervolume(values: Floats, reference: Floats) -> float:
    """Volume of what the rows dominate above the reference point, exact for any number of goals.

    By slices along the last goal: between two of its levels, the volume of the rows that reach
    the upper one in the other goals.
    """
    inside = values[(values > reference).all(axis=1)]
    if not len(inside):
        return 0.0
    if inside.shape[1] == 1:
        return float(inside.max() - reference[0])
    order = np.argsort(-inside[:, -1], kind="stable")
    rows, levels = inside[order, :-1], np.append(inside[order, -1], reference[-1])
    total = 0.0
    for count in range(1, len(rows) + 1):
        height = float(levels[count - 1] - levels[count])
        if height > 0.0:
            total += height * hypervolume(rows[:count], reference[:-1])
    return total


def spread_out(values: Floats, count: int, first: Ints) -> Ints:
    """Indices of at most `count` rows: `first`, the best of each goal, then always the farthest.

    Args:
        first: Rows that are taken in any case.
    """
    low, high = values.min(axis=0), values.max(axis=0)
    scaled = (values - low) / np.where(high > low, high - low, 1.0)
    chosen = list(dict.fromkeys([*first.tolist(), *values.argmax(axis=0).tolist()]))[:count]
    while len(chosen) < min(count, len(values)):
        gaps = np.abs(scaled[:, None, :] - scaled[chosen][None, :, :]).sum(axis=2).min(axis=1)
        gaps[chosen] = -1.0
        chosen.append(int(gaps.argmax()))
    return np.array(chosen, dtype=np.int64)
