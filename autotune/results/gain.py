"""Gains with their intervals, from ratios over pairs of fresh processes."""

from __future__ import annotations

from autotune.core.records import Comparison
from autotune.measure.ratio import geometric_mean, ratio_interval


def interval95(comparison: Comparison) -> tuple[float, float] | None:
    """The comparison's 95 % interval, whatever its decision's level; None: it has none."""
    if len(comparison.pair_ratios) < 2:
        return comparison.ratio_ci
    return ratio_interval(comparison.pair_ratios, 0.95)


def chained(winner: Comparison, other: Comparison) -> Comparison | None:
    """The winner against another configuration, both having been compared with the same third.

    The n-th pairs of both were run in the same round, so their quotient is one pair's ratio.
    None if they share no round.
    """
    ratios = tuple(a / b for a, b in zip(winner.pair_ratios, other.pair_ratios, strict=False))
    if not ratios:
        return None
    return Comparison(
        config=winner.config,
        reference=other.config,
        ratio=geometric_mean(ratios),
        ratio_ci=ratio_interval(ratios, 1 - winner.alpha),
        alpha=winner.alpha,
        pair_ratios=ratios,
        interleaved=winner.interleaved and other.interleaved,
    )
