"""One attempt at a configuration: open it, look at its outputs, measure, judge, say how quiet."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import NamedTuple

from autotune.core.errors import TrialError, TrialTimeout, WrongOutput
from autotune.core.objective import METRICS
from autotune.core.outcomes import Outcome
from autotune.core.records import (
    Config,
    Measurement,
    Plan,
    RateFacts,
    Result,
    Samples,
    TrialRecord,
    Verdict,
)
from autotune.devices.base import DeviceInfo
from autotune.measure.equal_work import Agreement
from autotune.measure.judge import SEARCH_ALPHA, in_doubt, judge
from autotune.measure.noise import Trust, measured_s, trust_by_canary, trust_of, with_trust
from autotune.measure.pooling import pooled
from autotune.measure.summary import summarise
from autotune.measure.tail import MAX_LOOKS, look_alpha
from autotune.search.guard import Guard
from autotune.search.watch import Repeats, Watch
from autotune.space.search_space import SearchSpace, TrialOptions
from autotune.trial.group import group_spec, trial_plan
from autotune.trial.rate_search import RateResult, rate_goal, search_rate
from autotune.trial.session import Launcher, Session, open_session
from autotune.workloads import WORKLOADS


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What the trials of a run are measured with.

    Attributes:
        guard: Looks at outputs. watch: Looks at the machine. repeats: How often noisy trials may
            be repeated.
    """

    space: SearchSpace
    info: DeviceInfo
    launcher: Launcher
    guard: Guard
    watch: Watch
    repeats: Repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The time by which a trial's window may be extended.

    Attributes:
        spare_s: What the budget leaves when all trials to come get their usual time.
        share_s: This trial's share of it. `bar`: who promises more throughput may have it all.
    """

    spare_s: float = math.inf
    share_s: float = math.inf
    bar: float = 0.0

    def for_one(self, measurement: Measurement) -> float:
        """Seconds for a configuration with such figures."""
        promises = (measurement.throughput_items_per_s or 0.0) > self.bar
        return self.spare_s if promises else self.share_s


class Attempt(NamedTuple):
    """A configuration measured once; `rate` where its arrival rate was sought."""

    result: Result
    measurement: Measurement
    verdict: Verdict
    trust: Trust
    rate: RateFacts | None = None


def attempt(
    record: TrialRecord, bench: Bench, *, limit_s: float, room: Room, is_first: bool
) -> Attempt:
    """Measure a configuration in a fresh session.

    Args:
        limit_s: Real seconds for all of it.
        room: By how much the window may be extended to settle a limit.
        is_first: True for the first of a run.
    Raises:
        TrialError: It failed, or its outputs are wrong.
    """
    until_s = time.monotonic() + limit_s
    spec = group_spec(record.config, bench.space, bench.info)
    with open_session(spec, bench.launcher, timeout_s=limit_s) as session:
        agreement = bench.guard.check(record.config, session.answers)
        if bench.space.objective.load.seeks_rate:
            sought = _with_rate(record.config, bench.space, session, until_s)
            figures = sought.samples, sought.measurement, sought.verdict
            found = _labelled(*figures, bench, agreement, is_first=is_first)
            return found._replace(rate=sought.facts)
        return _labelled(
            *_settled(bench.space, session, until_s, room), bench, agreement, is_first=is_first
        )


def _labelled(
    result: Result,
    measurement: Measurement,
    verdict: Verdict,
    bench: Bench,
    agreement: Agreement,
    *,
    is_first: bool,
) -> Attempt:
    """The figures with what is known of the machine and of the outputs."""
    ratio = bench.watch.ratio()
    if isinstance(result, Samples):
        trust = trust_of(result, canary_ratio=ratio, is_first=is_first)
    else:
        trust = trust_by_canary(ratio)
    measurement = with_trust(measurement, trust, ratio)
    verdict = in_doubt(verdict, measurement, bench.space.objective)
    measurement = replace(
        measurement,
        output_difference=agreement.difference,
        warnings=(*measurement.warnings, *agreement.caveats),
    )
    return Attempt(result, measurement, verdict, trust)


def _settled(
    space: SearchSpace, session: Session, until_s: float, room: Room
) -> tuple[Result, Measurement, Verdict]:
    """Measure one window; double it, twice at most, where that settles a limit in time."""
    plan = trial_plan(space)
    # The limit of time holds for the trial as a whole, not for each of its steps.
    session.warm_up(replace(plan, deadline_s=until_s - time.monotonic()))
    result = _measured(session, plan, until_s)
    looks, alpha = _looks(space, result, room)
    for look in range(1, MAX_LOOKS + 1):
        measurement = summarise(result)
        verdict = judge(result, measurement, space.objective, alpha=alpha)
        if look >= looks or not isinstance(result, Samples):
            break
        had_s = measured_s(result)
        most_s = had_s * 2.0 ** (looks - look) - had_s
        needed_s = verdict.needed_s
        if verdict.outcome is not Outcome.UNDECIDED or needed_s is None or needed_s > most_s:
            break
        left_s = until_s - time.monotonic()
        if had_s > min(room.for_one(measurement), left_s) or not trust_of(result).is_quiet:
            break
        try:
            further = _measured(session, _doubled(plan, look), until_s)
        except TrialTimeout:
            break  # it was the extension that took too long
        result = pooled([result, further])
    if verdict.outcome is Outcome.WRONG_OUTPUT:
        again, tail = ("", "") if isinstance(result, Samples) else (result.again, result.log_tail)
        raise WrongOutput(f"{verdict.reasons[0]}{again}", log_tail=tail)
    return result, measurement, verdict


def _measured(session: Session, plan: Plan, until_s: float) -> Result:
    session.begin(replace(plan, deadline_s=until_s - time.monotonic()))
    return session.result()


def _looks(space: SearchSpace, result: Result, room: Room) -> tuple[int, float]:
    """How often a trial may be judged, and the level of each time, fixed beforehand."""
    limits = space.objective.limits
    if not isinstance(result, Samples) or not any(METRICS[x.metric].quantile for x in limits):
        return 1, SEARCH_ALPHA
    window_s = measured_s(result)
    looks = 1 + (room.spare_s >= window_s) + (room.spare_s >= 3.0 * window_s)
    return looks, look_alpha(SEARCH_ALPHA, looks)


def _doubled(plan: Plan, look: int) -> Plan:
    """As much again as was measured so far, with arrivals of its own."""
    factor = 2 ** (look - 1)
    windows = tuple(
        replace(
            window,
            duration_s=None if window.duration_s is None else factor * window.duration_s,
            iterations=None if window.iterations is None else factor * window.iterations,
        )
        for window in plan.windows
    )
    return replace(plan, windows=windows, arrival_seed=look)


def _with_rate(config: Config, space: SearchSpace, session: Session, until_s: float) -> RateResult:
    """The configuration's own highest rate, estimated: a trial is too short to prove it."""
    window_s = space.trial.duration_s or TrialOptions().duration_s or 0.0
    goal = rate_goal(
        config,
        space.objective,
        window_s=window_s,
        seed=space.trial.seed,
        in_server=WORKLOADS[space.workload.kind].runs == "server",
    )
    return search_rate(
        session,
        replace(goal, proves=False),
        space.objective,
        left_s=lambda: until_s - time.monotonic(),
    )


