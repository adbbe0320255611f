"""What a window of requests to a server says of the rate that it holds.

How a server queues and batches is not seen. The queue that `measure.queueing` simulates serves as
a likeness of it: its call times are those of bursts sent to the idle server, and their level is
moved until a simulation of a window's arrivals has that window's times. The likeness says where to
measure next; whether a limit holds is judged by the requests alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from autotune.core.records import Floats, Ints, Samples, Series
from autotune.measure.noise import in_flight
from autotune.measure.queueing import ServiceTimes, simulate
from autotune.measure.tail import Status, TailVerdict, judge_tail, look_alpha

MAX_BURST = 64  # requests at once; the likeness takes no larger batches
MIN_REQUESTS = 20  # fewer say nothing of a level
TAIL_REQUESTS = 5.0  # that lie above the quantile at which the level is read
SATURATED = 1.15  # times the rate of a smaller burst: a server that gains more has room left
LEVELS = (0.02, 50.0)  # factor of the level, least and most
STEPS = 12  # of the search for it: within 0.2 %

ServerLimit = tuple[Series, float, float]
"""Which time of a request, its bound in seconds, and the quantile that has to keep it."""


def severity_s(samples: Samples, limits: Sequence[ServerLimit]) -> Floats:
    """How bad each request was: its time as if all limits were the first one, the worst of them.

    Only limits on the highest quantile count here; infinite for a request that was never served.
    """
    highest = max(quantile for *_, quantile in limits)
    first = next(bound for _, bound, quantile in limits if quantile == highest)
    worst: Floats | None = None
    for series, bound, quantile in limits:
        times_s = samples.aligned(series)
        if quantile < highest or times_s is None:
            continue
        scaled = times_s * (first / bound)
        worst = scaled if worst is None else np.fmax(worst, scaled)
    return np.empty(0) if worst is None else worst[~np.isnan(worst)]


def saturated_per_s(sizes: Ints, times_s: Floats) -> float:
    """Requests per second in bursts that saturate the server; infinite if the largest does not."""
    by_size = {
        int(size): float(size) / float(np.median(times_s[sizes == size]))
        for size in np.unique(sizes)
    }
    rates = [by_size[size] for size in sorted(by_size)]
    if len(rates) < 2 or rates[-1] > SATURATED * max(rates[:-1]):
        return math.inf
    return max(rates)


def over_limits(
    samples: Samples, limits: Sequence[ServerLimit]
) -> tuple[npt.NDArray[np.bool_], ...]:
    """Per limit, which requests were over it; unknown times count as over."""
    flags = []
    for series, bound, _ in limits:
        times_s = samples.series(series)
        if times_s is None:
            times_s = np.full(1, np.inf)
        flags.append(times_s > bound)
    return tuple(flags)


def judged(
    looks: Sequence[Sequence[npt.NDArray[np.bool_]]],
    limits: Sequence[ServerLimit],
    *,
    alpha: float,
    floor: float,
) -> tuple[Status, TailVerdict, float]:
    """Whether a rate holds every limit, by all looks at it together.

    Args:
        looks: Of every look the flags of `over_limits`.
        floor: Samples that count as one at least.
    Returns:
        The status, the verdict on the worst limit, and the share that this one allows.
    """
    verdicts = [
        (judge_tail(flags, quantile=q, alpha=look_alpha(alpha), variance_floor=floor), 1.0 - q)
        for (_, _, q), flags in zip(
            limits, map(np.concatenate, zip(*looks, strict=True)), strict=True
        )
    ]
    statuses = {verdict.status for verdict, _ in verdicts}
    status: Status = (
        "fail" if "fail" in statuses else "undecided" if "undecided" in statuses else "pass"
    )
    worst, allowed = max(verdicts, key=lambda pair: pair[0].upper / pair[1])
    return status, worst, allowed


def floor_of(samples: Samples) -> float:
    """Samples that count as one at least: what a server has at a time goes together."""
    return max(1.0, in_flight(samples)) if samples.end_s.size else 1.0


def calibrated(
    service: ServiceTimes, arrivals_s: Floats, times_s: Floats, *, max_batch: int
) -> ServiceTimes:
    """The likeness at the level at which it has a window's times.

    Args:
        arrivals_s: Of the window's requests, ascending.
        times_s: What they took, as `severity_s` has it.
    """
    if times_s.size < MIN_REQUESTS:
        return service
    q = min(0.99, 1.0 - TAIL_REQUESTS / times_s.size)
    wanted_s = float(np.quantile(times_s, q, method="inverted_cdf"))
    if not np.isfinite(wanted_s):
        return _as_slow(service, arrivals_s, times_s, max_batch)
    low, high = LEVELS
    for _ in range(STEPS):
        level = float(np.sqrt(low * high))
        rng = np.random.default_rng(0)
        found_s = simulate(arrivals_s, service.slowed(level), rng, max_batch=max_batch)
        if float(np.quantile(found_s, q, method="inverted_cdf")) > wanted_s:
            high = level
        else:
            low = level
    return service.slowed(float(np.sqrt(low * high)))


def _as_slow(
    service: ServiceTimes, arrivals_s: Floats, times_s: Floats, max_batch: int
) -> ServiceTimes:
    """Where many were never served: its capacity is what was."""
    span_s = max(float(np.ptp(arrivals_s)), 1e-3)
    served_per_s = max(int(np.isfinite(times_s).sum()), 1) / span_s
    return service.slowed(service.capacity_per_s(max_batch, 1) / served_per_s)
