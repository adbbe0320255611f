"""From a measurement to a verdict: does every limit hold, and what is the objective worth."""

from __future__ import annotations

import math
from typing import NamedTuple

from autotune.core.errors import UsageError
from autotune.core.objective import METRICS, Limit, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Measurement, Reported, Result, Samples, Verdict
from autotune.core.units import format_duration, format_quantity
from autotune.measure.noise import utilisation
from autotune.measure.tail import Status, judge_tail, variance_floor_for

SEARCH_ALPHA = 0.05


class LimitJudgement(NamedTuple):
    """One limit judged: its status, how far it is exceeded, and a sentence if it is not kept."""

    status: Status
    excess: float
    reason: str


def judge(
    result: Result, measurement: Measurement, objective: Objective, *, alpha: float = SEARCH_ALPHA
) -> Verdict:
    """Judge a measurement under an objective.

    Args:
        alpha: Probability of calling a broken limit kept, and of the reverse, per limit.
    Raises:
        UsageError: A limit is on a figure that no measuring on this device tells.
    """
    missing = _missing_metric(result, measurement, objective)
    if missing:
        return Verdict(outcome=Outcome.WRONG_OUTPUT, reasons=(missing,))
    judged = {
        METRICS[limit.metric].field: _judge_limit(limit, result, measurement, alpha)
        for limit in objective.limits
    }
    statuses = {j.status for j in judged.values()}
    outcome = (
        Outcome.OVER_LIMIT if "fail" in statuses
        else Outcome.UNDECIDED if "undecided" in statuses
        else Outcome.OK
    )  # fmt: skip
    return Verdict(
        outcome=outcome,
        objectives={
            METRICS[goal.metric].field: float(getattr(measurement, METRICS[goal.metric].field))
            for goal in objective.goals
        },
        excess={field: j.excess for field, j in judged.items()},
        reasons=tuple(j.reason for j in judged.values() if j.reason),
    )


def _missing_metric(result: Result, measurement: Measurement, objective: Objective) -> str:
    wanted = [goal.metric for goal in objective.goals]
    if isinstance(result, Reported):
        # Whoever reports may tell a figure of one configuration and not of another.
        wanted += [limit.metric for limit in objective.limits]
    for name in wanted:
        if getattr(measurement, METRICS[name].field) is None:
            return f"expected metric {name}, which the measurement does not have"
    return ""


def _judge_limit(
    limit: Limit, result: Result, measurement: Measurement, alpha: float
) -> LimitJudgement:
    metric = METRICS[limit.metric]
    value = getattr(measurement, metric.field)
    if value is None:
        raise UsageError(
            f"limits.{limit.metric}: nothing here tells {limit.metric}; remove the limit"
        )
    excess = limit.excess(float(value))
    if isinstance(result, Samples) and metric.quantile is not None:
        return _judge_quantile(limit, result, metric.quantile, excess, alpha)
    if isinstance(result, Reported):
        status = _judge_estimate(float(value), limit, result.relative_noise, alpha)
    elif limit.metric == "throughput" and measurement.throughput_ci95_items_per_s is not None:
        low, high = measurement.throughput_ci95_items_per_s
        status = "pass" if low >= limit.bound else "fail" if high < limit.bound else "undecided"
    else:
        status = "pass" if excess <= 0 else "fail"
    return LimitJudgement(status, excess, _sentence(limit, status, float(value)))


def _judge_quantile(
    limit: Limit, samples: Samples, quantile: float, excess: float, alpha: float
) -> LimitJudgement:
    over = samples.request_latency_s() > limit.bound
    tail = judge_tail(over, quantile=quantile, alpha=alpha, variance_floor=variance_floor(samples))
    if tail.status == "pass":
        return LimitJudgement("pass", excess, "")
    bound = _format(limit.metric, limit.bound)
    unit = "requests" if samples.is_open else "calls"
    counts = f"{int(over.sum())} of {over.size} {unit} took longer than {bound}"
    if tail.status == "fail":
        return LimitJudgement("fail", excess, f"{limit.metric} breaks its limit: {counts}")
    more = f"; {tail.needed_n} more {unit} would settle it" if tail.needed_n else ""
    if tail.needed_n and samples.rate_per_s:
        more += f" ({format_duration(tail.needed_n / samples.rate_per_s)})"
    return LimitJudgement("undecided", excess, f"{limit.metric} is not settled: {counts}{more}")


def variance_floor(samples: Samples) -> float:
    """How many samples count as one at least.

    A closed loop's call is one sample; what calls share beyond that shows in their blocks.
    Requests of an open load share their batch, and the queue before it.
    """
    if not samples.is_open or samples.item_count.size == 0:
        return 1.0
    return variance_floor_for(
        max_batch=int(samples.item_count.max()), utilisation=utilisation(samples)
    )


def _judge_estimate(value: float, limit: Limit, relative_noise: float, alpha: float) -> Status:
    """Judge a finished figure whose logarithm has a known standard deviation."""
    from scipy.special import ndtri

    if limit.excess(value) == 0 or relative_noise == 0 or value <= 0:
        return "pass" if limit.excess(value) <= 0 else "fail"
    margin = math.log(limit.bound / value) / relative_noise
    if METRICS[limit.metric].better == "higher":
        margin = -margin
    needed = float(ndtri(1 - alpha))
    return "pass" if margin >= needed else "fail" if margin <= -needed else "undecided"


def _sentence(limit: Limit, status: Status, value: float) -> str:
    if status == "pass":
        return ""
    shown, bound = _format(limit.metric, value), _format(limit.metric, limit.bound)
    verb = "breaks" if status == "fail" else "is too close to"
    return f"{limit.metric} {shown} {verb} its limit {bound}"


def _format(metric: str, value: float) -> str:
    return format_quantity(value, METRICS[metric].unit)
