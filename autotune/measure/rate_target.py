"""Where a simulation of the queue sees the highest arrival rate whose latency limit holds.

The simulation is fed with measured call times. It gives the rate at which the limit is just met,
and one that leaves a margin in the share of requests over the limit: near its capacity a server's
share doubles within 3 % of the rate, far below it takes 40 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from autotune.core.records import Floats, Load
from autotune.measure.arrivals import arrival_times
from autotune.measure.queueing import ServiceTimes, simulate, simulations
from autotune.measure.server_rate import ServerLimit
from autotune.measure.tail import variance_ratio

PILOT_SHARE = 0.93  # of the rate at which the simulation meets the limit
MAX_STRETCH = 4  # of the window where the share over the limit changes slowly with the rate
WORTHWHILE_SHARE = 0.88  # of the limit's rate; a target below that is worth a longer window
MAX_SHARE_OF_LIMIT_RATE = 0.97  # where the simulated share is steep, its own error is in the rate
REPLAY_S = 300.0  # the stretch of time in which the recommended rate is to hold
# A pass does with fewer sigmas than alpha would have, as a rate is chosen that leaves one spread
# more: of simulated studies, looks and all, 279 of 280 held with 2 sigmas, 689 of 700 with 1.83,
# at a rate 1 % higher.
SPARE_SIGMAS = 0.5
REPEATS = 10  # simulations of the same arrivals
SCREEN_N, CURVE_N = 10_000, 50_000  # requests simulated: to rank a rate, to find it; that many
# times `max_batch / BATCH_OF_N` if more, since a queue forgets by calls, not by requests
BATCH_OF_N = 24
LIMIT_N, MAX_N = 100_000, 2_000_000  # to compare two configurations' rates; at most, ever
SPREAD_N = 50_000  # to know how much windows differ
MIN_RATE_SHARE = 0.01  # of the capacity; a lower rate is none
FIRST_GUESSES = (0.5, 0.9, 1.0)  # of the capacity
NEXT_GUESSES = (0.93, 1.03)  # of the last limit's rate
MAX_STEPS = 12
RATE_PRECISION, SHARE_PRECISION = 0.005, 0.04  # relative


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RateGoal:
    """What is sought, and of which configuration.

    Attributes:
        limit_s: Latency that a share `quantile` of the requests must keep.
        others: Further such limits, each as (latency in seconds, quantile); `binding` picks one.
        servers: Instances on the queue.
        server_limits: Of a server that queues by itself, all limits that it has to keep; then the
            simulated queue is no more than a likeness of it (see `server_rate`).
        window_s: Time at one rate, up to `MAX_STRETCH` times as long where the limit needs it.
        proves: False: the pilot window is the last; the rate is an estimate.
        alpha: Sets the margin of a pass. With 0.01, 0 to 4 of 100 simulated studies recommend a
            rate that does not hold (benchmarks/arrival_rate.py).
        worth_per_s: A configuration that promises less than this gets no (further) window.
        seed: Of the arrivals; the same for all configurations, a fresh one to confirm.
        deadline_s: For every plan, beyond its windows.
    """

    kind: Literal["poisson", "constant"] = "poisson"
    limit_s: float
    quantile: float = 0.99
    others: tuple[tuple[float, float], ...] = ()
    max_batch: int
    max_delay_s: float = 0.0
    servers: int = 1
    server_limits: tuple[ServerLimit, ...] = ()
    window_s: float = 20.0
    proves: bool = True
    alpha: float = 0.01
    worth_per_s: float = 0.0
    seed: int = 0
    deadline_s: float = 60.0

    @property
    def allowed(self) -> float:
        """The share of requests that may be over the limit."""
        return 1.0 - self.quantile

    def simulated(self, count: int) -> int:
        """Requests to simulate, from the number for small batches."""
        return min(round(count * max(1.0, self.max_batch / BATCH_OF_N)), MAX_N)

    @property
    def sigmas(self) -> float:
        """Standard deviations that a pass leaves to the allowed share."""
        from scipy.special import ndtri

        return float(ndtri(1.0 - self.alpha)) - SPARE_SIGMAS


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the simulation sees the limit.

    Attributes:
        limit_rate_per_s: The rate at which it is just met; 0 if at none.
        rate_per_s: The rate that leaves the margin; 0 if at none.
        window_s: Time at that rate that the margin counts on.
        steepness: d ln share / d ln rate between there and the limit; 0 if unknown.
    """

    limit_rate_per_s: float
    rate_per_s: float
    window_s: float
    steepness: float = 0.0


