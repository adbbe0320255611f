"""Whether the order of a long confirmation's first minute is still its order at the end.

Chips throttle and clocks fall under a load that lasts: what wins a short measurement need not win
the day. Two configurations are compared turn by turn, each turn being one window of either, so that
what slows the whole machine weighs on both.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from autotune.core.records import Config, Reversal, Sustained, TurnRate
from autotune.core.units import format_duration
from autotune.measure.ratio import geometric_mean, ratio_interval
from autotune.results.words import config_text, factor_text

EARLY_S = 60.0
LEAST_S = 3 * EARLY_S
"""A confirmation that is shorter says nothing about what lasts."""

LATE_SHARE = 0.5  # of the time after the first minute, that counts as the end
MIN_TURNS = 3
LEVEL = 0.95


def sustained(turns: Mapping[Config, Sequence[TurnRate]]) -> Sustained | None:
    """Compare the first minute with the end, None if it was too short for that."""
    ends_s = [rates[-1].at_s for rates in turns.values() if rates]
    if len(ends_s) < 2 or min(ends_s) < LEAST_S:
        return None
    late_from_s = EARLY_S + (1 - LATE_SHARE) * (min(ends_s) - EARLY_S)
    pairs = itertools.combinations(turns, 2)
    found = [
        reversal
        for a, b in pairs
        if (reversal := _reversal(a, b, turns[a], turns[b], late_from_s)) is not None
    ]
    return Sustained(
        early_s=EARLY_S, late_from_s=late_from_s, late_to_s=min(ends_s), reversals=tuple(found)
    )


def sustained_text(found: Sustained, names: Sequence[str]) -> tuple[str, ...]:
    """A sentence per reversal.

    Args:
        names: The parameters that tell configurations apart.
    """
    last = format_duration(found.late_to_s - found.late_from_s)
    return tuple(
        f"the order changed under lasting load: in the first minute {config_text(r.first, names)} "
        f"was {factor_text(r.early_ratio)} as fast as {config_text(r.then, names)}, in the last "
        f"{last} {factor_text(r.late_ratio)}"
        for r in found.reversals
    )


def _reversal(
    a: Config,
    b: Config,
    ours: Sequence[TurnRate],
    theirs: Sequence[TurnRate],
    late_from_s: float,
) -> Reversal | None:
    """The pair if who leads in the first minute, beyond doubt, trails at the end, beyond doubt."""
    others = {(t.round, t.turn): t for t in theirs}
    both = [(t, others[t.round, t.turn]) for t in ours if (t.round, t.turn) in others]
    early = _ratios([(t, u) for t, u in both if t.at_s < EARLY_S])
    late = _ratios([(t, u) for t, u in both if t.at_s >= late_from_s])
    if _leader(early) * _leader(late) != -1:
        return None
    early_ratio, late_ratio = geometric_mean(early), geometric_mean(late)
    if early_ratio > 1:
        return Reversal(first=a, then=b, early_ratio=early_ratio, late_ratio=late_ratio)
    return Reversal(first=b, then=a, early_ratio=1 / early_ratio, late_ratio=1 / late_ratio)


def _ratios(turns: Sequence[tuple[TurnRate, TurnRate]]) -> list[float]:
    """Ratios that can be told apart: of rounds of fresh processes if there are several."""
    by_round: dict[int, list[float]] = {}
    for ours, theirs in turns:
        if min(ours.rate, theirs.rate) > 0:
            by_round.setdefault(ours.round, []).append(ours.rate / theirs.rate)
    if len(by_round) >= MIN_TURNS:
        return [geometric_mean(ratios) for ratios in by_round.values()]
    return [ratio for ratios in by_round.values() for ratio in ratios]


def _leader(ratios: Sequence[float]) -> int:
    """1 if the first is ahead beyond doubt, -1 if the second is, 0 if nobody."""
    if len(ratios) < MIN_TURNS:
        return 0
    low, high = ratio_interval(ratios, LEVEL)
    return 1 if low > 1 else -1 if high < 1 else 0
