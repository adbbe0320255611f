"""The highest arrival rate whose latency limit holds: which window to measure next.

A rate is sought in three steps. Calls of several sizes, back to back, tell how long a call takes.
An event simulation of the queue, fed with these times, tells near which rate the limit is met;
a short window at that rate shows what the model does differently under load. Windows at a rate
with a margin then prove it.

The margin is in the share of requests over the limit, not in the rate: near its capacity a
server's share doubles within 3 % of the rate, far below it takes 40 %. And most of what a short
window shows is its own draw of arrivals. A window is therefore compared with simulations of the
same arrivals, and only the difference corrects the simulation's long-run share.

All functions are pure: the same history gives the same plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from autotune.core.records import Floats, Load, Plan, Samples, Window
from autotune.measure.arrivals import arrival_times
from autotune.measure.engine import DRAIN_S, size_ladder
from autotune.measure.queueing import ServiceTimes, simulate, simulations
from autotune.measure.server_rate import (
    ServerLimit,
    calibrated,
    floor_of,
    judged,
    over_limits,
    saturated_per_s,
    severity_s,
)
from autotune.measure.tail import (
    Status,
    calls_needed,
    judge_tail,
    look_alpha,
    variance_ratio,
)

LADDER_SIZES = 6
SERVER_LADDER_SIZES = 4  # bursts of requests that may take seconds each
LADDER_S = 0.6  # for the calls back to back, all sizes together
PILOT_S = 3.0
PILOT_SHARE = 0.93  # of the rate at which the simulation meets the limit
MAX_PILOTS, PILOT_TOLERANCE = 4, 1.1  # at a server, of which the simulation is only a likeness
SPARE_CALLS = 2.0  # times the requests that a flawless tail needs, so that some may be slow
MAX_STRETCH = 4  # of the window where the share over the limit changes slowly with the rate
WORTHWHILE_SHARE = 0.88  # of the limit's rate; a target below that is worth a longer window
LOOKS = (0.25, 0.5, 1.0)  # shares of the window after which it is judged
MAX_RATES = 4
CHECKS_FROM = 100  # number of the first window that no verdict waits for; looks are fewer
STEP_DOWN = 0.98  # a rate that did not pass is followed by one this much lower at most
STEP_UP = 1.02  # one that passed by one this much higher at least
MAX_SHARE_OF_LIMIT_RATE = 0.97  # where the simulated share is steep, its own error is in the rate
REPLAY_S = 300.0  # the stretch of time in which the recommended rate is to hold
FAIL_SIGMAS = 2.33
# A pass does with fewer, as a rate is chosen that leaves one spread more: of simulated studies,
# looks and all, 279 of 280 held with 2 sigmas, 689 of 700 with 1.83, at a rate 1 % higher.
SPARE_SIGMAS = 0.5
REPEATS = 10  # simulations of the same arrivals
SCREEN_N, CURVE_N, LONG_N = 10_000, 50_000, 250_000  # requests simulated: to rank a rate,
# to find it, to know its share over the limit; that many times `max_batch / BATCH_OF_N` if more,
# since a queue forgets by calls, not by requests
BATCH_OF_N = 24
LIMIT_N, MAX_N = 100_000, 2_000_000  # to compare two configurations' rates; at most, ever
SPREAD_N = 50_000  # requests simulated to know how much windows differ; likewise
MIN_RATE_SHARE = 0.01  # of the capacity; a lower rate is none
FIRST_GUESSES = (0.5, 0.9, 1.0)  # of the capacity
NEXT_GUESSES = (0.93, 1.03)  # of the last limit's rate
MAX_STEPS = 12
MAX_STEPS_DOWN, MAX_DOUBLINGS = 8, 8  # of rate and of time, to see what would settle a limit
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evidence:
    """What one plan has shown.

    Attributes:
        kind: "known": call times of an earlier search; "ladder": calls back to back; "pilot",
            "look": an open window.
        rate_per_s: Of the window; 0 for the ladder. `duration_s`: measured.
        service: Call times, all that was seen until now.
        target: For the next window.
        over_count, request_count: Requests over the limit, and all, of this window.
        status: Whether the rate holds, by all looks at it together.
        cap_per_s: Of a server that bursts have saturated: more it cannot serve.
        overs: Of a look at a server, which requests were over each of its limits, and `floor`,
            samples that count as one.
        share: Estimate of the long-run share over the limit, by all looks at the rate; `spread`
            is its standard deviation and `replay` that of a replay of finite length.
    """

    kind: Literal["known", "ladder", "pilot", "look"]
    rate_per_s: float = 0.0
    seed: int = 0
    duration_s: float
    service: ServiceTimes
    target: Target
    over_count: int = 0
    request_count: int = 0
    status: Status = "undecided"
    cap_per_s: float = math.inf
    overs: tuple[npt.NDArray[np.bool_], ...] = ()
    floor: float = 1.0
    share: float = 0.0
    spread: float = 0.0
    replay: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a search for a rate has come to.

    Attributes:
        status: "pass": `rate_per_s` was shown to hold; "fail": the limit holds at no rate;
            "undecided": `rate_per_s` is what the simulation promises.
        needed_s: Further measuring that might settle it; None if settled, or unknown.
    """

    status: Status
    rate_per_s: float
    needed_s: float | None = None