def binding(goal: RateGoal, service: ServiceTimes) -> RateGoal:
    """The goal with that one of its limits which the simulation meets at the least rate."""
    if not goal.others:
        return goal
    limits = ((goal.limit_s, goal.quantile), *goal.others)
    goals = [replace(goal, limit_s=s, quantile=q, others=()) for s, q in limits]
    return min(goals, key=lambda one: limit_rate(one, service))


def limit_rate(
    goal: RateGoal, service: ServiceTimes, near_per_s: float = 0.0, *, count: int | None = None
) -> float:
    """The highest rate at which a simulation of the queue keeps the limit; 0 if at none.

    Args:
        near_per_s: Where it is likely to be, 0 if unknown.
        count: Requests to simulate; None: enough to compare two configurations.
    """
    count = count or goal.simulated(LIMIT_N)
    return _Curve(goal, service, count, near_per_s).rate_with(goal.allowed)


def simulated_latency_s(goal: RateGoal, service: ServiceTimes, rate_per_s: float) -> Floats:
    """Latency of every request in a simulation of the queue at a rate."""
    count = goal.simulated(CURVE_N)
    load = Load(kind=goal.kind, rate_per_s=rate_per_s)
    arrivals_s = arrival_times(load, seed=0, duration_s=None, count=count)
    return _latency_s(goal, service, arrivals_s, seed=0)


def find_target(goal: RateGoal, service: ServiceTimes, near_per_s: float = 0.0) -> Target:
    """The rate at which the limit is just met, and the one that leaves the margin.

    Args:
        near_per_s: Where the limit's rate was before, 0 if unknown.
    """
    count = goal.simulated(CURVE_N if goal.proves else SCREEN_N)
    curve = _Curve(goal, service, count, near_per_s)
    limit_rate = curve.rate_with(goal.allowed)
    if limit_rate <= 0.0:
        return Target(limit_rate_per_s=0.0, rate_per_s=0.0, window_s=0.0)
    if not goal.proves:
        rate = PILOT_SHARE * limit_rate
        return Target(limit_rate_per_s=limit_rate, rate_per_s=rate, window_s=0.0)
    return _with_margin(goal, service, curve, limit_rate)


def _with_margin(goal: RateGoal, service: ServiceTimes, curve: _Curve, limit_rate: float) -> Target:
    # The margin is computed where it will be needed, and changes with the root of the share.
    share, rate = 0.6 * goal.allowed, curve.rate_with(0.6 * goal.allowed)
    if rate <= 0.0:
        return Target(limit_rate_per_s=limit_rate, rate_per_s=0.0, window_s=0.0)
    spread = _spread(goal, service, rate, goal.window_s)
    ratio = variance_ratio(over_in_long_run(goal, service, rate, goal.simulated(CURVE_N), seed=1))
    replay = replay_error(goal, rate, ratio)
    best, stretch = 0.0, 1
    while stretch <= MAX_STRETCH:
        wanted = _share_with_margin(goal, spread / math.sqrt(stretch * share), replay)
        best = min(curve.rate_with(wanted), MAX_SHARE_OF_LIMIT_RATE * limit_rate)
        if best >= WORTHWHILE_SHARE * limit_rate:
            break
        stretch *= 2
    window_s = min(stretch, MAX_STRETCH) * goal.window_s
    return Target(
        limit_rate_per_s=limit_rate,
        rate_per_s=best,
        window_s=window_s,
        steepness=math.log(goal.allowed / share) / max(math.log(limit_rate / rate), 1e-3),
    )


def _share_with_margin(goal: RateGoal, spread_per_root: float, replay: float) -> float:
    """The share q with q + sigmas sqrt(s^2 + replay^2) + s = allowed, s = spread sqrt(q)."""
    sigmas, low, high = goal.sigmas, 0.02 * goal.allowed, goal.allowed
    for _ in range(20):
        middle = math.sqrt(low * high)
        s = spread_per_root * math.sqrt(middle)
        fits = middle + sigmas * math.hypot(s, replay) + s < goal.allowed
        low, high = (middle, high) if fits else (low, middle)
    return low


