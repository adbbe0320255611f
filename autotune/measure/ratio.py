"""The interval of a ratio that was measured as a few independent pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev


def geometric_mean(ratios: Sequence[float]) -> float:
    """The mean that treats a ratio and its inverse alike; all must be positive."""
    return math.exp(fmean(math.log(ratio) for ratio in ratios))


def ratio_interval(ratios: Sequence[float], level: float) -> tuple[float, float]:
    """The t interval of the geometric mean of `ratios` at confidence `level`.

    Over pairs, not over windows: processes differ more from each other than the windows of
    one process do. With fewer than two pairs nothing is known: (0, inf).
    """
    if len(ratios) < 2 or min(ratios) <= 0:
        return (0.0, math.inf)
    from scipy.special import stdtrit  # costs 0.4 s, so on use

    logs = [math.log(ratio) for ratio in ratios]
    quantile = float(stdtrit(len(logs) - 1, (1 + level) / 2))
    half = quantile * stdev(logs) / math.sqrt(len(logs))
    return (math.exp(fmean(logs) - half), math.exp(fmean(logs) + half))
