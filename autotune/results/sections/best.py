"""The best configurations side by side, with what each of them took of the device."""

from __future__ import annotations

from collections.abc import Callable

from autotune.core.records import Measurement, TrialRecord
from autotune.results import words
from autotune.results.curves import is_proof
from autotune.results.document import Column, Row, Section, Table
from autotune.results.sections.figures import (
    THROUGHPUT,
    latency_and_memory_cells,
    latency_and_memory_columns,
    throughput_cell,
)
from autotune.results.sections.settings import setting_cells, setting_columns
from autotune.results.study_result import StudyResult
from autotune.results.summary import measurement_of

TOP = 10

Told = Callable[[Measurement], str]


def best_configurations(result: StudyResult) -> Section | None:
    """A table of the best few; None where nothing may be recommended, or a front is wanted."""
    ranked = result.proven_ranking.ranked[:TOP]
    if not ranked or result.front:
        return None
    told = {
        name: text
        for name, text in _DEVICE.items()
        if any(text(measurement_of(record)) for record in ranked)
    }
    columns = (
        Column(name="#"),
        *setting_columns(result),
        THROUGHPUT,
        Column(name="95 % interval", kind="number range"),
        *latency_and_memory_columns(result),
        *(Column(name=name) for name in told),
        Column(name="limits", kind="outcome"),
        Column(name="rests on", kind="short"),
    )
    rows = tuple(
        _row(place, record, result, list(told.values())) for place, record in enumerate(ranked, 1)
    )
    return Section(
        title="The best configurations",
        blocks=(Table(caption=_caption(result, len(rows), bool(told)), columns=columns, rows=rows,
                      unfold=f"All {len(rows)} configurations"),),
    )  # fmt: skip


def _caption(result: StudyResult, count: int, told: bool) -> str:
    order = "by what was measured of each"
    if result.ranking.insight is not None:
        order = "by what all trials together say of each; fresh figures speak for themselves"
    text = f"The best {count} of those that were tried, {order}."
    if not told:
        text += " The device told neither utilisation nor power."
    return text


def _row(place: int, record: TrialRecord, result: StudyResult, told: list[Told]) -> Row:
    measurement = measurement_of(record)
    interval = measurement.throughput_ci95_items_per_s
    cells = (
        str(place),
        *setting_cells(result, record.config),
        throughput_cell(record),
        words.rate_interval_text(interval).removesuffix("/s") if interval else "",
        *latency_and_memory_cells(record, result),
        *(text(measurement) for text in told),
        words.outcome_text(record.verdict.outcome),
        "the proof" if is_proof(record) else "one trial",
    )
    best = " best" if record.config == result.config else ""
    return Row(cells=cells, kind=f"{record.verdict.outcome}{best}")


_DEVICE: dict[str, Told] = {
    "utilisation": lambda m: "" if m.device_busy_ratio is None else f"{m.device_busy_ratio:.0%}",
    "power": lambda m: words.metric_text("power", m.power_w) if m.power_w else "",
}