def proof_range_s(window_s: float) -> tuple[float, float]:
    """Least and most seconds of measuring at one rate that can show it to hold."""
    return LOOKS[0] * window_s, MAX_STRETCH * window_s


def binding(goal: RateGoal, service: ServiceTimes) -> RateGoal:
    """The goal with that one of its limits which the simulation meets at the least rate."""
    if not goal.others:
        return goal
    limits = ((goal.limit_s, goal.quantile), *goal.others)
    goals = [replace(goal, limit_s=s, quantile=q, others=()) for s, q in limits]
    return min(goals, key=lambda one: limit_rate(one, service))


def known(goal: RateGoal, service: ServiceTimes) -> Evidence:
    """The beginning of a search from call times that are known already."""
    target = find_target(goal, service)
    return Evidence(kind="known", duration_s=0.0, service=service, target=target)


def next_plan(goal: RateGoal, history: Sequence[Evidence]) -> Plan | None:
    """What to measure next; None: nothing more is worth it."""
    if not history:
        return _ladder_plan(goal)
    last = history[-1]
    target = last.target
    if target.rate_per_s <= 0.0 or (last.kind != "look" and target.rate_per_s < goal.worth_per_s):
        return None
    if last.kind == "ladder" or _wants_pilot(goal, history):
        rate = PILOT_SHARE * target.limit_rate_per_s
        return window_plan(goal, rate, min(PILOT_S, goal.window_s), number=0)
    if not goal.proves:
        return None
    rate_and_time = _next_window(goal, history)
    if rate_and_time is None:
        return None
    rate, duration_s = rate_and_time
    number = 1 + sum(e.kind == "look" for e in history)
    return window_plan(goal, rate, duration_s, number)


def _wants_pilot(goal: RateGoal, history: Sequence[Evidence]) -> bool:
    """True if the last pilot at a server was far from where its limits now seem to be met."""
    pilots = [e for e in history if e.kind == "pilot"]
    if not goal.server_limits or history[-1].kind != "pilot" or len(pilots) >= MAX_PILOTS:
        return False
    ratio = PILOT_SHARE * history[-1].target.limit_rate_per_s / history[-1].rate_per_s
    return abs(math.log(ratio)) > math.log(PILOT_TOLERANCE)


