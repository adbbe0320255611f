"""The proof, the best configurations, and every trial: as tables."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.core.outcomes import Outcome
from autotune.core.records import Comparison, TrialRecord
from autotune.core.units import format_duration
from autotune.results import words
from autotune.results.curves import anchor
from autotune.results.document import Column, Paragraph, Row, Section, Table, Verbatim
from autotune.results.gain import interval95
from autotune.results.ranking import is_batch_only
from autotune.results.sections.figures import (
    THROUGHPUT,
    latency_and_memory_cells,
    latency_and_memory_columns,
    throughput_cell,
)
from autotune.results.sections.settings import setting_cells, setting_columns
from autotune.results.study_result import StudyResult
from autotune.results.summary import AGAIN
from autotune.results.why import factors, is_faster


def every_trial(result: StudyResult) -> Section:
    """Every trial in its order, with what it measured and why it ended as it did."""
    table = _trials_table(result)
    empty = Paragraph(text="No trial of this study is complete yet.", is_empty=True)
    return Section(title="Every trial", blocks=(table if table.rows else empty,))


def _trials_table(result: StudyResult) -> Table:
    columns = (
        Column(name="#"),
        Column(name="outcome", kind="outcome"),
        *setting_columns(result),
        THROUGHPUT,
        *latency_and_memory_columns(result),
        Column(name="cost", unit="s"),
        Column(name="reason", kind="text"),
    )
    rows = []
    for record in result.drawn:
        cells = (
            str(record.number),
            words.outcome_text(record.verdict.outcome),
            *setting_cells(result, record.config),
            throughput_cell(record),
            *latency_and_memory_cells(record, result),
            f"{record.cost_s:.2f}",
            _remark(record),
        )
        best = record.config == result.config
        rows.append(
            Row(cells=cells, kind=f"{_kind(record)}{' best' if best else ''}",
                id=anchor(record))
        )  # fmt: skip
    return Table(
        caption=_trials_caption(result),
        columns=columns,
        rows=tuple(rows),
        unfold=f"All {len(rows)} trials",
    )


def _remark(record: TrialRecord) -> str:
    """Why a trial ended as it did, and whether it was disturbed."""
    trust = words.trust_text(record) if record.measurement else ""
    return "; ".join(filter(None, (words.reason_text(record), trust if trust != "quiet" else "")))


def _trials_caption(result: StudyResult) -> str:
    caption = "In the order in which they ran"
    if result.config is not None:
        caption += "; the recommended configuration is marked"
    caption += (
        ". Cost is all that a trial took: starting processes, loading, warming up, measuring."
    )
    if len(result.drawn) < len(result.records):
        study = words.quoted(result.facts.study)
        caption += (
            f" Of {len(result.records):,} trials {len(result.drawn):,} are shown here and in the "
            "charts: the best, what was measured again, some of each failure, and every n-th of "
            f"the others; autotune show {study} --csv has all."
        )
    fixed = [n for n, choices in result.facts.params.items() if len(choices) == 1]
    if fixed and result.records:
        caption += f" The same in all: {words.config_text(result.records[0].config, fixed)}."
    return caption


def the_proof(result: StudyResult) -> Section:
    """The fresh measurements, each with its ratio to the baseline that ran beside it."""
    again = AGAIN[result.facts.origin]
    if result.recommendation.confirmations:
        return Section(title="The proof", blocks=(_proof_table(result, again),))
    rests = ": the figures above rest on one short trial each" if result.shown else ""
    nothing = Paragraph(text=f"Nothing was {again}{rests}.", is_empty=True)
    return Section(title="The proof", blocks=(nothing,))


def _proof_table(result: StudyResult, again: str) -> Table:
    recommendation = result.recommendation
    against = {
        c.config: c for c in recommendation.comparisons if c.reference == result.facts.baseline
    }
    has_interval = any(c.ratio_ci for c in against.values())
    columns = (
        Column(name="role", kind="role"),
        Column(name="configuration", kind="text settings"),
        Column(name="verdict", kind="outcome"),
        THROUGHPUT,
        *latency_and_memory_columns(result),
        Column(name="against the baseline", unit="95 % interval" if has_interval else ""),
        Column(name="why it is not recommended", kind="text"),
    )
    rows = tuple(
        Row(
            cells=(
                _role(record, result),
                Verbatim(words.config_text(record.config, result.searched or ("batch_size",))),
                words.outcome_text(record.verdict.outcome),
                throughput_cell(record),
                *latency_and_memory_cells(record, result),
                _ratio_cell(record, against.get(record.config), result),
                _why_not(record, result),
            ),
            kind=f"{_kind(record)}{' best' if record.config == result.config else ''}",
            id=anchor(record),
        )
        for record in recommendation.confirmations
    )
    return Table(
        caption=_proof_caption(result, again, list(against.values())), columns=columns, rows=rows
    )


def _proof_caption(result: StudyResult, again: str, comparisons: Sequence[Comparison]) -> str:
    how = f"The finalists were {again}"
    if not comparisons:
        return f"{how}."
    pairs = max(len(c.pair_ratios) for c in comparisons)
    seconds = sum(r.duration_s for r in result.recommendation.confirmations)
    if not pairs:
        return f"{how}, each at rates of its own: {format_duration(seconds)} in all."
    beside = (
        "in alternating windows beside the baseline"
        if all(c.interleaved for c in comparisons)
        else "in turns with the baseline, since both did not fit at once"
    )
    return f"{how}, {beside}: {pairs} pairs, {format_duration(seconds)} in all."


def _ratio_cell(record: TrialRecord, comparison: Comparison | None, result: StudyResult) -> str:
    if record.config == result.facts.baseline:
        return words.factor_text(1.0)
    if comparison is None:
        return ""
    factor, interval = words.factor_text(comparison.ratio), interval95(comparison)
    return f"{factor} ({words.factor_interval_text(interval)})" if interval else factor


def _role(record: TrialRecord, result: StudyResult) -> str:
    baseline, knee = result.facts.baseline, result.knee
    if knee is not None:
        named = {
            "knee": record.config == knee.config,
            "peak": record.config == knee.peak,
            "baseline": record.config == baseline,
        }
        return ", ".join(name for name, holds in named.items() if holds)
    roles = {
        "recommended": record.config == result.config,
        "baseline": record.config == baseline,
        "batch size alone": is_batch_only(record.config, baseline),
    }
    return ", ".join(name for name, holds in roles.items() if holds)


def _why_not(record: TrialRecord, result: StudyResult) -> str:
    """Why a finalist lost; empty for the winner, the baseline, and where nothing was compared."""
    if record.config in (result.config, result.facts.baseline):
        return ""
    reason = words.reason_text(record)
    if record.verdict.outcome is not Outcome.OK:
        return f"faster, but {reason}" if reason and is_faster(record, result) else reason
    compared = factors(result)
    if result.config in compared and record.config in compared and not is_faster(record, result):
        return "slower than the recommended one"
    return ""


def _kind(record: TrialRecord) -> str:
    outcome = record.verdict.outcome
    if outcome.is_measured:
        return str(outcome)
    return "retried" if outcome.is_retried else "failed"
