"""What a study's charts show: curves over the batch size, and every trial as a place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from autotune.core.objective import METRICS
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, TrialRecord
from autotune.measure.front import non_dominated
from autotune.results.charts import Axis, Chart, Look, Mark, Point, Series
from autotune.results.study_result import StudyResult
from autotune.results.words import (
    capital,
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
    """The latency that matters in this study: the limited one, else a goal, else P99."""
    objective = result.facts.objective
    wanted = (*(limit.metric for limit in objective.limits), *(g.metric for g in objective.goals))
    return next((m for m in wanted if METRICS[m].unit == "duration"), "latency_p99")


def curve(result: StudyResult, metric: str) -> Chart | None:
    """A metric over the batch size, a colour per instance count; None: nothing was measured.

    A line joins configurations that differ in their batch size alone; those slower than another
    of the same batch size and instance count are faint, unless they are on the line. So are the
    trials of what was measured again, which stands where the fresh measurement puts it. What is on
    a line or was measured again has its interval as a bar; a knee's interval is shaded.
    """
    drawn, outdated = _standing(result, (metric,))
    if not drawn:
        return None
    series = tuple(
        Series(
            name=instances_text(count),
            points=(
                *_curve_points([r for r in drawn if r.config.instance_count == count], metric),
                *(
                    point_of(r, float(r.config.batch_size), _value(r, metric), faint=True)
                    for r in outdated
                    if r.config.instance_count == count
                ),
            ),
        )
        for count in instance_counts(result)
    )
    failed = [r for r in result.drawn if r.verdict.outcome.is_infeasible]
    return Chart(
        title=f"{capital(metric_label(metric))} over batch size",
        x=Axis(
            label="batch size, items per call",
            log=True,
            tick_text=lambda v: f"{v:g}",
            ticks=_batch_ticks([r.config.batch_size for r in (*drawn, *failed)]),
            band=knee_band(result),
        ),
        y=_axis(result, metric),
        series=series,
        marks=_marks(result, drawn, metric, lambda r: float(r.config.batch_size)),
        failed=tuple((float(r.config.batch_size), describe(r)) for r in failed),
    )


def _curve_points(records: Sequence[TrialRecord], metric: str) -> list[Point]:
    """The points of one instance count; what is neither on its line nor fastest is faint."""
    on_line, fastest = _longest_family(records), _fastest_per_batch(records)
    return [
        point_of(
            r,
            float(r.config.batch_size),
            _value(r, metric),
            faint=_key(r) not in on_line | fastest,
            joined=_key(r) in on_line,
            bar=_bar(r, metric) if is_proof(r) or _key(r) in on_line else None,
        )
        for r in records
    ]


def knee_band(result: StudyResult) -> tuple[float, float] | None:
    """The knee's interval of batch sizes, None where no knee is sought or known."""
    found = result.knee
    if found is None or found.is_unknown or found.knee.interval is None:
        return None
    low, high = found.knee.interval
    return float(low), float(high)


def trial_map(
    result: StudyResult, x_metric: str = "", y_metric: str = "throughput"
) -> Chart | None:
    """Throughput over latency, every measured trial; None if no trial has both.

    A line joins what holds its limits and is beaten in both by nothing that does.

    Args:
        x_metric, y_metric: Other metrics to draw.
    """
    metric = x_metric or latency_metric(result)
    drawn, outdated = _standing(result, (metric, y_metric))
    if not drawn:
        return None

    def points_of(records: Sequence[TrialRecord], count: int, faint: bool) -> list[Point]:
        return [
            point_of(r, _value(r, metric), _value(r, y_metric), faint=faint)
            for r in records
            if r.config.instance_count == count
        ]

    series = tuple(
        Series(
            name=instances_text(count),
            points=(*points_of(drawn, count, False), *points_of(outdated, count, True)),
        )
        for count in instance_counts(result)
    )
    return Chart(
        title=f"Trials: {metric_label(y_metric)} over {metric_label(metric)}",
        x=_axis(result, metric),
        y=_axis(result, y_metric),
        series=series,
        marks=_marks(result, drawn, y_metric, lambda r: _value(r, metric)),
        joined=_trade_offs(drawn, metric, y_metric),
    )


def _trade_offs(records: Sequence[TrialRecord], x_metric: str, y_metric: str) -> Series | None:
    held = [r for r in records if r.verdict.outcome is Outcome.OK]
    if not held:
        return None
    signs = [1.0 if METRICS[m].better == "higher" else -1.0 for m in (x_metric, y_metric)]
    places = np.array([[_value(r, x_metric), _value(r, y_metric)] for r in held])
    best = [held[i] for i in np.flatnonzero(non_dominated(places * signs))]
    points = (point_of(r, _value(r, x_metric), _value(r, y_metric), joined=True) for r in best)
    return Series(name="best trade-offs", points=tuple(points))


def instance_counts(result: StudyResult) -> tuple[int, ...]:
    """The instance counts that were tried, ascending: the order of the series' colours."""
    return tuple(sorted({record.config.instance_count for record in result.records}))


def instances_text(count: int) -> str:
    """A series' name."""
    return f"{count} instance{'s' if count != 1 else ''}"


