"""A pipeline's step: what its ranks did in it, theory beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.core.pipeline import PipelineFigures, RankFigures
from autotune.core.pipeline import Span as Piece
from autotune.core.records import Config, TrialRecord
from autotune.core.units import format_duration
from autotune.results import words
from autotune.results.charts import SERIES_COLOURS, Axis, Chart, Point, Series
from autotune.results.curves import describe, figure
from autotune.results.document import (
    BROAD,
    Block,
    Bullets,
    Column,
    Key,
    Paragraph,
    Picture,
    Pictures,
    Row,
    Section,
    Table,
    Verbatim,
)
from autotune.results.lanes import Lane, Lanes, Span
from autotune.results.study_result import StudyResult

PIECES = {
    "F": ("forward", "s0"),
    "B": ("backward", "s2"),
    "I": ("backward to the inputs", "s4"),
    "W": ("backward to the weights", "s3"),
    "R": ("gradients over replicas", "s1"),
    "U": ("update of the weights", "s5"),
}
"""Kinds of work with their words and colours."""

UNEVEN = 0.1  # a rank that works so much longer than the mean is named
LONGER = 1.05  # work in all that has grown by less is not worth a word
LEAST_SHARE = 0.005  # of a bubble that is worth a word


def over_micro_batches(result: StudyResult) -> Section | None:
    """Throughput over the micro-batch count; None of what is no pipeline."""
    drawn = [r for r in result.records if _figures(r) and figure(r, "throughput")]
    if not drawn:
        return None
    schedules = sorted({str(r.config.get("schedule", "GPipe")) for r in drawn})
    series = tuple(Series(name=name, points=tuple(_points(drawn, name))) for name in schedules)
    counts = sorted({float(r.config.micro_batch_count) for r in drawn})
    chart = Chart(
        title="Throughput over micro-batches",
        x=Axis(
            label="micro-batches of a step",
            log=True,
            tick_text=lambda v: f"{v:g}",
            ticks=tuple(counts),
        ),
        y=Axis(
            label="throughput", log=False, tick_text=lambda v: words.metric_text("throughput", v)
        ),
        series=series,
    )
    keys = tuple(
        Key(look="line", text=Verbatim(name), colour=f"s{i % SERIES_COLOURS}")
        for i, name in enumerate(schedules)
    )
    text = (
        "A line joins the fastest configuration of a schedule at every micro-batch count: with few "
        "of them ranks wait for each other, with many each costs time of its own."
    )
    picture = Picture(title="Throughput in items/s", drawing=chart, size=BROAD)
    return Section(
        title="How throughput follows the micro-batches",
        blocks=(Paragraph(text=text), Pictures(pictures=(picture,), legends=(keys,))),
    )


def _points(records: list[TrialRecord], schedule: str) -> Iterator[Point]:
    mine = [r for r in records if str(r.config.get("schedule", "GPipe")) == schedule]
    best: dict[int, TrialRecord] = {}
    for record in mine:
        count = record.config.micro_batch_count
        if count not in best or _rate(record) > _rate(best[count]):
            best[count] = record
    for record in sorted(mine, key=lambda r: r.config.micro_batch_count):
        is_best = best[record.config.micro_batch_count] is record
        yield Point(
            x=float(record.config.micro_batch_count),
            y=_rate(record),
            look="ok",
            title=describe(record),
            joined=is_best,
            faint=not is_best,
        )


def one_step(result: StudyResult) -> Section | None:
    """Where the time of a step went, of the configuration that is shown; None without ranks."""
    record = result.shown
    fresh = [r for r in result.recommendation.confirmations if record and r.config == record.config]
    record = fresh[0] if fresh else record
    found = None if record is None else _figures(record)
    if record is None or found is None:
        return None
    blocks: list[Block] = [Bullets(items=tuple(_sentences(found, record, result)))]
    lanes = _lanes(found)
    if lanes is not None:
        used = {piece.kind for line in found.spans for piece in line}
        keys = tuple(
            Key(look="area", text=name, colour=colour)
            for kind, (name, colour) in PIECES.items()
            if kind in used
        )
        picture = Picture(title="One step, rank by rank", drawing=lanes, size=BROAD)
        blocks.append(Pictures(pictures=(picture,), legends=(keys,)))
    blocks.append(_table(found))
    return Section(title="What the ranks did in a step", blocks=tuple(blocks))


def _sentences(found: PipelineFigures, record: TrialRecord, result: StudyResult) -> Iterator[str]:
    yield f"The ranks idled for {_percent(found.bubble_ratio)} % of the passes' time (bubble)."
    formula, replayed = found.formula_bubble_ratio, found.replayed_bubble_ratio
    if formula is None:
        yield "For this schedule with so many micro-batches there is no formula."
    else:
        yield f"The formula for even stages and free transfers says {_percent(formula)} %."
    yield (
        "The same order of work with every stage's own times and free transfers leaves "
        f"{_percent(replayed)} %."
    )
    if formula is not None and replayed - formula > LEAST_SHARE:
        points = _percent(replayed - formula)
        yield f"Stages of different length make {points} points of difference to the formula."
    if found.bubble_ratio - replayed > LEAST_SHARE:
        points = _percent(found.bubble_ratio - replayed)
        yield f"Transfers, launches and passes of varying length add {points} points."
    busy_s = [rank.busy_s for rank in found.ranks]
    mean_s = sum(busy_s) / len(busy_s)
    longest = max(found.ranks, key=lambda rank: rank.busy_s)
    if longest.busy_s > (1 + UNEVEN) * mean_s:
        more = _percent(longest.busy_s / mean_s - 1)
        yield (
            f"Rank {longest.rank} computes longest, {more} % above the mean: another split may "
            "shorten the step."
        )
    yield from _grown(found, record.config, result)
    if found.loss_difference is None or found.gradient_difference is None:
        yield "Loss and gradients were not compared with those of the model without a pipeline."
    else:
        off = max(found.loss_difference, found.gradient_difference)
        yield f"Loss and gradients are those of the model without a pipeline, within {off:.1g}."
    yield "Throughput says nothing of how many samples a training takes."


def _grown(found: PipelineFigures, config: Config, result: StudyResult) -> Iterator[str]:
    """How much longer all computing takes than with fewer micro-batches."""
    fewer = [
        (r.config.micro_batch_count, sum(rank.busy_s for rank in other.ranks))
        for r in result.records
        if (other := _figures(r)) is not None
        and r.config.micro_batch_count < config.micro_batch_count
        and r.config.changed(micro_batch_count=config.micro_batch_count) == config
    ]
    if not fewer:
        return
    count, least_s = min(fewer)
    ratio = sum(rank.busy_s for rank in found.ranks) / least_s
    if ratio > LONGER:
        yield (
            f"Computing took {ratio:.2f} times as long in all as with {count} micro-batches: "
            "smaller pieces cost more for every item."
        )


def _lanes(found: PipelineFigures) -> Lanes | None:
    if not found.spans:
        return None
    lanes = tuple(
        Lane(
            name=f"rank {rank.rank}",
            spans=tuple(map(_span, line)),
            note=f"{_percent(rank.busy_s / max(found.step_s, 1e-12))} % busy",
        )
        for rank, line in zip(found.ranks, found.spans, strict=True)
    )
    return Lanes(
        title="One step, rank by rank", label="time", tick_text=format_duration, lanes=lanes
    )


def _span(piece: Piece) -> Span:
    name, colour = PIECES[piece.kind]
    of = "" if piece.micro_batch < 0 else f" {piece.micro_batch}"
    title = f"{name}{of}: {format_duration(piece.end_s - piece.start_s)}"
    return Span(
        start=piece.start_s, end=piece.end_s, colour=colour, text=Verbatim(of.strip()), title=title
    )


def _table(found: PipelineFigures) -> Table:
    columns = (
        Column(name="rank"),
        Column(name="stages"),
        Column(name="layers"),
        Column(name="computing", unit="ms"),
        Column(name="waiting", unit="ms"),
        Column(name="transfers", unit="ms"),
        Column(name="gradients over replicas", unit="ms"),
        Column(name="update", unit="ms"),
        Column(name="micro-batches held"),
        Column(name="peak memory", unit="MiB"),
    )
    caption = f"The step of median length, {format_duration(found.step_s)}, rank by rank."
    return Table(caption=caption, columns=columns, rows=tuple(map(_row, found.ranks)))


def _row(rank: RankFigures) -> Row:
    peak = rank.memory_peak_bytes
    cells = (
        str(rank.rank),
        ", ".join(map(str, rank.stages)),
        ", ".join(map(str, rank.layers)),
        *(
            f"{seconds * 1e3:.3g}"
            for seconds in (
                rank.busy_s, rank.waiting_s, rank.communication_s, rank.reduction_s, rank.update_s
            )
        ),
        str(rank.in_flight),
        "unknown" if peak is None else f"{peak / 2**20:.3g}",
    )  # fmt: skip
    return Row(cells=cells)


def _figures(record: TrialRecord) -> PipelineFigures | None:
    return record.measurement.pipeline if record.measurement else None


def _rate(record: TrialRecord) -> float:
    return figure(record, "throughput") or 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
