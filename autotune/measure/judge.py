"""From a measurement to a verdict: does every limit hold, and what is the objective worth."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from autotune.core.errors import UsageError
from autotune.core.objective import METRICS, Limit, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Measurement, Reported, Result, Samples, Verdict
from autotune.core.units import format_duration, format_quantity
from autotune.measure.noise import QUIET, in_flight, measured_s, speed_left, utilisation
from autotune.measure.tail import Status, judge_tail, variance_floor_for

SEARCH_ALPHA = 0.05
DOUBT = 0.75  # on the estimate of what noise took: it may have come and gone
MAX_FAILED_SHARE = 0.01  # of a server's requests
TYPICAL = 0.5  # quantile of the calls that a passing disturbance leaves alone


class LimitJudgement(NamedTuple):
    """One limit judged.

    Attributes:
        excess: How far it is exceeded. reason: A sentence if it is not kept.
        needed_s: Seconds of measuring that would settle it, None if unknown or out of reach.
    """

    status: Status
    excess: float
    reason: str
    needed_s: float | None = None


def judge(
    result: Result, measurement: Measurement, objective: Objective, *, alpha: float = SEARCH_ALPHA
) -> Verdict:
    """Judge a measurement under an objective.

    Args:
        alpha: Probability of calling a broken limit kept, and of the reverse, per limit.
    Raises:
        UsageError: A limit is on a figure that no measuring on this device tells.
    """
    missing = _missing_metric(result, measurement, objective) or _failed_requests(result, objective)
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
    needed = [j.needed_s for j in judged.values() if j.status == "undecided"]
    known = [seconds for seconds in needed if seconds is not None]
    return Verdict(
        outcome=outcome,
        needed_s=max(known) if known and len(known) == len(needed) else None,
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


def _failed_requests(result: Result, objective: Objective) -> str:
    """Why a server's figures are none, where no limit on a tail counts its failed requests."""
    if not isinstance(result, Samples) or not result.failures:
        return ""
    quantiles = [METRICS[limit.metric].quantile or 0.0 for limit in objective.limits]
    failed = sum(result.failures.values())
    share = failed / (failed + int(result.item_count.sum()))
    if share <= MAX_FAILED_SHARE or max(quantiles, default=0.0) >= 1.0 - MAX_FAILED_SHARE:
        return ""
    what = max(result.failures, key=lambda name: result.failures[name])
    return f"{share:.2g} of the requests failed ({failed}): {what}"


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
    needed_s = _needed_for_rate_s(limit, measurement) if status == "undecided" else None
    return LimitJudgement(status, excess, _sentence(limit, status, float(value)), needed_s)


def _needed_for_rate_s(limit: Limit, measurement: Measurement) -> float | None:
    """Until the interval of the throughput no longer holds the bound; it shrinks with the root."""
    interval, rate = measurement.throughput_ci95_items_per_s, measurement.throughput_items_per_s
    if limit.metric != "throughput" or interval is None or rate is None:
        return None
    gap, half = abs(rate - limit.bound), (interval[1] - interval[0]) / 2.0
    if gap == 0.0 or measurement.duration_s is None:
        return None
    return measurement.duration_s * max((half / gap) ** 2 - 1.0, 0.0)


def _judge_quantile(
    limit: Limit, samples: Samples, quantile: float, excess: float, alpha: float
) -> LimitJudgement:
    times_s = samples.series(METRICS[limit.metric].series)
    assert times_s is not None, "a figure that is known has its times"
    over = times_s > limit.bound
    tail = judge_tail(over, quantile=quantile, alpha=alpha, variance_floor=variance_floor(samples))
    if tail.status == "pass":
        return LimitJudgement("pass", excess, "")
    bound = _format(limit.metric, limit.bound)
    unit = "requests" if samples.is_queued else "calls"
    counts = f"{int(over.sum())} of {over.size} {unit} took longer than {bound}"
    if tail.status == "fail":
        return LimitJudgement("fail", excess, f"{limit.metric} breaks its limit: {counts}")
    needed_s, more = None, ""
    if tail.needed_n and over.size:
        needed_s = tail.needed_n * measured_s(samples) / over.size
        more = f"; {tail.needed_n} more {unit} ({format_duration(needed_s)}) would settle it"
    reason = f"{limit.metric} is not settled: {counts}{more}"
    return LimitJudgement("undecided", excess, reason, needed_s)


def in_doubt(verdict: Verdict, measurement: Measurement, objective: Objective) -> Verdict:
    """A verdict that does not hold noise against a configuration.

    What was over a limit while something disturbed it, though its typical call keeps the limit,
    is undecided: it was the disturbance that was measured.
    """
    if verdict.outcome is not Outcome.OVER_LIMIT or measurement.trust == QUIET:
        return verdict
    excess = verdict.excess
    broken = [x for x in objective.limits if excess.get(METRICS[x.metric].field, 0.0) > 0]
    if not all(_may_be_noise(limit, measurement) for limit in broken):
        return verdict
    reason = (
        "over its limit while disturbed, which proves nothing; run it when the machine is quiet"
    )
    return replace(verdict, outcome=Outcome.UNDECIDED, reasons=(reason, *verdict.reasons))


def _may_be_noise(limit: Limit, measurement: Measurement) -> bool:
    metric, typical_s = METRICS[limit.metric], measurement.latency_p50_s
    if metric.quantile is not None and metric.quantile > TYPICAL:
        left = DOUBT * speed_left(measurement)
        return typical_s is not None and typical_s * left <= limit.bound
    return limit.metric == "throughput"


def variance_floor(samples: Samples) -> float:
    """How many samples count as one at least.

    A closed loop's call is one sample; what calls share beyond that shows in their blocks.
    Requests in a queue share their batch, and what came before it: under an open load the queue
    of that moment, while a slow call holds up all the clients of a closed one.
    """
    if not samples.is_queued or samples.item_count.size == 0:
        return 1.0
    if samples.in_server:  # its batches are not seen: what is there together goes together
        return max(1.0, in_flight(samples))
    if samples.clients is not None:
        return variance_floor_for(max_batch=max(samples.clients, int(samples.item_count.max())))
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
