"""Curves of time over batch size that a few noisy measurements leave possible.

Real curves are not smooth: cliffs at large sizes, padding steps, several peaks. Time is therefore
modelled as one or two straight pieces plus a deviation that is alike at neighbouring sizes, and
evidence weighs how many pieces and how much deviation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from autotune.core.records import Floats

DRAWS = 400
CORRELATION_OCTAVES = 2.0
DEVIATIONS = (0.01, 0.03, 0.1, 0.3)  # of log time from the straight pieces; one of them holds
DEVIATION_PRIOR = (0.3, 0.3, 0.25, 0.15)
ROUGH_PRIOR = (0.05, 0.15, 0.4, 0.4)


def draw_log_times(
    sizes: Floats, times: Floats, errors: Floats, grid: Floats, *, rough: bool = False
) -> Floats:
    """Draw logarithms of times that a curve may have, shape (DRAWS, grid sizes).

    A mixture, by evidence, over the straight pieces and the size of the deviation from them,
    which is a Gaussian process in the logarithm of the size. The draws of equal arguments are
    equal.

    Args:
        sizes, times: Measured sizes, ascending, at least one, and their times.
        errors: Relative standard error of each time.
        grid: Ascending sizes to draw the curve at, the measured ones among them.
        rough: Expect larger deviations, as those of a quantile.
    """
    pieces = list(_pieces(sizes, times, grid))
    fits = np.log(np.array([fit for fit, _, _ in pieces]))
    # Bayesian information criterion: half of log n for each fitted parameter.
    prior = np.array([bonus - 0.5 * count * math.log(sizes.size) for _, count, bonus in pieces])
    at = np.searchsorted(grid, sizes)
    off = np.log(times) - fits[:, at]
    octaves = np.log2(grid)
    alike = np.exp(-np.abs(octaves[:, None] - octaves) / CORRELATION_OCTAVES)
    scores, means, roots = [], [], []
    # Two points fit any straight piece, so that nothing speaks for a small deviation yet.
    chances = ROUGH_PRIOR if rough or sizes.size <= 2 else DEVIATION_PRIOR
    for deviation, chance in zip(DEVIATIONS, chances, strict=True):
        spread = deviation**2 * alike
        seen = spread[np.ix_(at, at)] + np.diag(errors**2)
        inverse = np.linalg.inv(seen)
        misfit = np.einsum("mi,ij,mj->m", off, inverse, off) + np.linalg.slogdet(seen)[1]
        scores.append(prior - 0.5 * misfit + math.log(chance))
        gain = spread[:, at] @ inverse
        means.append(fits + off @ gain.T)
        rest = spread - gain @ spread[at] + 1e-10 * np.eye(grid.size)
        roots.append(np.linalg.cholesky(rest))
    weights = np.exp(np.array(scores) - np.max(scores))
    edges = np.cumsum(weights)
    chosen = np.searchsorted(edges, (np.arange(DRAWS) + 0.5) / DRAWS * edges[-1])
    deviations, models = np.unravel_index(chosen, weights.shape)
    normal = np.random.default_rng(0).standard_normal((DRAWS, grid.size))
    draws: Floats = np.array(means)[deviations, models]
    for index, root in enumerate(roots):
        draws[deviations == index] += normal[deviations == index] @ root.T
    return draws


def _pieces(sizes: Floats, times: Floats, grid: Floats) -> Iterator[tuple[Floats, int, float]]:
    """Each model's times on the grid, its number of parameters, its log prior.

    One straight piece, or two that break between neighbouring sizes; where the grid has
    unmeasured sizes between these, the break may lie before or after each.
    """
    start, slope = _straight(sizes, times)
    yield start + slope * grid, 2, 0.0
    for split in range(1, sizes.size):
        left = _straight(sizes[:split], times[:split])
        right = _straight(sizes[split:], times[split:])
        count = min(split, 2) + min(sizes.size - split, 2) + 1
        breaks = grid[(grid >= sizes[split - 1]) & (grid < sizes[split])]
        for last in breaks:
            fit = np.where(grid <= last, left[0] + left[1] * grid, right[0] + right[1] * grid)
            yield fit, count, -math.log(breaks.size)


def _straight(sizes: Floats, times: Floats) -> tuple[float, float]:
    """Least squares of relative errors for time = start + slope * size, neither negative."""
    one, size = 1.0 / times, sizes / times
    a, b, c = float(one @ one), float(one @ size), float(size @ size)
    determinant = a * c - b * b
    if determinant > 1e-12 * a * c:
        start = (c * one.sum() - b * size.sum()) / determinant
        slope = (a * size.sum() - b * one.sum()) / determinant
        if slope < 0.0:
            return float(one.sum()) / a, 0.0
        if start >= 0.0:
            return float(start), float(slope)
    return 0.0, float(size.sum()) / c
