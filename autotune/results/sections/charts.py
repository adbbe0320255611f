"""Throughput and latency as charts: over the batch size, and against each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autotune.core.outcomes import Outcome
from autotune.results import words
from autotune.results.charts import SERIES_COLOURS, Chart
from autotune.results.curves import (
    curve,
    instance_counts,
    instances_text,
    knee_band,
    latency_metric,
    trial_map,
)
from autotune.results.document import (
    BROAD,
    Block,
    Key,
    Paragraph,
    Picture,
    Pictures,
    Section,
    paragraphs,
)
from autotune.results.front_view import front_chart, front_sentence, front_table
from autotune.results.study_result import StudyResult
from autotune.results.summary import AGAIN


def over_batch_size(result: StudyResult) -> Section | None:
    """Throughput and latency over the batch size, with the knee where one is sought.

    None of a pipeline, whose micro-batches matter instead.
    """
    if result.facts.baseline.is_pipeline:
        return None
    return Section(
        title="How throughput and latency follow the batch size",
        blocks=tuple(_curve_blocks(result)),
    )


def _curve_blocks(result: StudyResult) -> Iterator[Block]:
    latency = latency_metric(result)
    titles = {
        "throughput": "Throughput in items/s",
        latency: words.capital(words.metric_label(latency)),
    }
    charts = {metric: curve(result, metric) for metric in titles}
    drawn = [Picture(title=titles[m], drawing=chart) for m, chart in charts.items() if chart]
    if not drawn:
        text = "No trial has a measurement, so there is no curve to draw."
        yield Paragraph(text=text, is_empty=True)
        return
    yield from paragraphs(_curve_captions(result))
    yield Pictures(pictures=tuple(drawn), legends=(colours(result), looks(result, tuple(titles))))
    for metric, chart in charts.items():
        if chart is None:
            text = f"No trial has a {words.metric_label(metric)}, so there is no curve."
            yield Paragraph(text=text, is_empty=True)


def _curve_captions(result: StudyResult) -> tuple[str, ...]:
    batches = {r.config.batch_size for r in result.records if r.measurement is not None}
    caption = (
        "A line joins configurations that differ in their batch size alone; slower ones at the "
        "same batch size are faint. Each point leads to its row below."
    )
    if len(batches) == 1:
        caption = f"A single batch size, {min(batches)}, was measured: points, no curve."
    parts = [caption]
    if any(r.measurement is not None for r in result.recommendation.confirmations):
        parts.append(
            f"Large points were {AGAIN[result.facts.origin]}, and are what the figures above "
            "say; the short trials they replace are faint."
        )
    if knee_band(result) is not None:
        parts.append("The knee lies in the shaded interval with 90 % probability.")
    parts.append("Bars are 95 % intervals.")
    return (" ".join(parts),)


def trade_offs(result: StudyResult) -> Section | None:
    """The front where one is wanted, else throughput over latency; None: nothing to draw."""
    front = front_chart(result)
    chart: Chart | None = front or trial_map(result)
    if chart is None or (front is None and _has_one_batch(result)):
        return None
    title, heading = "Throughput in items/s", "What more throughput costs in latency"
    blocks: list[Block] = []
    if front is not None:
        first, second = (words.metric_label(g.metric) for g in result.facts.objective.goals[:2])
        title = f"{words.capital(first)}; the line joins the front"
        heading = f"The front: {first} against {second}"
    elif chart.joined is not None:
        text = (
            "The line joins what holds its limits and is beaten by nothing else in both: less "
            "latency costs throughput along it."
        )
        blocks.append(Paragraph(text=text))
    table = front_table(result)
    if table is not None:
        blocks.append(Paragraph(text=front_sentence(result)))
    legends = (colours(result), looks(result, (latency_metric(result), "throughput")))
    picture = Picture(title=title, drawing=chart, size=BROAD)
    blocks.append(Pictures(pictures=(picture,), legends=legends))
    if table is not None:
        blocks.append(table)
    return Section(title=heading, blocks=tuple(blocks))


def _has_one_batch(result: StudyResult) -> bool:
    """True of a pipeline whose steps all have the same items: one figure then says the other."""
    batches = {r.config.get("global_batch_size", 1) for r in result.records}
    return result.facts.baseline.is_pipeline and len(batches) == 1


def colours(result: StudyResult) -> tuple[Key, ...]:
    """The legend of the series; a pipeline has one only."""
    if result.facts.baseline.is_pipeline:
        return ()
    return tuple(
        Key(look="line", text=instances_text(count), colour=f"s{index % SERIES_COLOURS}")
        for index, count in enumerate(instance_counts(result))
    )


def looks(result: StudyResult, metrics: Sequence[str]) -> tuple[Key, ...]:
    """The legend of what is not a colour: kinds of marks with their names."""
    return tuple(Key(look=look, text=text) for look, text in _looks(result, metrics))


def _looks(result: StudyResult, metrics: Sequence[str]) -> Iterator[tuple[str, str]]:
    known = {
        "ok": ("limits hold" if result.facts.objective.limits else "measured", Outcome.OK),
        "unsure": ("undecided", Outcome.UNDECIDED),
        "broken": ("over a limit", Outcome.OVER_LIMIT),
    }
    for look, (name, outcome) in known.items():
        if str(outcome) in result.counts:
            yield look, name
    if any(r.verdict.outcome.is_infeasible for r in result.records):
        yield "failed", "could not run"
    for limit in result.facts.objective.limits:
        if limit.metric in metrics:
            yield "limit", words.limit_text(limit)
    if knee_band(result) is not None:
        yield "band", "where the knee lies"
    if result.config is not None:
        yield "best", "recommended"
    if result.config != result.facts.baseline:
        yield "base", "baseline"