def check_plan(goal: RateGoal, history: Sequence[Evidence], number: int) -> Plan | None:
    """A further window where a search stands, with arrivals of its own.

    None if the limit holds at no rate.
    """
    finding, limit_rate = conclude(goal, history), history[-1].target.limit_rate_per_s
    rate = finding.rate_per_s or PILOT_SHARE * limit_rate
    if rate <= 0.0:
        return None
    return window_plan(goal, rate, min(PILOT_S, LOOKS[0] * goal.window_s), CHECKS_FROM + number)


def window_plan(goal: RateGoal, rate: float, duration_s: float, number: int) -> Plan:
    """A window at a rate, with the arrivals of its number."""
    return Plan(
        windows=(Window(duration_s=duration_s),),
        load=Load(kind=goal.kind, rate_per_s=rate),
        arrival_seed=goal.seed + number,
        deadline_s=goal.deadline_s + duration_s + DRAIN_S,
    )


def evaluate(goal: RateGoal, history: Sequence[Evidence], plan: Plan, samples: Samples) -> Evidence:
    """What the samples of a plan from `next_plan` say."""
    times_s = samples.end_s - samples.start_s
    duration_s = sum(window.duration_s or 0.0 for window in plan.windows)
    if not history:
        cap_per_s = math.inf
        if goal.server_limits:
            cap_per_s = saturated_per_s(samples.item_count, times_s)
            times_s = severity_s(samples, goal.server_limits)
        service = ServiceTimes.fit(samples.item_count, times_s, least=1)
        return Evidence(
            kind="ladder",
            duration_s=duration_s,
            service=service,
            target=_capped(find_target(goal, service), cap_per_s),
            cap_per_s=cap_per_s,
        )
    if goal.server_limits:
        return _seen_at_server(goal, history, plan, samples)
    service = history[-1].service.refitted(samples.item_count, times_s)
    rate = plan.load.rate_per_s or 0.0
    latency_s = samples.request_latency_s()
    evidence = Evidence(
        kind="pilot" if history[-1].kind == "ladder" else "look",
        rate_per_s=rate,
        seed=plan.arrival_seed,
        duration_s=duration_s,
        service=service,
        target=find_target(goal, service, history[-1].target.limit_rate_per_s),
        over_count=int((latency_s > goal.limit_s).sum()),
        request_count=latency_s.size,
    )
    if evidence.kind == "pilot":
        return evidence
    return _judged(goal, [*_looks_at(history, rate), evidence])


def _seen_at_server(
    goal: RateGoal, history: Sequence[Evidence], plan: Plan, samples: Samples
) -> Evidence:
    """What an open window at a server says; a pilot until the likeness fits."""
    rate = plan.load.rate_per_s or 0.0
    severe_s = severity_s(samples, goal.server_limits)
    service = history[-1].service
    if severe_s.size == samples.arrivals_s[0].size:
        service = calibrated(service, samples.arrivals_s[0], severe_s, max_batch=goal.max_batch)
    is_pilot = history[-1].kind == "ladder" or _wants_pilot(goal, history)
    cap_per_s = history[-1].cap_per_s
    target = find_target(goal, service, history[-1].target.limit_rate_per_s)
    evidence = Evidence(
        kind="pilot" if is_pilot else "look",
        rate_per_s=rate,
        seed=plan.arrival_seed,
        duration_s=sum(window.duration_s or 0.0 for window in plan.windows),
        service=service,
        target=_long_enough(goal, _capped(target, cap_per_s), floor_of(samples)),
        cap_per_s=cap_per_s,
        over_count=int((severe_s > goal.limit_s).sum()),
        request_count=samples.arrivals_s[0].size,
        overs=over_limits(samples, goal.server_limits),
        floor=floor_of(samples),
    )
    if is_pilot:
        return evidence
    looks = [*_looks_at(history, rate), evidence]
    status, worst, allowed = judged(
        [look.overs for look in looks],
        goal.server_limits,
        alpha=goal.alpha,
        floor=max(look.floor for look in looks),
    )
    scale = goal.allowed / allowed
    return replace(
        evidence,
        status=status,
        share=worst.estimate * scale,
        spread=(worst.upper - worst.estimate) * scale / goal.sigmas,
    )


