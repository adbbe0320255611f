"""The search for a configuration's highest sustainable arrival rate, in one session or several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from autotune.core.errors import UsageError
from autotune.core.objective import METRICS, Limit, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, Measurement, Plan, RateFacts, Samples, Verdict
from autotune.core.units import format_duration, format_rate
from autotune.measure.judge import judge
from autotune.measure.pooling import pooled
from autotune.measure.queueing import ServiceTimes
from autotune.measure.rate import (
    Evidence,
    Finding,
    check_plan,
    conclude,
    evaluate,
    known,
    next_plan,
)
from autotune.measure.rate_ratio import Calls
from autotune.measure.rate_target import RateGoal, binding, simulated_latency_s
from autotune.measure.requests import TOO_MANY
from autotune.measure.server_rate import MAX_BURST, severity_s
from autotune.measure.summary import summarise
from autotune.measure.tail import quantile
from autotune.trial.session import Session

_OUTCOMES = {"pass": Outcome.OK, "fail": Outcome.OVER_LIMIT, "undecided": Outcome.UNDECIDED}
MAX_RESIDUALS = 1000  # kept of a trial, 8 kB
LATENCIES = {
    "latency_p50_s": 0.5, "latency_p90_s": 0.9, "latency_p99_s": 0.99, "latency_p999_s": 0.999,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RateResult:
    """What came of a search.

    Attributes:
        samples: Of the windows that stand for the finding: those at the rate that was shown to
            hold, else the last one.
        measurement: Its figures; throughput and arrival rate are the rate that was found.
        facts: What a later search can begin with.
    """

    finding: Finding
    history: tuple[Evidence, ...]
    samples: Samples
    measurement: Measurement
    verdict: Verdict
    facts: RateFacts


def tail_limits(objective: Objective) -> tuple[Limit, ...]:
    """The limits that a rate has to keep: those on quantiles of the latency.

    Raises:
        UsageError: No latency quantile is limited.
    """
    tails = tuple(limit for limit in objective.limits if METRICS[limit.metric].quantile is not None)
    if not tails:
        raise UsageError("load: rate: max needs a limit on a latency quantile, as latency_p99")
    return tails


def _tail(limit: Limit) -> tuple[float, float]:
    return limit.bound, METRICS[limit.metric].quantile or 0.0


def rate_goal(
    config: Config, objective: Objective, *, window_s: float, seed: int, in_server: bool = False
) -> RateGoal:
    """What to look for in a configuration; see `RateGoal` for what can be added.

    Args:
        in_server: The configuration is a server's, which queues by itself.
    """
    tails = tail_limits(objective)
    kind = objective.load.kind
    assert kind == "poisson" or kind == "constant", "only such loads have a rate"
    if in_server:
        highest = max(tails, key=lambda limit: METRICS[limit.metric].quantile or 0.0)
        return RateGoal(
            kind=kind,
            limit_s=highest.bound,
            quantile=_tail(highest)[1],
            max_batch=MAX_BURST,
            server_limits=tuple((METRICS[x.metric].series, *_tail(x)) for x in tails),
            window_s=window_s,
            seed=seed,
        )
    first, *others = map(_tail, tails)
    return RateGoal(
        kind=kind,
        limit_s=first[0],
        quantile=first[1],
        others=tuple(others),
        max_batch=config.batch_size,
        max_delay_s=float(config.get("max_queue_delay", 0.0)),
        servers=config.total_instances,
        window_s=window_s,
        seed=seed,
    )


@dataclass(slots=True, kw_only=True)
class RateSearch:
    """A search under way; each window may be measured in a session of its own.

    Attributes:
        goal: May be changed between windows, as what is worth measuring rises.
        history: What was found so far. `measured`: the samples of each part of it that has any.
        checks: How many windows were measured that no verdict waited for.
    """

    goal: RateGoal
    objective: Objective
    history: list[Evidence] = field(default_factory=list)
    measured: dict[int, Samples] = field(default_factory=dict)
    checks: int = 0
    _warm: Session | None = None

    @classmethod
    def begun_with(
        cls, facts: RateFacts | None, goal: RateGoal, objective: Objective
    ) -> RateSearch:
        """A search that begins with what an earlier one has found; None: with nothing.

        An earlier one that saw the limit hold at no rate may have been disturbed.
        """
        search = cls(goal=goal, objective=objective)
        if facts is not None and facts.rate_per_s > 0.0:
            service = ServiceTimes.of_facts(facts)
            search.goal = binding(goal, service)
            search.history.append(known(search.goal, service))
        return search

    @property
    def plan(self) -> Plan | None:
        """What to measure next; None: nothing more is worth it."""
        return next_plan(self.goal, self.history)

    @property
    def has_calls(self) -> bool:
        """True if anything was measured: at a low rate no request may come within a window."""
        return any(samples.start_s.size for samples in self.measured.values())

    @property
    def promise_per_s(self) -> float:
        """The rate that it may come to, infinite if nothing is known yet."""
        return self.history[-1].target.rate_per_s if self.history else float("inf")

    def measure(self, session: Session, plan: Plan) -> Samples:
        """Measure what `plan` says.

        Raises:
            TrialError: The configuration failed.
        """
        self._warm_up(session, plan)
        samples = session.measure(plan)
        assert isinstance(samples, Samples)
        self.measured[len(self.history)] = samples
        evidence = evaluate(self.goal, self.history, plan, samples)
        if self.goal.others:
            # Call times are known now, and with them which of the limits is met first.
            self.goal = binding(self.goal, evidence.service)
            evidence = evaluate(self.goal, self.history, plan, samples)
        self.history.append(evidence)
        return samples

    def check(self, session: Session) -> Samples | None:
        """Measure another window where the search stands; it changes nothing of that.

        None if the limit holds at no rate.

        Raises:
            TrialError: The configuration failed.
        """
        plan = check_plan(self.goal, self.history, self.checks)
        if plan is None:
            return None
        self.checks += 1
        self._warm_up(session, plan)
        samples = session.measure(plan)
        assert isinstance(samples, Samples)
        return samples

    def _warm_up(self, session: Session, plan: Plan) -> None:
        """Once per session, for open windows: they bring batch sizes of their own."""
        if plan.load.is_open and session is not self._warm:
            session.warm_up(plan)
            self._warm = session

    def result(self) -> RateResult:
        """What it has come to; it has calls."""
        finding = conclude(self.goal, self.history)
        samples = self._shown(finding)
        measurement = replace(
            summarise(samples),
            arrival_rate_per_s=finding.rate_per_s,
            throughput_items_per_s=finding.rate_per_s,
            throughput_ci95_items_per_s=None,
            duration_s=sum(e.duration_s for e in self.history),
        )
        in_server = bool(self.goal.server_limits)  # of a server's times there is no simulation
        if finding.status == "undecided" and finding.rate_per_s > 0.0 and in_server:
            measurement = replace(
                measurement, estimated=("throughput_items_per_s", "arrival_rate_per_s")
            )
        elif finding.status == "undecided" and finding.rate_per_s > 0.0:
            measurement = _at_rate(measurement, self.goal, self.history[-1].service, finding)
        return RateResult(
            finding=finding,
            history=tuple(self.history),
            samples=samples,
            measurement=measurement,
            verdict=_verdict(finding, self.goal, self.objective, samples, measurement),
            facts=_facts(finding, self.history[-1]),
        )

    def _shown(self, finding: Finding) -> Samples:
        rate = finding.rate_per_s
        looks = [
            samples
            for index, samples in self.measured.items()
            if self.history[index].kind == "look" and self.history[index].rate_per_s == rate
        ]
        if finding.status != "pass" or not looks:
            return next(s for s in reversed(self.measured.values()) if s.start_s.size)
        together = pooled(looks)
        assert isinstance(together, Samples)
        return together


def search_rate(
    session: Session,
    goal: RateGoal,
    objective: Objective,
    *,
    left_s: Callable[[], float] = lambda: float("inf"),
) -> RateResult:
    """Measure in one session until the rate is settled or nothing more is worth it.

    Args:
        left_s: Seconds left; a window that does not fit is not begun, the first one apart.
    Raises:
        TrialError: The configuration failed.
    """
    search = RateSearch(goal=goal, objective=objective)
    while (plan := search.plan) is not None:
        wanted_s = sum(window.duration_s or 0.0 for window in plan.windows)
        if search.history and wanted_s > left_s():
            break
        plan = replace(plan, deadline_s=min(plan.deadline_s, wanted_s + max(left_s(), 1.0)))
        search.measure(session, plan)
    return search.result()


def calls_of(samples: Samples, goal: RateGoal) -> Calls:
    """Items and times of the calls."""
    if goal.server_limits:
        severe_s = severity_s(samples, goal.server_limits)
        arrivals_s = samples.arrivals_s[0][: severe_s.size]
        return Calls(np.ones(severe_s.size, dtype=np.int64), severe_s, arrivals_s)
    return Calls(samples.item_count, samples.end_s - samples.start_s)


def _at_rate(
    measurement: Measurement, goal: RateGoal, service: ServiceTimes, finding: Finding
) -> Measurement:
    """The latencies of the rate that was found instead of those of the window."""
    latency_s = simulated_latency_s(goal, service, finding.rate_per_s)
    figures: dict[str, Any] = {name: quantile(latency_s, q) for name, q in LATENCIES.items()}
    return replace(
        measurement,
        latency_mean_s=float(latency_s.mean()),
        **figures,
        estimated=("throughput_items_per_s", "arrival_rate_per_s", "latency_mean_s", *LATENCIES),
    )


def _facts(finding: Finding, last: Evidence) -> RateFacts:
    service = last.service
    residuals = np.sort(service.residuals)
    if residuals.size > MAX_RESIDUALS:
        residuals = residuals[
            ((np.arange(MAX_RESIDUALS) + 0.5) / MAX_RESIDUALS * residuals.size).astype(int)
        ]
    return RateFacts(
        rate_per_s=finding.rate_per_s,
        limit_rate_per_s=last.target.limit_rate_per_s,
        sizes=tuple(map(float, service.sizes)),
        medians_s=tuple(float(f"{value:.4g}") for value in service.medians_s),
        residuals=tuple(float(f"{value:.4g}") for value in residuals),
    )


def _verdict(
    finding: Finding,
    goal: RateGoal,
    objective: Objective,
    samples: Samples,
    measurement: Measurement,
) -> Verdict:
    """The tail by the search, everything else as ever."""
    bound_s = goal.limit_s, goal.quantile
    every = tail_limits(objective)
    tails = every if goal.server_limits else [t for t in every if _tail(t) == bound_s][:1]
    others = tuple(limit for limit in objective.limits if limit not in tails)
    # More requests under way than the client holds are what a rate looks like that is too high for
    # a server: the search counts them as over the limit, and they are no wrong answers.
    failures = {name: count for name, count in samples.failures.items() if name != TOO_MANY}
    samples = replace(samples, failures=failures)
    base = judge(samples, measurement, replace(objective, limits=others))
    excess = {METRICS[t.metric].field: _tail_excess_s(t, finding, measurement) for t in tails}
    outcomes = {base.outcome, _OUTCOMES[finding.status]}
    worst = next(
        (o for o in (Outcome.WRONG_OUTPUT, Outcome.OVER_LIMIT, Outcome.UNDECIDED) if o in outcomes),
        Outcome.OK,
    )
    reason = _reason(finding, tails)
    return replace(
        base,
        outcome=worst,
        excess={**base.excess, **excess},
        reasons=(*((reason,) if reason else ()), *base.reasons),
        needed_s=finding.needed_s if worst is Outcome.UNDECIDED else None,
    )


def _tail_excess_s(tail: Limit, finding: Finding, measurement: Measurement) -> float:
    """The rate is chosen so that the limit holds; only where no rate does, it is exceeded."""
    over_s = float(getattr(measurement, METRICS[tail.metric].field) or 0.0) - tail.bound
    over_s = min(over_s, tail.bound) if np.isfinite(over_s) else tail.bound
    return min(over_s, 0.0) if finding.rate_per_s > 0.0 else max(over_s, 1e-6 * tail.bound)


def _reason(finding: Finding, tails: Sequence[Limit]) -> str:
    bound = " and ".join(f"{tail.metric} {format_duration(tail.bound)}" for tail in tails)
    if finding.status == "fail":
        return f"{bound} holds at no arrival rate"
    if finding.status == "undecided" and finding.rate_per_s <= 0.0:
        return f"{bound} seems to hold at no arrival rate; too few calls to say so"
    if finding.status == "undecided":
        more = (
            f"; about {format_duration(finding.needed_s)} more of measuring may settle it"
            if finding.needed_s
            else ""
        )
        return f"{format_rate(finding.rate_per_s)} promise to hold {bound}, not shown{more}"
    return ""
