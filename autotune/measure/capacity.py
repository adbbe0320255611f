"""What a device holds under a limit, how many devices hold a rate, and what serves which load best.

Requests are spread at random over devices that have a queue each: a share of Poisson arrivals is
Poisson again, so that one device and its share of the rate stand for all. (Spreading them in turn
makes arrivals more even, and latencies lower.) Its queue is simulated with measured call times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from autotune.core.records import Floats, Load
from autotune.measure.arrivals import arrival_times
from autotune.measure.queueing import ServiceTimes, simulate
from autotune.measure.rate_target import RateGoal, limit_rate
from autotune.measure.scaling import Scaling
from autotune.measure.tail import quantile

MAX_DEVICES = 4096
SIMULATED_SHARE = 0.93
"""Of the rate at which a simulation meets the limit, what is counted on without a measurement: what
a model does differently under load has been seen to cost 5 %."""

HOLDS_SHARE = 0.6  # of the allowed share over the limit, that a level's configuration may use
ROUGH_N, LEVEL_N, LIMIT_N = 10_000, 30_000, 60_000
"""Requests simulated: to rank rates, for a level's figures, for a rate."""

BATCH_OF_N, MAX_BATCHES_OF_N = 24, 8
"""With larger calls than that, more requests are simulated in proportion, up to so many times."""

