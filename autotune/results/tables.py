"""Results for programs and spreadsheets: one JSON object, CSV, and the best few as rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import fields
from datetime import datetime, timezone
from typing import Any

from autotune.core.codec import to_json_dict
from autotune.core.insight import Insight
from autotune.core.objective import METRICS
from autotune.core.records import Comparison, Measurement, Sustained, TrialRecord, Verdict
from autotune.results.batch_knee import delivered_share
from autotune.results.gain import interval95
from autotune.results.goals import weighted_gain
from autotune.results.study_result import StudyResult
from autotune.results.words import trust_text

JSON_SCHEMA = 1

_JSON_MEASUREMENT = (
    "throughput_items_per_s",
    "throughput_ci95_items_per_s",
    "arrival_rate_per_s",
    "latency_p99_s",
    "memory_peak_bytes",
)
_NOT_IN_CSV = {"throughput_ci95_items_per_s", "warnings", "telemetry", "environment"}


def to_json(result: StudyResult) -> dict[str, Any]:
    """The result as `run --json` and `show --json` print it; no NaN, no Infinity.

    `closest` is there only if nothing is feasible: its configuration does not hold the limits.
    """
    recommendation, record = result.recommendation, result.recommendation.record
    baseline, against = recommendation.baseline, recommendation.against_baseline
    judged = result.shown
    base = baseline.measurement if baseline else None
    data: dict[str, Any] = {
        "schema": JSON_SCHEMA,
        "study": result.facts.study,
        "workload": result.facts.workload,
        "device": result.facts.device,
        "status": result.status,
        "config": record.config.as_dict() if record else None,
        "measurement": _measurement(record.measurement) if record else None,
        "verdict": _verdict(judged.verdict, recommendation.reasons) if judged else None,
        "baseline": {
            "config": result.facts.baseline.as_dict(),
            "throughput_items_per_s": base.throughput_items_per_s if base else None,
        },
        "gain": result.gain,
        "gain_ci95": _interval(against),
        "gain_batch_only": _ratio(recommendation.against_batch_only),
        "gain_batch_only_ci95": _interval(recommendation.against_batch_only),
        "accuracy": dict(recommendation.accuracy) or None,
        "sustained": _sustained(recommendation.sustained),
        "knee": _knee(result),
        "limit_probability": recommendation.limit_probability,
        "insight": _insight(result.insight),
        **_goals(result),
        "origin": result.facts.origin,
        "conditions": result.conditions,
        "trust": trust_text(judged) if judged and judged.measurement else None,
        "warm_start": to_json_dict(result.warm_start) if result.warm_start else None,
        "complete": result.ending.complete,
        "stopped": result.ending.stopped or None,
        "trials": {"total": result.trial_count, "planned": result.facts.trials, **result.counts},
        "elapsed_s": result.ending.elapsed_s,
        "report": str(result.report) if result.report else None,
    }
    if record is None and judged is not None:
        data["closest"] = {
            "config": judged.config.as_dict(),
            "measurement": _measurement(judged.measurement),
        }
    return to_json_dict(data)


def to_csv(result: StudyResult) -> str:
    """Every trial as a row, the fresh measurements of the proof last; units are in the names."""
    records = (*result.records, *result.recommendation.confirmations)
    rows = [_csv_row(record) for record in records]
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def top_rows(result: StudyResult, count: int) -> tuple[TrialRecord, ...]:
    """The best `count` configurations; what was measured again counts by that (phase confirm)."""
    return result.proven_ranking.ranked[:count]


def _measurement(measurement: Measurement | None) -> dict[str, Any] | None:
    if measurement is None:
        return None
    return {name: getattr(measurement, name) for name in _JSON_MEASUREMENT}


def _verdict(verdict: Verdict, reasons: Iterable[str]) -> dict[str, Any]:
    unique = dict.fromkeys((*verdict.reasons, *reasons))
    return {
        "outcome": verdict.outcome,
        "excess": verdict.excess,
        "reasons": list(unique),
        "needed_s": verdict.needed_s,
    }


def _insight(insight: Insight | None) -> dict[str, Any] | None:
    if insight is None:
        return None
    return {
        "expected_gain": insight.expected_gain,
        "alike": insight.alike,
        "untried": insight.untried,
    }


def _sustained(found: Sustained | None) -> dict[str, Any] | None:
    if found is None:
        return None
    reversals = [
        {
            "first": r.first.as_dict(),
            "then": r.then.as_dict(),
            "early_ratio": r.early_ratio,
            "late_ratio": r.late_ratio,
        }
        for r in found.reversals
    ]
    return {**to_json_dict(found), "reversals": reversals}


def _ratio(comparison: Comparison | None) -> float | None:
    return comparison.ratio if comparison else None


def _interval(comparison: Comparison | None) -> tuple[float, float] | None:
    return interval95(comparison) if comparison else None


def _knee(result: StudyResult) -> dict[str, Any] | None:
    """The knee, by the search's trials; `delivered_ci95` by the proof, where it was measured."""
    found = result.knee
    if found is None:
        return None
    knee, delivered = found.knee, delivered_share(result.recommendation, found)
    return {
        "batch_size": knee.batch_size,
        "interval": knee.interval,
        "peak_batch_size": knee.peak_batch_size,
        "kind": knee.kind,
        "config": found.config.as_dict() if found.config else None,
        "share": found.share,
        "delivered": knee.delivered if delivered is None else delivered.ratio,
        "delivered_ci95": _interval(delivered),
        "cliffs": knee.cliffs,
        "padding_steps": knee.padding_steps,
        "peaks": knee.peaks,
        "remeasure": knee.remeasure,
    }


def _goals(result: StudyResult) -> dict[str, Any]:
    """Where several goals count: their improvements, what they weigh together, their front."""
    objective = result.facts.objective
    if len(objective.goals) < 2:
        return {}
    ratios = result.improvements
    data: dict[str, Any] = {
        "improvements": {METRICS[metric].field: ratio for metric, ratio in ratios.items()},
        "weighted_gain": weighted_gain(ratios, objective) if ratios else None,
    }
    if objective.front:
        data["front"] = [
            {
                "config": point.record.config.as_dict(),
                "goals": dict(point.record.verdict.objectives),
                "outcome": str(point.record.verdict.outcome),
                "proven": point.is_proven,
                "beaten_by": point.beaten_by.as_dict() if point.beaten_by else None,
            }
            for point in result.front
        ]
    return data


def _csv_row(record: TrialRecord) -> dict[str, Any]:
    measurement = record.measurement or Measurement()
    interval = measurement.throughput_ci95_items_per_s or (None, None)
    figures: dict[str, Any] = {}
    for field in fields(Measurement):
        if field.name not in _NOT_IN_CSV:
            figures[field.name] = getattr(measurement, field.name) if record.measurement else None
        if field.name == "throughput_items_per_s":
            figures["throughput_ci95_low_items_per_s"] = interval[0]
            figures["throughput_ci95_high_items_per_s"] = interval[1]
    excess = {f"excess_{name}": value for name, value in record.verdict.excess.items()}
    started = datetime.fromtimestamp(record.started_at_s, timezone.utc)
    row = {
        "number": record.number,
        "phase": record.phase,
        "outcome": str(record.verdict.outcome),
        **record.config.as_dict(),
        **figures,
        **excess,
        "needed_s": record.verdict.needed_s,
        "cost_s": record.cost_s,
        "started_at": started.isoformat(timespec="seconds"),
        "reasons": "; ".join(record.verdict.reasons),
    }
    return to_json_dict(row)