def _capped(target: Target, cap_per_s: float) -> Target:
    """A target at what can be served at most: a short window does not show a queue that grows."""
    rate = min(target.rate_per_s, MAX_SHARE_OF_LIMIT_RATE * cap_per_s)
    limit_rate = min(target.limit_rate_per_s, cap_per_s)
    return replace(target, limit_rate_per_s=limit_rate, rate_per_s=rate)


def _long_enough(goal: RateGoal, target: Target, floor: float) -> Target:
    """A target whose window has the requests that a pass needs, few of them over the limit."""
    if target.rate_per_s <= 0.0:
        return target
    least = calls_needed(goal.quantile, look_alpha(goal.alpha), floor)
    wanted_s = SPARE_CALLS * least / target.rate_per_s
    window_s = min(max(target.window_s, wanted_s), MAX_STRETCH * goal.window_s)
    return replace(target, window_s=window_s)


def conclude(goal: RateGoal, history: Sequence[Evidence]) -> Finding:
    """The best that the history shows."""
    last = history[-1]
    passed = [e for e in history if e.status == "pass"]
    if passed:
        best = max(passed, key=lambda e: e.rate_per_s)
        return Finding(status="pass", rate_per_s=best.rate_per_s)
    if last.target.limit_rate_per_s <= 0.0:
        # Even a lone request: a few slow calls are not enough to say so.
        lone_s = float(last.service.median_s(np.ones(1))[0]) * last.service.residuals
        status = judge_tail(lone_s > goal.limit_s, quantile=goal.quantile).status
        return Finding(status="fail" if status == "fail" else "undecided", rate_per_s=0.0)
    rate = last.target.rate_per_s
    if last.kind == "look":
        rate = min(rate, STEP_DOWN * last.rate_per_s)
    return Finding(status="undecided", rate_per_s=rate, needed_s=_needed_s(goal, history))


def _needed_s(goal: RateGoal, history: Sequence[Evidence]) -> float | None:
    """Measuring that would show a rate to hold, by what was seen of the share over the limit."""
    last = history[-1]
    if last.kind != "look":
        return last.target.window_s or None
    seconds = sum(look.duration_s for look in _looks_at(history, last.rate_per_s))
    least: float | None = None
    for step in range(1, MAX_STEPS_DOWN + 1):
        lower = STEP_DOWN**step
        share = max(last.share, 0.1 * goal.allowed) * lower**last.target.steepness
        # Of the root of the share, as of any count of rare events.
        spread = last.spread * math.sqrt(min(share / max(last.share, share), 1.0))
        needed_s = _seconds_to_pass(goal, share, spread, last.replay, seconds)
        if needed_s is not None and needed_s <= MAX_STRETCH * goal.window_s:
            return needed_s
        if needed_s is not None:
            least = min(least or needed_s, needed_s)
    return least


def _seconds_to_pass(
    goal: RateGoal, share: float, spread: float, replay: float, seconds: float
) -> float | None:
    """Time at a rate with that share, after `seconds` of which its spread is as given."""
    for doubling in range(MAX_DOUBLINGS + 1):
        s = spread / math.sqrt(2.0**doubling)
        if share + goal.sigmas * math.hypot(s, replay) + s <= goal.allowed:
            return seconds * 2.0**doubling
    return None


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


# --- which window ------------------------------------------------------------------------------


def _ladder_plan(goal: RateGoal) -> Plan:
    sizes = size_ladder(goal.max_batch)
    count = SERVER_LADDER_SIZES if goal.server_limits else LADDER_SIZES
    picks = np.unique(np.linspace(0, len(sizes) - 1, min(count, len(sizes))).round())
    each_s = LADDER_S / picks.size
    windows = tuple(Window(duration_s=each_s, item_count=sizes[int(i)]) for i in picks)
    return Plan(windows=windows, deadline_s=goal.deadline_s)


