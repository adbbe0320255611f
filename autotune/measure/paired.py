"""Whether one configuration is faster than another, from pairs of fresh processes.

The model: the logarithm of a pair's ratio is the true one plus an error; errors of different
pairs are independent and, since both sides are opened afresh in alternating order and measured in
windows A B B A, alike in both directions where there is no difference. A steady drift of the
machine weighs on both sides of a pair alike. What a process draws once and keeps (its memory
layout, a neighbour of its lifetime) is part of the error, which is why pairs count and not windows.
The logarithms are tested with Student's t; three guards make it hold on real machines:

- a pair that lies further than `CLIP` robust standard deviations from the median is moved to
  there (Huber), so that one stalled process costs a few more pairs, not the decision;
- pairs never count as more alike than `SPREAD_LEAST`: a few that agree by chance prove little;
- every look at the growing data spends its share of the errors that are allowed in all (the
  union bound), so that looking again and again makes none more likely.

The interval is that of the pairs at hand, as if their number had been fixed beforehand; decisions
rest on the shares of the looks, never on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.core.records import Floats

LOOKS = (6, 8, 12, 16, 24, 32, 48)
"""Numbers of pairs at which fresh measuring may end."""

POWER = 0.95
SHARE_MISSED = (
    0.03  # of changes of the tolerance's size that may be called none, all looks together
)
GATE_ALPHA = 0.0002  # of comparisons without a change that may fail a gate, all looks together
CLIP = 4.0
CLIP_SCALE_LEAST = 0.01  # no pair is moved that is nearer to the median than CLIP times this
SPREAD_LEAST = 0.005
NORMAL_MAD = 1.4826  # standard deviation of normal values over their median absolute deviation


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a comparison is to find out.

    Attributes:
        alpha: Probability of calling a side better or worse where there is no difference, per
            direction, all looks together.
        tolerance: The change, as a share, that is not to be missed.
        gate: True if only a change for the worse matters.
        looks: How often the data may be looked at.
    """

    alpha: float = 0.01
    tolerance: float = 0.05
    gate: bool = False
    looks: int = 1

    @property
    def log_tolerance(self) -> float:
        """The tolerated change for the worse as a logarithm, negative."""
        return math.log1p(-self.tolerance)


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioTest:
    """What is known of a ratio; above 1 means that the first side is better.

    Attributes:
        ratio: The estimate. `interval95`: its 95 % interval.
        shown: "better" or "worse" if a difference is shown at the rule's alpha, else "none".
        excluded: True if a change for the worse of the rule's tolerance is excluded;
            `excluded_better`: the same of one for the better.
        smallest_change: The smallest change for the worse, as a share, that would have been
            found with a probability of `POWER` at this much scatter.
        moved: Pairs that lay far from the others and were moved nearer.
    """

    rule: Rule
    ratio: float
    interval95: tuple[float, float]
    shown: str
    excluded: bool
    excluded_better: bool
    smallest_change: float
    pair_count: int = 0
    moved: tuple[int, ...] = ()

    @property
    def is_regression(self) -> bool:
        """Worse, and by no less than half of the tolerance: the gate's alarm.

        Without the second half, precise measuring would fail a gate for changes that nobody
        asked it to find.
        """
        return self.shown == "worse" and math.log(self.ratio) <= self.rule.log_tolerance / 2

    @property
    def is_settled(self) -> bool:
        """True if further pairs would not change what was asked for."""
        if self.rule.gate:
            return self.is_regression or self.excluded
        return self.shown != "none" or (self.excluded and self.excluded_better)


def judge_pairs(
    log_ratios: Sequence[float], rule: Rule, *, allowed: int | None = None
) -> RatioTest | None:
    """Test the logarithms of pairs' ratios, positive where the first side is better.

    None with fewer than two pairs: nothing is known of their scatter.

    Args:
        allowed: Pairs that there would have been, had the question not been settled earlier; it
            is with so many that the smallest change would have been found.
    """
    if len(log_ratios) < 2:
        return None
    values = np.asarray(log_ratios, dtype=np.float64)
    clipped = _clipped(values)
    spread = max(float(clipped.std(ddof=1)), SPREAD_LEAST)
    test = judge_estimate(
        float(clipped.mean()), spread / math.sqrt(values.size), values.size - 1, rule
    )
    moved = tuple(int(index) for index in np.flatnonzero(clipped != values))
    if allowed is not None and allowed > values.size:
        change = _smallest_change(spread / math.sqrt(allowed), allowed - 1, rule)
        test = replace(test, smallest_change=change)
    return replace(test, pair_count=values.size, moved=moved)


def judge_estimate(log_ratio: float, error: float, freedom: float, rule: Rule) -> RatioTest:
    """Test an estimate with its standard error.

    Args:
        freedom: Degrees of freedom of `error`.
    """
    to_show = _reach(rule.alpha / rule.looks, error, freedom)
    to_exclude = _reach(SHARE_MISSED / rule.looks, error, freedom)
    half = _reach(0.025, error, freedom)
    return RatioTest(
        rule=rule,
        ratio=math.exp(log_ratio),
        interval95=(math.exp(log_ratio - half), math.exp(log_ratio + half)),
        shown=_direction(log_ratio, to_show),
        excluded=log_ratio - to_exclude > rule.log_tolerance,
        excluded_better=log_ratio + to_exclude < -rule.log_tolerance,
        smallest_change=_smallest_change(error, freedom, rule),
    )


def _smallest_change(error: float, freedom: float, rule: Rule) -> float:
    # The sum of both quantiles: Student's t moved by the change, about (Chow et al., 2008, 3.2).
    to_find = _reach(1.0 - POWER, error, freedom)
    change = _reach(rule.alpha / rule.looks, error, freedom) + to_find
    if rule.gate:
        change = max(change, -rule.log_tolerance / 2 + to_find)
    return -math.expm1(-change)


def _reach(probability: float, error: float, freedom: float) -> float:
    """How far an estimate lies above the truth with no more than this probability."""
    from scipy.special import stdtrit  # costs 0.4 s, so on use

    return float(stdtrit(freedom, 1.0 - probability)) * error


def _direction(log_ratio: float, reach: float) -> str:
    if abs(log_ratio) <= reach:
        return "none"
    return "better" if log_ratio > 0 else "worse"


def _clipped(values: Floats) -> Floats:
    if values.size < LOOKS[0]:
        return values  # too few to say what is usual
    median = float(np.median(values))
    scale = max(NORMAL_MAD * float(np.median(np.abs(values - median))), CLIP_SCALE_LEAST)
    return np.clip(values, median - CLIP * scale, median + CLIP * scale)
