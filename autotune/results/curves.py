"""What a study's charts show: curves over the batch size, and every trial as a place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from autotune.core.objective import METRICS
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, TrialRecord
from autotune.results.charts import Axis, Chart, Look, Point, Series
from autotune.results.study_result import StudyResult
from autotune.results.words import (
    config_text,
    limit_text,
    metric_label,
    metric_text,
    outcome_text,
)

_LOOKS: dict[Outcome, Look] = {
    Outcome.OK: "ok",
    Outcome.UNDECIDED: "unsure",
    Outcome.OVER_LIMIT: "broken",
}


def latency_metric(result: StudyResult) -> str:
    """The latency that matters in this study: the limited one, P99 if none is."""
    limited = (limit.metric for limit in result.facts.objective.limits)
    return next((m for m in limited if METRICS[m].unit == "duration"), "latency_p99")


def curve(result: StudyResult, metric: str) -> Chart | None:
    """A metric over the batch size, a colour per instance count; None: nothing was measured.

    A line joins trials that differ in their batch size alone; trials slower than another of
    the same batch size and instance count are faint, unless they are on the line.
    """
    drawn = [r for r in result.records if figure(r, metric) is not None]
    if not drawn:
        return None
    series = []
    for count in instance_counts(result):
        mine = [r for r in drawn if r.config.instance_count == count]
        on_line, fastest = _longest_family(mine), _fastest_per_batch(mine)
        points = tuple(
            _point(
                r,
                float(r.config.batch_size),
                _value(r, metric),
                faint=r.number not in on_line | fastest,
                joined=r.number in on_line,
            )
            for r in mine
        )
        series.append(Series(name=instances_text(count), points=points))
    failed = [r for r in result.records if r.verdict.outcome.is_infeasible]
    marks = _marks(result, metric, lambda r: float(r.config.batch_size))
    return Chart(
        title=f"{metric_label(metric).capitalize()} over batch size",
        x=Axis(
            label="batch size, items per call",
            log=True,
            tick_text=lambda v: f"{v:g}",
            ticks=_batch_ticks([r.config.batch_size for r in (*drawn, *failed)]),
        ),
        y=_axis(result, metric),
        series=tuple(series),
        marks=marks,
        failed=tuple((float(r.config.batch_size), describe(r)) for r in failed),
    )


def trial_map(result: StudyResult) -> Chart | None:
    """Throughput over latency, every measured trial; None if no trial has both."""
    metric = latency_metric(result)
    drawn = [
        r for r in result.records
        if figure(r, metric) is not None and figure(r, "throughput") is not None
    ]  # fmt: skip
    if not drawn:
        return None
    series = tuple(
        Series(
            name=instances_text(count),
            points=tuple(
                _point(r, _value(r, metric), _value(r, "throughput"))
                for r in drawn
                if r.config.instance_count == count
            ),
        )
        for count in instance_counts(result)
    )
    return Chart(
        title=f"Throughput over {metric_label(metric)}",
        x=_axis(result, metric),
        y=_axis(result, "throughput"),
        series=series,
        marks=_marks(result, "throughput", lambda r: _value(r, metric)),
    )


def instance_counts(result: StudyResult) -> tuple[int, ...]:
    """The instance counts that were tried, ascending: the order of the series' colours."""
    return tuple(sorted({record.config.instance_count for record in result.records}))


def instances_text(count: int) -> str:
    """A series' name."""
    return f"{count} instance{'s' if count != 1 else ''}"


def figure(record: TrialRecord, metric: str) -> float | None:
    """A metric's value, None if it is unknown or no positive number."""
    if record.measurement is None:
        return None
    value = getattr(record.measurement, METRICS[metric].field)
    return float(value) if value is not None and 0 < value < math.inf else None


def describe(record: TrialRecord) -> str:
    """A trial on one line: number, configuration, outcome, figures."""
    figures = [
        f"{metric_label(metric)} {metric_text(metric, value)}"
        for metric in ("throughput", "latency_p99")
        if (value := figure(record, metric)) is not None
    ]
    words = [config_text(record.config), outcome_text(record.verdict.outcome), *figures]
    return f"trial {record.number}: {', '.join(words)}"


def _value(record: TrialRecord, metric: str) -> float:
    return figure(record, metric) or math.nan


def _point(
    record: TrialRecord, x: float, y: float, *, faint: bool = False, joined: bool = False
) -> Point:
    look, href = _LOOKS[record.verdict.outcome], f"#trial-{record.number}"
    title = describe(record)
    return Point(x=x, y=y, look=look, title=title, href=href, faint=faint, joined=joined)


def _longest_family(records: Sequence[TrialRecord]) -> set[int]:
    """Numbers of the most trials that differ in their batch size alone; the fastest if equal."""
    families: dict[Config, dict[int, TrialRecord]] = {}
    for record in records:
        alike = record.config.changed(batch_size=1)
        families.setdefault(alike, {})[record.config.batch_size] = record
    longest = max(
        families.values(), key=lambda f: (len(f), max(map(_rate, f.values()))), default={}
    )
    return {record.number for record in longest.values()} if len(longest) > 1 else set()


def _fastest_per_batch(records: Sequence[TrialRecord]) -> set[int]:
    fastest: dict[int, TrialRecord] = {}
    for record in sorted(records, key=_rate):
        fastest[record.config.batch_size] = record
    return {record.number for record in fastest.values()}


def _rate(record: TrialRecord) -> float:
    return figure(record, "throughput") or 0.0


def _axis(result: StudyResult, metric: str) -> Axis:
    limit = next((x for x in result.facts.objective.limits if x.metric == metric), None)
    unit = METRICS[metric].unit
    return Axis(
        label=metric_label(metric),
        log=unit == "duration",
        tick_text=_duration_tick if unit == "duration" else _count_tick,
        limit=limit.bound if limit else None,
        limit_label=limit_text(limit) if limit else "",
    )


def _marks(
    result: StudyResult, metric: str, x: Callable[[TrialRecord], float]
) -> tuple[tuple[float, float, str, str], ...]:
    """The recommended configuration and the baseline, at the places of their trials."""

    def place(config: Config | None, name: str, kind: str) -> list[tuple[float, float, str, str]]:
        trial = next((r for r in result.records if r.config == config), None)
        if trial is None or figure(trial, metric) is None or not x(trial) > 0:
            return []
        return [(x(trial), _value(trial, metric), name, kind)]

    marks = place(result.config, "recommended", "best")
    if result.config != result.facts.baseline:
        marks += place(result.facts.baseline, "baseline", "base")
    return tuple(marks)


def _batch_ticks(batch_sizes: Sequence[int]) -> tuple[float, ...]:
    """Powers of two where the batches span some, else the batch sizes themselves."""
    low, high = min(batch_sizes), max(batch_sizes)
    powers = [2.0**e for e in range(31) if low <= 2**e <= high]
    return tuple(powers) if len(powers) >= 4 else tuple(map(float, sorted(set(batch_sizes))))


def _duration_tick(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9999 * factor:
            return f"{seconds / factor:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"


def _count_tick(value: float) -> str:
    for suffix, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.4g}{suffix}"
    return f"{value:.4g}"
