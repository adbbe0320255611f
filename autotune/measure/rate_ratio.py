"""By how much one configuration's highest rate exceeds another's, with an interval.

Both were measured in the same rounds, each round in fresh processes and at rates of their own.
The highest rate of each in a round is where an event simulation, fed with the calls of that round
alone, meets the limit: a like for like, whereas rates that were shown to hold leave margins that
differ. A round's quotient is one pair. The spread between pairs holds all that differs from round
to round: processes, moments, and how many slow calls a round happened to have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from autotune.core.records import Floats, Ints
from autotune.measure.queueing import ServiceTimes
from autotune.measure.rate_target import RateGoal, limit_rate
from autotune.measure.server_rate import calibrated

MIN_CALLS = 20  # a round with fewer says nothing of slow calls


class Calls(NamedTuple):
    """Items and times of the calls that a configuration made in one round.

    Attributes:
        arrivals_s: Of requests to a server, whose times include the waiting there; else None.
    """

    items: Ints
    times_s: Floats
    arrivals_s: Floats | None = None


def round_rates(goal: RateGoal, base: ServiceTimes, rounds: Sequence[Calls]) -> tuple[float, ...]:
    """The highest rate that the calls of each round promise; 0 where the limit holds at none.

    Args:
        base: Call times of sizes that a round has not met; they move with its nearest.
    """
    rates: list[float] = []
    for items, times_s, arrivals_s in rounds:
        if times_s.size < MIN_CALLS:
            rates.append(0.0)
            continue
        if arrivals_s is not None:
            service = calibrated(base, arrivals_s, times_s, max_batch=goal.max_batch)
        else:
            service = base.refitted(items, times_s)
            service = replace(service, residuals=times_s / service.median_s(items))
        rates.append(limit_rate(goal, service, max(rates, default=0.0)))
    return tuple(rates)


def pair_ratios(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, ...]:
    """The quotients of the rounds in which both have a rate."""
    pairs = zip(ours, theirs, strict=True)
    return tuple(a / b for a, b in pairs if min(a, b) > 0.0)