class _Curve:
    """The simulated share over the limit by rate, always of the same pattern of arrivals."""

    def __init__(
        self, goal: RateGoal, service: ServiceTimes, n: int, near_per_s: float = 0.0
    ) -> None:
        self._goal, self._service, self._n = goal, service, n
        self._capacity = service.capacity_per_s(goal.max_batch, goal.servers)
        self._known: dict[float, float] = {}
        guesses = [part * self._capacity for part in FIRST_GUESSES]
        if 0.0 < near_per_s < guesses[-1]:
            guesses = [*(part * near_per_s for part in NEXT_GUESSES), guesses[-1]]
        for rate in guesses:
            self.share_at(rate)

    def share_at(self, rate: float) -> float:
        """At least half a request, so that it has a logarithm."""
        if rate not in self._known:
            over = over_in_long_run(self._goal, self._service, rate, self._n)
            self._known[rate] = max(float(over.mean()), 0.5 / self._n)
        return self._known[rate]

    def rate_with(self, share: float) -> float:
        """The highest rate whose share over the limit is at most `share`; 0 if there is none."""
        for _ in range(MAX_STEPS):
            below = [rate for rate, known in self._known.items() if known <= share]
            if not below and self.share_at(MIN_RATE_SHARE * self._capacity) > share:
                return 0.0
            below = below or [MIN_RATE_SHARE * self._capacity]
            low = max(below)
            high = min((r for r in self._known if r > low), default=low)
            if high <= (1.0 + RATE_PRECISION) * low:
                return low
            # Regula falsi between logarithms, kept off the ends so that both move.
            logs = [math.log(self._known[rate]) for rate in (low, high)]
            part = (math.log(share) - logs[0]) / max(logs[1] - logs[0], 1e-9)
            middle: float = low * (high / low) ** min(max(part, 0.1), 0.9)
            if abs(math.log(self.share_at(middle) / share)) < SHARE_PRECISION:
                return middle
        return low


def over_in_long_run(
    goal: RateGoal, service: ServiceTimes, rate: float, n: int, seed: int = 0
) -> npt.NDArray[np.bool_]:
    load = Load(kind=goal.kind, rate_per_s=rate)
    arrivals_s = arrival_times(load, seed=seed, duration_s=None, count=n)
    return _simulated_over(goal, service, arrivals_s, seed)


def _simulated_over(
    goal: RateGoal, service: ServiceTimes, arrivals_s: Floats, seed: int
) -> npt.NDArray[np.bool_]:
    return _latency_s(goal, service, arrivals_s, seed) > goal.limit_s


def _latency_s(goal: RateGoal, service: ServiceTimes, arrivals_s: Floats, seed: int) -> Floats:
    return simulate(
        arrivals_s,
        service,
        np.random.default_rng(seed),
        max_batch=goal.max_batch,
        max_delay_s=goal.max_delay_s,
        servers=goal.servers,
    )


def window_counts(
    goal: RateGoal, service: ServiceTimes, rate: float, seed: int, duration_s: float
) -> Floats:
    """Requests over the limit in `REPEATS` simulations of a window's own arrivals."""
    load = Load(kind=goal.kind, rate_per_s=rate)
    arrivals_s = arrival_times(load, seed=seed, duration_s=duration_s)
    rngs = (np.random.default_rng(k) for k in range(REPEATS))
    latencies_s = simulations(
        arrivals_s,
        service,
        rngs,
        max_batch=goal.max_batch,
        max_delay_s=goal.max_delay_s,
        servers=goal.servers,
    )
    counts = [(latency_s > goal.limit_s).sum() for latency_s in latencies_s]
    return np.array(counts, dtype=np.float64)


def _spread(goal: RateGoal, service: ServiceTimes, rate: float, duration_s: float) -> float:
    """How much the share over the limit differs between windows with the same arrivals."""
    n = rate * duration_s
    shorter = min(1.0, goal.simulated(SPREAD_N) / n)
    counts = window_counts(goal, service, rate, goal.seed + 1, shorter * duration_s)
    deviation = float(counts.std(ddof=1)) / math.sqrt(shorter)
    return max(deviation, least_deviation(counts.mean() / shorter)) / n


def least_deviation(count: float) -> float:
    return math.sqrt(max(count, 3.0)) / 2.0


def replay_error(goal: RateGoal, rate: float, ratio: float) -> float:
    """Standard deviation of the share over the limit in a replay, from its finite length."""
    return math.sqrt(goal.allowed * ratio / (REPLAY_S * rate))