def quietest(
    record: TrialRecord, bench: Bench, *, limit_s: float, room: Room, is_first: bool
) -> tuple[TrialRecord, Result]:
    """Measure a configuration, again while it is noisy and there is time; the quietest counts.

    Returns:
        The record with all its measurements, the one that counts last, and that one's result.
    Raises:
        TrialError: The first attempt failed.
    """
    attempts: list[Attempt] = []
    real_until_s = time.monotonic() + limit_s
    while True:
        began_s = bench.launcher.now_s()
        left_s = real_until_s - time.monotonic()
        try:
            found = attempt(record, bench, limit_s=left_s, room=room, is_first=is_first)
        except TrialError:
            if not attempts:
                raise
            break  # it has run before: what the repeat met says nothing of the configuration
        attempts.append(found)
        cost_s = bench.launcher.now_s() - began_s
        if len(attempts) > 1:
            bench.repeats.charge(cost_s)
        lasts = bench.watch.is_slow and not found.trust.may_pass
        if found.trust.is_quiet or lasts or cost_s > min(room.spare_s, left_s):
            break
        if not bench.repeats.allows(len(attempts) - 1, cost_s):
            break
        is_first = False
    best = min(attempts, key=lambda a: a.trust.level)
    others = tuple(a.measurement for a in attempts if a is not best)
    measurements = (*others, best.measurement)
    return (
        replace(record, measurements=measurements, verdict=best.verdict, rate=best.rate),
        best.result,
    )