def _next_window(goal: RateGoal, history: Sequence[Evidence]) -> tuple[float, float] | None:
    """The next look's rate and duration."""
    last = history[-1]
    looks = _looks_at(history, last.rate_per_s)
    if looks and last.status == "undecided" and len(looks) < len(LOOKS):
        share = LOOKS[len(looks)] - LOOKS[len(looks) - 1]
        return last.rate_per_s, share * _window_s(history, looks[0])
    rate = _next_rate(history)
    return None if rate is None else (rate, LOOKS[0] * last.target.window_s)


def _next_rate(history: Sequence[Evidence]) -> float | None:
    """Down until one passes, then one try upward, then at most one in between."""
    last = history[-1]
    looks = [e for e in history if e.kind == "look"]
    if not looks:
        return last.target.rate_per_s
    tried = dict.fromkeys(e.rate_per_s for e in looks)
    if len(tried) >= MAX_RATES:
        return None
    passed = max((e.rate_per_s for e in looks if e.status == "pass"), default=None)
    if passed is None:
        return min(last.target.rate_per_s, STEP_DOWN * last.rate_per_s)
    higher = [rate for rate in tried if rate > passed]
    rate = last.target.rate_per_s if not higher else math.sqrt(passed * min(higher))
    return rate if rate >= STEP_UP * passed else None


def _window_s(history: Sequence[Evidence], first_look: Evidence) -> float:
    """The time at a rate that was counted on when it was chosen."""
    return history[history.index(first_look) - 1].target.window_s


def _looks_at(history: Sequence[Evidence], rate: float) -> list[Evidence]:
    return [e for e in history if e.kind == "look" and e.rate_per_s == rate]


# --- what the simulation says ------------------------------------------------------------------


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
    ratio = variance_ratio(_over(goal, service, rate, goal.simulated(CURVE_N), seed=1))
    replay = _replay_error(goal, rate, ratio)
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
            over = _over(self._goal, self._service, rate, self._n)
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


def _over(
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


def _window_counts(
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
    counts = _window_counts(goal, service, rate, goal.seed + 1, shorter * duration_s)
    deviation = float(counts.std(ddof=1)) / math.sqrt(shorter)
    return max(deviation, _least_deviation(counts.mean() / shorter)) / n


def _least_deviation(count: float) -> float:
    return math.sqrt(max(count, 3.0)) / 2.0


def _replay_error(goal: RateGoal, rate: float, ratio: float) -> float:
    """Standard deviation of the share over the limit in a replay, from its finite length."""
    return math.sqrt(goal.allowed * ratio / (REPLAY_S * rate))


def _judged(goal: RateGoal, looks: Sequence[Evidence]) -> Evidence:
    """The last look, with what all looks at its rate say together."""
    last = looks[-1]
    rate, service = last.rate_per_s, last.service
    real = sum(look.over_count for look in looks)
    n = max(sum(look.request_count for look in looks), 1)  # none may come within a short window
    counts = np.zeros(REPEATS)
    for look in looks:
        counts += _window_counts(goal, service, rate, look.seed, look.duration_s)
    long_run = _over(goal, service, rate, goal.simulated(LONG_N), seed=2)
    share = float(long_run.mean()) + (real - counts.mean()) / n
    spread = max(float(counts.std(ddof=1)), _least_deviation(real)) / n
    spread *= 1.1 * max(1.0, math.sqrt((real + 1.0) / (counts.mean() + 1.0)))
    replay = _replay_error(goal, rate, variance_ratio(long_run))
    margin = goal.sigmas * math.hypot(spread, replay)
    status: Status = "undecided"
    if share + margin <= goal.allowed:
        status = "pass"
    elif share - FAIL_SIGMAS * spread > goal.allowed:
        status = "fail"
    return replace(last, status=status, share=max(share, 0.0), spread=spread, replay=replay)