def figure(record: TrialRecord, metric: str) -> float | None:
    """A metric's value, None if it is unknown or no positive number, or of wrong answers."""
    if record.measurement is None or not record.verdict.outcome.is_measured:
        return None
    value = getattr(record.measurement, METRICS[metric].field)
    return float(value) if value is not None and 0 < value < math.inf else None


def describe(record: TrialRecord) -> str:
    """A trial, or a fresh measurement, on one line: configuration, outcome, figures."""
    figures = [
        f"{metric_label(metric)} {metric_text(metric, value)}"
        for metric in ("throughput", "latency_p99")
        if (value := figure(record, metric)) is not None
    ]
    words = [config_text(record.config), outcome_text(record.verdict.outcome), *figures]
    kind = "proof" if is_proof(record) else "trial"
    return f"{kind} {record.number}: {', '.join(words)}"


def is_proof(record: TrialRecord) -> bool:
    """True for a fresh measurement of a finalist."""
    return record.phase == "confirm"


def anchor(record: TrialRecord) -> str:
    """The id of the record's row in the report."""
    return f"{'proof' if is_proof(record) else 'trial'}-{record.number}"


def _key(record: TrialRecord) -> tuple[str, int]:
    return (record.phase, record.number)


def _standing(
    result: StudyResult, metrics: Sequence[str]
) -> tuple[list[TrialRecord], list[TrialRecord]]:
    """What speaks for each configuration, and the trials that a fresh measurement replaces."""

    def known(records: Sequence[TrialRecord]) -> list[TrialRecord]:
        return [r for r in records if all(figure(r, metric) is not None for metric in metrics)]

    fresh, trials = known(result.recommendation.confirmations), known(result.drawn)
    proven = {record.config for record in fresh}
    standing = [record for record in trials if record.config not in proven]
    return [*standing, *fresh], [record for record in trials if record.config in proven]


def _value(record: TrialRecord, metric: str) -> float:
    return figure(record, metric) or math.nan


def point_of(
    record: TrialRecord,
    x: float,
    y: float,
    *,
    faint: bool = False,
    joined: bool = False,
    bar: tuple[float, float] | None = None,
) -> Point:
    return Point(
        x=x,
        y=y,
        look=_LOOKS[record.verdict.outcome],
        title=describe(record),
        href=f"#{anchor(record)}",
        faint=faint,
        joined=joined,
        proven=is_proof(record),
        bar=bar,
    )


def _bar(record: TrialRecord, metric: str) -> tuple[float, float] | None:
    if metric != "throughput" or record.measurement is None:
        return None
    interval = record.measurement.throughput_ci95_items_per_s
    if interval is None or not 0 < interval[0] <= interval[1] < math.inf:
        return None
    return interval


def _longest_family(records: Sequence[TrialRecord]) -> set[tuple[str, int]]:
    """Keys of the most records that differ in their batch size alone; the fastest if equal."""
    families: dict[Config, dict[int, TrialRecord]] = {}
    for record in records:
        alike = record.config.changed(batch_size=1)
        families.setdefault(alike, {})[record.config.batch_size] = record
    longest = max(
        families.values(), key=lambda f: (len(f), max(map(_rate, f.values()))), default={}
    )
    return {_key(record) for record in longest.values()} if len(longest) > 1 else set()


def _fastest_per_batch(records: Sequence[TrialRecord]) -> set[tuple[str, int]]:
    fastest: dict[int, TrialRecord] = {}
    for record in sorted(records, key=_rate):
        fastest[record.config.batch_size] = record
    return {_key(record) for record in fastest.values()}


def _rate(record: TrialRecord) -> float:
    return figure(record, "throughput") or 0.0


def _axis(result: StudyResult, metric: str) -> Axis:
    limit = next((x for x in result.facts.objective.limits if x.metric == metric), None)
    unit = METRICS[metric].unit
    return Axis(
        label=metric_label(metric),
        log=unit == "duration",
        tick_text={"duration": _duration_tick, "size": _size_tick}.get(unit, count_tick),
        limit=limit.bound if limit else None,
        limit_label=limit_text(limit) if limit else "",
    )


def _marks(
    result: StudyResult,
    drawn: Sequence[TrialRecord],
    metric: str,
    x: Callable[[TrialRecord], float],
) -> tuple[Mark, ...]:
    """The recommended configuration, the peak behind a knee, the baseline, where they are drawn."""
    knee = result.knee
    is_knee = knee is not None and knee.config == result.config and not knee.is_unknown
    named = [(result.config, "knee" if is_knee else "recommended", "best")]
    if knee is not None and knee.peak not in (result.config, result.facts.baseline):
        named.append((knee.peak, "peak", "base"))
    if result.config != result.facts.baseline:
        named.append((result.facts.baseline, "baseline", "base"))
    by_config = {record.config: record for record in drawn}
    return tuple(
        Mark(x=x(record), y=_value(record, metric), name=name, kind=kind)
        for config, name, kind in named
        if config is not None and (record := by_config.get(config)) is not None
    )


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


def _size_tick(size_bytes: float) -> str:
    """In decimal units, as ticks are decimal."""
    return f"{count_tick(size_bytes)}B"


def count_tick(value: float) -> str:
    for suffix, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.4g}{suffix}"
    return f"{value:.4g}"
