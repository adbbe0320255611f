"""The search for a configuration's highest sustainable arrival rate, inside one session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from autotune.core.errors import UsageError
from autotune.core.objective import METRICS, Limit, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, Measurement, Samples, Verdict
from autotune.core.units import format_duration, format_rate
from autotune.measure.judge import judge
from autotune.measure.rate import Evidence, Finding, RateGoal, conclude, evaluate, next_plan
from autotune.measure.summary import summarise
from autotune.trial.session import Session

_OUTCOMES = {"pass": Outcome.OK, "fail": Outcome.OVER_LIMIT, "undecided": Outcome.UNDECIDED}


@dataclass(frozen=True, slots=True, kw_only=True)
class RateResult:
    """What came of a search.

    Attributes:
        samples: Of the window that stands for the finding: of the rate that was shown to hold,
            else the last.
        measurement: Its figures; throughput and arrival rate are the rate that was found.
    """

    finding: Finding
    history: tuple[Evidence, ...]
    samples: Samples
    measurement: Measurement
    verdict: Verdict


def tail_limit(objective: Objective) -> Limit:
    """The limit that a rate has to keep: the one on the highest latency quantile.

    Raises:
        UsageError: No latency quantile is limited.
    """
    tails = [limit for limit in objective.limits if METRICS[limit.metric].quantile is not None]
    if not tails:
        raise UsageError("load: rate: max needs a limit on a latency quantile, as latency_p99")
    return max(tails, key=lambda limit: METRICS[limit.metric].quantile or 0.0)


def rate_goal(config: Config, objective: Objective, *, window_s: float, seed: int) -> RateGoal:
    """What to look for in a configuration; see `RateGoal` for what can be added."""
    limit = tail_limit(objective)
    kind = objective.load.kind
    assert kind == "poisson" or kind == "constant", "only such loads have a rate"
    return RateGoal(
        kind=kind,
        limit_s=limit.bound,
        quantile=METRICS[limit.metric].quantile or 0.0,
        max_batch=config.batch_size,
        max_delay_s=float(config.get("max_queue_delay", 0.0)),
        servers=config.instance_count,
        window_s=window_s,
        seed=seed,
    )


def search_rate(
    session: Session,
    goal: RateGoal,
    objective: Objective,
    *,
    left_s: Callable[[], float] = lambda: float("inf"),
) -> RateResult:
    """Measure until the rate is settled or nothing more is worth it.

    Args:
        left_s: Seconds left; a window that does not fit is not begun, the first one apart.
    Raises:
        TrialError: The configuration failed.
    """
    history: list[Evidence] = []
    measured: list[Samples] = []
    while (plan := next_plan(goal, history)) is not None:
        wanted_s = sum(window.duration_s or 0.0 for window in plan.windows)
        if history and wanted_s > left_s():
            break
        plan = replace(plan, deadline_s=min(plan.deadline_s, wanted_s + max(left_s(), 1.0)))
        if len(history) == 1:
            session.warm_up(plan)  # the first open window brings batch sizes of its own
        samples = session.measure(plan)
        assert isinstance(samples, Samples)
        history.append(evaluate(goal, history, plan, samples))
        measured.append(samples)
    finding = conclude(goal, history)
    return _result(finding, goal, objective, history, measured)


def _result(
    finding: Finding,
    goal: RateGoal,
    objective: Objective,
    history: list[Evidence],
    measured: list[Samples],
) -> RateResult:
    passed = [i for i, e in enumerate(history) if e.status == "pass"]
    shown = max(passed, key=lambda i: history[i].rate_per_s, default=len(history) - 1)
    samples = measured[shown]
    measurement = replace(
        summarise(samples),
        arrival_rate_per_s=finding.rate_per_s,
        throughput_items_per_s=finding.rate_per_s,
        throughput_ci95_items_per_s=None,
        duration_s=sum(e.duration_s for e in history),
    )
    verdict = _verdict(finding, goal, objective, samples, measurement)
    return RateResult(
        finding=finding,
        history=tuple(history),
        samples=samples,
        measurement=measurement,
        verdict=verdict,
    )


def _verdict(
    finding: Finding,
    goal: RateGoal,
    objective: Objective,
    samples: Samples,
    measurement: Measurement,
) -> Verdict:
    """The tail by the search, everything else as ever."""
    tail = tail_limit(objective)
    others = tuple(limit for limit in objective.limits if limit is not tail)
    base = judge(samples, measurement, replace(objective, limits=others))
    field = METRICS[tail.metric].field
    over_s = float(getattr(measurement, field) or 0.0) - tail.bound
    over_s = min(over_s, tail.bound) if np.isfinite(over_s) else tail.bound
    # The rate is chosen so that the limit holds; only where no rate does, it is exceeded.
    excess = max(over_s, 1e-6 * tail.bound) if finding.status == "fail" else min(over_s, 0.0)
    outcomes = {base.outcome, _OUTCOMES[finding.status]}
    worst = next(
        (o for o in (Outcome.WRONG_OUTPUT, Outcome.OVER_LIMIT, Outcome.UNDECIDED) if o in outcomes),
        Outcome.OK,
    )
    reason = _reason(finding, tail)
    return replace(
        base,
        outcome=worst,
        excess={**base.excess, field: excess},
        reasons=(*((reason,) if reason else ()), *base.reasons),
    )


def _reason(finding: Finding, tail: Limit) -> str:
    bound = f"{tail.metric} {format_duration(tail.bound)}"
    if finding.status == "fail":
        return f"{bound} holds at no arrival rate"
    if finding.status == "undecided":
        more = (
            f"; {format_duration(finding.needed_s)} more may settle it" if finding.needed_s else ""
        )
        return f"{format_rate(finding.rate_per_s)} promise to hold {bound}, not shown{more}"
    return ""
