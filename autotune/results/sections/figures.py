"""What was measured of a configuration in a table: throughput, latency, memory."""

from __future__ import annotations

from autotune.core.records import TrialRecord
from autotune.core.units import format_rate
from autotune.results import words
from autotune.results.curves import figure, latency_metric
from autotune.results.document import Column
from autotune.results.study_result import StudyResult

THROUGHPUT = Column(name="throughput", unit="items/s")


def latency_and_memory_columns(result: StudyResult) -> tuple[Column, Column]:
    """Columns of the latency that counts in a study, and of the most memory used."""
    name = words.metric_label(latency_metric(result))
    return Column(name=name, unit="ms"), Column(name="peak memory", unit="MiB")


def throughput_cell(record: TrialRecord) -> str:
    """Items per second, empty where unknown like the next two."""
    throughput = figure(record, "throughput")
    return "" if throughput is None else format_rate(throughput).removesuffix("/s")


def latency_and_memory_cells(record: TrialRecord, result: StudyResult) -> tuple[str, str]:
    """Milliseconds and MiB."""
    latency, memory = figure(record, latency_metric(result)), figure(record, "memory_peak")
    return (
        "" if latency is None else f"{latency * 1e3:,.3f}",
        "" if memory is None else f"{memory / 2**20:,.0f}",
    )
