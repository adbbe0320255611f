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

from autotune.core.records import Load, Plan, Samples, Window
from autotune.measure.engine import DRAIN_S, size_ladder
from autotune.measure.queueing import ServiceTimes
from autotune.measure.rate_target import (
    MAX_SHARE_OF_LIMIT_RATE,
    MAX_STRETCH,
    PILOT_SHARE,
    REPEATS,
    RateGoal,
    Target,
    find_target,
    least_deviation,
    over_in_long_run,
    replay_error,
    window_counts,
)
from autotune.measure.server_rate import (
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
MAX_PILOTS, PILOT_TOLERANCE = 4, 1.1  # at a server, of which the simulation is only a likeness
SPARE_CALLS = 2.0  # times the requests that a flawless tail needs, so that some may be slow
LOOKS = (0.25, 0.5, 1.0)  # shares of the window after which it is judged
MAX_RATES = 4
CHECKS_FROM = 100  # number of the first window that no verdict waits for; looks are fewer
STEP_DOWN = 0.98  # a rate that did not pass is followed by one this much lower at most
STEP_UP = 1.02  # one that passed by one this much higher at least
FAIL_SIGMAS = 2.33
LONG_N = 250_000  # requests simulated to know the share over the limit
MAX_STEPS_DOWN, MAX_DOUBLINGS = 8, 8  # of rate and of time, to see what would settle a limit


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


def _judged(goal: RateGoal, looks: Sequence[Evidence]) -> Evidence:
    """The last look, with what all looks at its rate say together."""
    last = looks[-1]
    rate, service = last.rate_per_s, last.service
    real = sum(look.over_count for look in looks)
    n = max(sum(look.request_count for look in looks), 1)  # none may come within a short window
    counts = np.zeros(REPEATS)
    for look in looks:
        counts += window_counts(goal, service, rate, look.seed, look.duration_s)
    long_run = over_in_long_run(goal, service, rate, goal.simulated(LONG_N), seed=2)
    share = float(long_run.mean()) + (real - counts.mean()) / n
    spread = max(float(counts.std(ddof=1)), least_deviation(real)) / n
    spread *= 1.1 * max(1.0, math.sqrt((real + 1.0) / (counts.mean() + 1.0)))
    replay = replay_error(goal, rate, variance_ratio(long_run))
    margin = goal.sigmas * math.hypot(spread, replay)
    status: Status = "undecided"
    if share + margin <= goal.allowed:
        status = "pass"
    elif share - FAIL_SIGMAS * spread > goal.allowed:
        status = "fail"
    return replace(last, status=status, share=max(share, 0.0), spread=spread, replay=replay)