MEAN_STEPS = 14  # bisections of the rate whose mean latency meets a limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A configuration at a rate, by simulation.

    Attributes:
        margin: Share of the requests over a limit, over what is allowed; the worst limit's.
    """

    mean_s: float
    p50_s: float
    p99_s: float
    margin: float

    @property
    def holds(self) -> bool:
        """True if every limit is kept with room for what a simulation leaves out."""
        return self.margin <= HOLDS_SHARE


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Queued:
    """A configuration as the queue of one device sees it.

    Attributes:
        goals: One per limited quantile, alike in everything else; at least one.
        mean_limit_s: Limit on the mean latency, None if there is none.
    """

    service: ServiceTimes
    goals: tuple[RateGoal, ...]
    mean_limit_s: float | None = None

    def slowed(self, factor: float) -> Queued:
        """The same where everything takes `factor` times as long."""
        return replace(self, service=self.service.slowed(factor))

    def limit_rate(self, near_per_s: float = 0.0, *, is_rough: bool = False) -> float:
        """The highest rate at which all limits hold in the simulation; 0 if at none.

        Args:
            near_per_s: Where it is likely to be, 0 if unknown.
            is_rough: Good enough to tell configurations apart.
        """
        full_batches = self.goals[0].max_batch / BATCH_OF_N
        count = ROUGH_N if is_rough else round(LIMIT_N * _clipped(full_batches))
        rate = min(limit_rate(goal, self.service, near_per_s, count=count) for goal in self.goals)
        if rate <= 0 or self.mean_limit_s is None or self._mean_holds(rate):
            return rate
        low, high = 0.0, rate
        for _ in range(MEAN_STEPS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self._mean_holds(middle) else (low, middle)
        return low

    def at(self, rate_per_s: float) -> Served:
        """Its figures at a rate."""
        latency_s = self._latency_s(rate_per_s)
        margins = [float((latency_s > goal.limit_s).mean()) / goal.allowed for goal in self.goals]
        mean_s = float(latency_s.mean())
        if self.mean_limit_s is not None:
            # Means have no share to leave: a tenth of the time instead.
            margins.append(HOLDS_SHARE * mean_s / (0.9 * self.mean_limit_s))
        return Served(
            mean_s=mean_s,
            p50_s=quantile(latency_s, 0.5),
            p99_s=quantile(latency_s, 0.99),
            margin=max(margins),
        )

    def _mean_holds(self, rate_per_s: float) -> bool:
        assert self.mean_limit_s is not None
        return float(self._latency_s(rate_per_s).mean()) <= self.mean_limit_s

    def _latency_s(self, rate_per_s: float) -> Floats:
        goal = self.goals[0]
        load = Load(kind=goal.kind, rate_per_s=rate_per_s)
        batch = min(goal.max_batch, rate_per_s * self._longest_s / goal.servers)
        count = round(LEVEL_N * _clipped(batch / BATCH_OF_N))
        arrivals_s = arrival_times(load, seed=0, duration_s=None, count=count)
        return simulate(
            arrivals_s,
            self.service,
            np.random.default_rng(0),  # the same draws for all: they differ by themselves alone
            max_batch=goal.max_batch,
            max_delay_s=goal.max_delay_s,
            servers=goal.servers,
        )

    @property
    def _longest_s(self) -> float:
        """A call of a whole batch."""
        return float(self.service.median_s(np.array([float(self.goals[0].max_batch)]))[0])


def _clipped(batches: float) -> float:
    """How many times more requests are simulated where calls have many: queues forget by calls."""
    return min(max(1.0, batches), MAX_BATCHES_OF_N)


# --- how many devices --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Fleet:
    """What so many devices hold.

    Attributes:
        single_per_s: What one alone holds at least. `likely_per_s`: what it is expected to.
        queued: Its configuration in the queue; None: there is no limit on latency, so that what
            counts is throughput, which is what `scaling` was fitted to.
        scaling: None: devices that share nothing. `is_own`: it is this configuration's.
        per_machine: Devices that share a machine; None: all do.
        shown: By number of devices on a machine, a rate that was shown to hold.
    """

    single_per_s: float
    likely_per_s: float
    queued: Queued | None = None
    scaling: Scaling | None = None
    is_own: bool = True
    per_machine: int | None = None
    shown: Mapping[int, float] = field(default_factory=dict)
    _ratios: dict[float, float] = field(default_factory=dict, repr=False)

    @property
    def counts_throughput(self) -> bool:
        """True if the law itself is what they hold."""
        return self.queued is None and self.is_own

    def least(self, device_count: int) -> float:
        """Requests per second that so many devices hold at least."""
        return self._over_machines(device_count, self._least_of_one)

    def likely(self, device_count: int) -> float:
        """Requests per second that they are expected to hold; nothing is left for doubt."""
        return self._over_machines(device_count, self._likely_of_one)

    def multiple(self, device_count: int) -> float:
        """How many times as much as one alone they hold at least, by the scaling."""

        def of_one(count: int) -> float:
            if self.scaling is None or count == 1:
                return float(count)
            return count * self._ratio(self.scaling.most_slowdown(count))

        return self._over_machines(device_count, of_one)

    def sharing(self, device_count: int) -> int:
        """The most of so many devices that share a machine; 1 if nothing is shared."""
        if self.scaling is None:
            return 1
        return min(device_count, self.per_machine or device_count)

    def slowdown(self, device_count: int) -> float:
        """How many times as long calls take at most, where so many devices are at work."""
        return self.scaling.most_slowdown(self.sharing(device_count)) if self.scaling else 1.0

    def _over_machines(self, count: int, of_one: Callable[[int], float]) -> float:
        if self.scaling is None:
            return count * of_one(1)
        size = self.per_machine or count
        whole, rest = divmod(count, size)
        return (whole * of_one(size) if whole else 0.0) + (of_one(rest) if rest else 0.0)

    def _least_of_one(self, count: int) -> float:
        shown = self.shown.get(count, 0.0)
        if self.scaling is None or (count == 1 and not self.counts_throughput):
            return max(self.single_per_s, shown)
        if self.counts_throughput:
            return self.scaling.least_rate(count)
        factor = self.scaling.most_slowdown(count)
        return max(count * self.single_per_s * self._ratio(factor), shown)

    def _likely_of_one(self, count: int) -> float:
        if self.scaling is None:
            return count * self.likely_per_s
        if self.counts_throughput:
            return self.scaling.rate(count)
        return count * self.likely_per_s * self._ratio(self.scaling.slowdown(count))

    def _ratio(self, factor: float) -> float:
        """What is left of the rate where everything takes `factor` times as long."""
        if factor == 1.0 or self.queued is None:
            return 1.0 / factor
        if factor == math.inf:
            return 0.0
        for known in (1.0, factor):
            if known not in self._ratios:
                near = self._ratios.get(1.0, 0.0) / known
                self._ratios[known] = self.queued.slowed(known).limit_rate(near)
        alone = self._ratios[1.0]
        return min(self._ratios[factor] / alone, 1.0 / factor) if alone > 0 else 0.0


def devices_for(wanted_per_s: float, capacity: Callable[[int], float]) -> int | None:
    """The least number of devices whose capacity reaches a rate; None if none does.

    Capacity rises with the number of devices up to some number, and may fall from there.
    """
    tried = [0, 1]
    values = {0: 0.0, 1: capacity(1)}
    while values[tried[-1]] < wanted_per_s:
        if values[tried[-1]] < values[tried[-2]] or tried[-1] >= MAX_DEVICES:
            return _between(tried[max(len(tried) - 3, 0)], tried[-1], wanted_per_s, capacity)
        tried.append(2 * tried[-1])
        values[tried[-1]] = capacity(tried[-1])
    low, high = tried[-2], tried[-1]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if capacity(middle) >= wanted_per_s else (middle, high)
    return high


def _between(
    low: int, high: int, wanted_per_s: float, capacity: Callable[[int], float]
) -> int | None:
    """The same where the peak lies between two numbers: up to the peak, then below it."""
    first, last = low, high
    while last - first > 2:  # ternary search for the peak
        third = max((last - first) // 3, 1)
        if capacity(first + third) < capacity(last - third):
            first += third
        else:
            last -= third
    peak = max(range(first, last + 1), key=lambda n: capacity(n) if n else 0.0)
    if capacity(max(peak, 1)) < wanted_per_s:
        return None
    high = max(peak, 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if capacity(middle) >= wanted_per_s else (middle, high)
    return high
