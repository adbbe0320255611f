"""Choosing afterwards, among what was tested, by what is needed now."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from autotune.core.objective import METRICS, Goal, Limit, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Measurement, TrialRecord, Verdict, measured
from autotune.results import words
from autotune.results.curves import latency_metric
from autotune.results.study_result import StudyResult

MAX_JUDGED = 40
"""Configurations whose calls are judged again for one choice."""

Judge = Callable[[TrialRecord, Objective], "Verdict | None"]
"""Judges a record's raw calls under another objective; None if they are not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferred:
    """The configuration that fits best what is needed.

    Attributes:
        limits: What was asked for, and the study's own limits on other figures.
        record: Its fresh measurement if it has one, else its trial; None if nothing fits.
        verdict: Of its raw calls under `limits`; None where these are not kept, so that the
            figures are all there is.
        goals: By which it is the best.
        untold: Metrics among the limits that no trial tells.
    """

    limits: tuple[Limit, ...]
    goals: tuple[Goal, ...]
    record: TrialRecord | None = None
    verdict: Verdict | None = None
    untold: tuple[str, ...] = ()

    @property
    def basis(self) -> str:
        """How sure it is that the limits hold, in words."""
        if self.untold:
            return f"no trial tells {' and '.join(map(words.metric_label, self.untold))}"
        if self.record is None:
            return "no tested configuration holds this"
        source = "its fresh measurement" if self.record.phase == "confirm" else "one short trial"
        if self.verdict is None:
            return f"by the figures of {source}"
        if self.verdict.outcome is Outcome.OK:
            return f"shown to hold by the calls of {source}"
        return f"not settled by the calls of {source}: {'; '.join(self.verdict.reasons)}"


def prefer(result: StudyResult, wanted: Sequence[Limit], judge: Judge) -> Preferred:
    """The best tested configuration under other limits.

    Limits of the study on other figures still hold. The best is by the study's goals less those
    that are limited now; if none is left, by latency, or by throughput where no trial tells one.
    One whose raw calls show the limits to hold comes before any other.
    """
    objective = result.facts.objective
    named = {limit.metric for limit in wanted}
    limits = (*wanted, *(limit for limit in objective.limits if limit.metric not in named))
    told = {field for record in measured(result.records) for field in _figures(record)}
    goals = tuple(goal for goal in objective.goals if goal.metric not in named)
    goals = tuple(goal for goal in goals if METRICS[goal.metric].field in told)
    goals = goals or (Goal(metric=_last_goal(result, told)),)
    asked = replace(objective, limits=limits, goals=goals, knee_share=None, front=False)
    known = _one_each(result, asked)
    fitting = [r for r in known if _fits(r, limits)]
    fitting.sort(key=lambda r: -asked.score(_figures(r)))
    first: Preferred | None = None
    for record in fitting[:MAX_JUDGED]:
        verdict = judge(record, asked)
        if verdict is not None and verdict.outcome is Outcome.OVER_LIMIT:
            continue
        found = Preferred(limits=limits, goals=goals, record=record, verdict=verdict)
        if verdict is None or verdict.outcome is Outcome.OK:
            return found
        first = first or found
    untold = (x.metric for x in limits if METRICS[x.metric].field not in told)
    return first or Preferred(limits=limits, goals=goals, untold=tuple(untold))


def preferred_lines(preferred: Preferred) -> list[str]:
    """The choice as lines for a terminal."""
    wanted = " and ".join(map(words.limit_text, preferred.limits))
    record = preferred.record
    if record is None:
        return [f"\npreferred: {wanted}: {preferred.basis}"]
    by = " and ".join(words.metric_label(goal.metric) for goal in preferred.goals)
    shown = dict.fromkeys(
        ["throughput", "latency_p99", "memory_peak", *(limit.metric for limit in preferred.limits)]
    )
    figures = [
        f"{words.metric_label(metric)} {words.metric_text(metric, value)}"
        for metric in shown
        if (value := _figures(record).get(METRICS[metric].field)) is not None
    ]
    return [
        f"\npreferred: {wanted}, then the best {by}",
        f"  {words.config_text(record.config)}",
        f"  {', '.join(figures)}",
        f"  {preferred.basis}",
    ]


def preferred_json(preferred: Preferred) -> dict[str, object]:
    """The choice for `--json`; `config` is None if nothing fits."""
    record, verdict = preferred.record, preferred.verdict
    return {
        "limits": {METRICS[x.metric].field: x.bound for x in preferred.limits},
        "goals": [goal.metric for goal in preferred.goals],
        "config": record.config.as_dict() if record else None,
        "figures": _figures(record) if record else None,
        "proven": record is not None and record.phase == "confirm",
        "outcome": str(verdict.outcome) if verdict else None,
        "basis": preferred.basis,
    }


def _last_goal(result: StudyResult, told: Collection[str]) -> str:
    """What tells configurations apart where every goal of the study is limited."""
    latency = latency_metric(result)
    return latency if METRICS[latency].field in told else "throughput"


def _one_each(result: StudyResult, asked: Objective) -> list[TrialRecord]:
    """Every measured configuration once: its fresh measurement, else its worst trial.

    The best of several short trials is mostly the luckiest.
    """

    def worth(record: TrialRecord) -> tuple[bool, float]:
        return _fits(record, asked.limits), asked.score(_figures(record))

    trials = sorted(measured(result.records), key=worth, reverse=True)
    records = (*trials, *measured(result.recommendation.confirmations))
    return list({record.config: record for record in records}.values())


def _figures(record: TrialRecord) -> dict[str, float]:
    measurement = record.measurement or Measurement()
    fields = (metric.field for metric in METRICS.values())
    values = ((field, getattr(measurement, field)) for field in fields)
    return {field: float(value) for field, value in values if value is not None}


def _fits(record: TrialRecord, limits: Sequence[Limit]) -> bool:
    figures = _figures(record)
    values = [(limit, figures.get(METRICS[limit.metric].field)) for limit in limits]
    return all(value is not None and limit.excess(value) <= 0 for limit, value in values)
