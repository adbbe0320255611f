"""An exact event simulation of the queue of an open load, fed with measured call times.

It takes milliseconds where measuring takes seconds. What it leaves out is what the model does
differently under load, so that its answer is where to measure, never a proof.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.core.records import Floats, Ints, RateFacts

MIN_CALLS_PER_KNOT = 5  # below that the median of a size is pooled with its neighbour's
MIN_CALLS_PER_LEVEL = 25  # of further calls, whose level shifts what is known already


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTimes:
    """How long a call takes, by its number of items.

    Attributes:
        sizes, medians_s: Knots of the median call time, straight lines between them; it stays
            what it is below the smallest size and grows in proportion above the largest.
        residuals: Call times over that median, of all sizes together.
    """

    sizes: Floats
    medians_s: Floats
    residuals: Floats

    @classmethod
    def fit(cls, items: Ints, times_s: Floats, *, least: int = MIN_CALLS_PER_KNOT) -> ServiceTimes:
        """From calls as measured.

        Args:
            least: Calls that make a knot; 1 where the sizes were chosen.
        Raises:
            ValueError: There are none.
        """
        if times_s.size == 0:
            raise ValueError("call times are needed")
        sizes, medians_s = _knots(items, times_s, least)
        bare = cls(sizes=sizes, medians_s=medians_s, residuals=np.ones(1))
        return cls(sizes=sizes, medians_s=medians_s, residuals=times_s / bare.median_s(items))

    @classmethod
    def of_facts(cls, facts: RateFacts) -> ServiceTimes:
        """As a search for a rate has kept them."""
        return cls(
            sizes=np.array(facts.sizes),
            medians_s=np.array(facts.medians_s),
            residuals=np.array(facts.residuals),
        )

    def slowed(self, factor: float) -> ServiceTimes:
        """The same where everything takes `factor` times as long."""
        return replace(self, medians_s=self.medians_s * factor)

    def refitted(self, items: Ints, times_s: Floats) -> ServiceTimes:
        """These times moved to the level of further calls, and the residuals of both.

        Sizes that the further calls have not met move with their nearest neighbour.
        """
        if times_s.size == 0:
            return self
        ratios = times_s / self.median_s(items)
        at, levels = _knots(items, ratios, MIN_CALLS_PER_LEVEL)
        sizes = np.unique(np.concatenate([self.sizes, at]))
        medians_s = self.median_s(sizes) * np.interp(sizes, at, levels)
        moved = ServiceTimes(sizes=sizes, medians_s=medians_s, residuals=self.residuals)
        residuals = np.concatenate([self.residuals, times_s / moved.median_s(items)])
        return ServiceTimes(sizes=sizes, medians_s=medians_s, residuals=residuals)

    def median_s(self, items: Ints | Floats) -> Floats:
        """The median time of calls with so many items each."""
        times_s = np.interp(items, self.sizes, self.medians_s)
        return np.asarray(times_s * np.maximum(items / self.sizes[-1], 1.0))

    def capacity_per_s(self, max_batch: int, servers: int) -> float:
        """Items per second with the best batches there can be: beyond it any queue grows."""
        sizes = np.arange(1, max_batch + 1)
        return servers * float((sizes / self.median_s(sizes)).max() / self.residuals.mean())


def _knots(items: Ints, values: Floats, least: int) -> tuple[Floats, Floats]:
    """Medians by size, neighbouring sizes pooled until each knot has `least` calls."""
    order = np.argsort(items, kind="stable")
    items, values = items[order], values[order]
    ends = np.append(np.flatnonzero(np.diff(items)) + 1, items.size)
    sizes: list[float] = []
    medians: list[float] = []
    begin = 0
    for end in ends:
        enough = end - begin >= least or (end == items.size and not sizes)
        if not enough:
            continue
        sizes.append(float(items[begin:end].mean()))
        medians.append(float(np.median(values[begin:end])))
        begin = int(end)
    return np.array(sizes), np.array(medians)


def simulate(
    arrivals_s: Floats,
    service: ServiceTimes,
    rng: np.random.Generator,
    *,
    max_batch: int,
    max_delay_s: float = 0.0,
    servers: int = 1,
) -> Floats:
    """Latency of every request, from its arrival to the end of its call.

    The same as the first of `simulations`.
    """
    return next(
        simulations(
            arrivals_s,
            service,
            [rng],
            max_batch=max_batch,
            max_delay_s=max_delay_s,
            servers=servers,
        )
    )


def simulations(
    arrivals_s: Floats,
    service: ServiceTimes,
    rngs: Iterable[np.random.Generator],
    *,
    max_batch: int,
    max_delay_s: float = 0.0,
    servers: int = 1,
) -> Iterator[Floats]:
    """Latency of every request of the same arrivals, once per generator.

    The rule is that of `request_queue.RequestQueue`: whoever is free first takes, when the batch
    is full or its oldest request has waited for `max_delay_s`.

    Args:
        arrivals_s: Ascending.
        rngs: Each picks the residual of each call.
    """
    count, listed_s = arrivals_s.size, arrivals_s.tolist()
    times_s = service.median_s(np.arange(max_batch + 1)).tolist()
    residuals = np.sort(service.residuals)
    for rng in rngs:
        # One for each request that may begin a call, by its place in the distribution: rates and
        # service times that differ little are then simulated with nearly the same draws.
        picks = (rng.random(count) * residuals.size).astype(np.int64)
        bounds, ends_s = _serve(
            listed_s,
            times_s,
            residuals[picks].tolist(),
            max_batch,
            max_delay_s,
            [-math.inf] * servers,
        )
        ends = np.array(ends_s, dtype=np.float64)
        yield np.repeat(ends, np.diff([*bounds, count])) - arrivals_s


def _serve(
    arrivals_s: Sequence[float],
    times_s: Sequence[float],
    residuals: Sequence[float],
    max_batch: int,
    max_delay_s: float,
    free_s: list[float],
) -> tuple[list[int], list[float]]:
    """First request and end of every call; plain Python, as each depends on the one before."""
    count, first, single = len(arrivals_s), 0, len(free_s) == 1
    bounds: list[int] = []
    ends_s: list[float] = []
    add_bound, add_end, replace_first = bounds.append, ends_s.append, heapq.heapreplace
    while first < count:
        full = first + max_batch
        start_s = arrivals_s[first] + max_delay_s
        if full <= count:
            if arrivals_s[full - 1] < start_s:
                start_s = arrivals_s[full - 1]
        else:
            full = count
        if free_s[0] > start_s:
            start_s = free_s[0]
        end = bisect_right(arrivals_s, start_s, first + 1, full)
        end_s = start_s + times_s[end - first] * residuals[first]
        if single:
            free_s[0] = end_s
        else:
            replace_first(free_s, end_s)
        add_bound(first)
        add_end(end_s)
        first = end
    return bounds, ends_s
