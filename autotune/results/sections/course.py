"""How the search went: what came of each trial, and when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from autotune.core.outcomes import Outcome
from autotune.core.records import TrialRecord
from autotune.core.units import format_duration
from autotune.results import words
from autotune.results.charts import Axis, Chart, Point, Series
from autotune.results.curves import count_tick, describe, figure, point_of
from autotune.results.document import (
    BROAD,
    Block,
    Key,
    Paragraph,
    Picture,
    Pictures,
    Section,
    Verbatim,
)
from autotune.results.lanes import Lane, Lanes, Span
from autotune.results.sections.charts import looks
from autotune.results.study_result import StudyResult

MAX_WORKERS = 8
"""Workers that have a colour of their own; with more all trials have one."""

_COLOURS = {Outcome.OK: "good", Outcome.UNDECIDED: "warn", Outcome.OVER_LIMIT: "bad"}
_OTHERS = ("s7", "s4", "s3", "s6", "s5", "s1", "s2")


def how_trials_ended(result: StudyResult) -> Section | None:
    """How many trials ended in which way, and when each did."""
    if not result.records:
        return None
    total = sum(result.counts.values())
    others = iter(_OTHERS)
    spans, keys, at = [], [], 0
    for name, count in result.counts.items():
        colour = _COLOURS.get(Outcome(name)) or next(others)
        text = words.outcome_text(name)
        spans.append(Span(start=at, end=at + count, colour=colour, text=str(count), title=text))
        keys.append(Key(look="area", text=f"{count} {text}", colour=colour))
        at += count
    lanes = Lanes(
        title="Trials by outcome",
        label="trials",
        tick_text=lambda value: f"{value:g}" if value == int(value) else "",
        lanes=(Lane(name="all trials", spans=tuple(spans), note=str(total)),),
    )
    picture = Picture(title="Trials by outcome", drawing=lanes, size=BROAD)
    blocks = [Pictures(pictures=(picture,), legends=(tuple(keys),)), *_timeline(result)]
    return Section(title="How the search went", blocks=tuple(blocks))


def _timeline(result: StudyResult) -> Iterator[Block]:
    """Each trial's throughput at its end, and the best so far."""
    ends_s = _ends_s(result)
    timed = [
        (ends_s[r.number], r)
        for r in result.drawn
        if r.number in ends_s and figure(r, "throughput") is not None
    ]
    if len(timed) < 2:
        return
    series = _by_worker(timed)
    failed = tuple(
        (ends_s[r.number], describe(r))
        for r in result.drawn
        if r.number in ends_s and not r.verdict.outcome.is_measured
    )
    chart = Chart(
        title="Throughput of each trial over time",
        x=Axis(label="time since the first trial", log=False, tick_text=_time_tick),
        y=Axis(label="throughput", log=False, tick_text=count_tick),
        series=series,
        failed=failed,
        joined=Series(name="best so far", points=tuple(_best_so_far(timed))),
    )
    yield Paragraph(text=_timeline_caption(result))
    keys = [Key(look="front", text="best so far that holds its limits")]
    keys += [k for k in looks(result, ()) if k.look in ("ok", "unsure", "broken", "failed")]
    legends: list[tuple[Key, ...]] = [tuple(keys)]
    if len(series) > 1:
        legends.insert(0, tuple(
            Key(look="line", text=one.name, colour=f"s{index}") for index, one in enumerate(series)
        ))  # fmt: skip
    picture = Picture(title="Throughput in items/s", drawing=chart, size=BROAD)
    yield Pictures(pictures=(picture,), legends=tuple(legends))


def _by_worker(timed: Sequence[tuple[float, TrialRecord]]) -> tuple[Series, ...]:
    """A series for each worker, or one of all where there is one or very many."""
    workers = sorted({record.worker for _, record in timed})
    groups = workers if 1 < len(workers) <= MAX_WORKERS else [None]
    return tuple(
        Series(
            name=Verbatim(worker or ""),
            points=tuple(
                point_of(r, at, figure(r, "throughput") or 0.0)
                for at, r in timed
                if worker is None or r.worker == worker
            ),
        )
        for worker in groups
    )


def _timeline_caption(result: StudyResult) -> str:
    clock = "" if result.facts.origin == "measured" else ", on a virtual clock"
    return (
        f"Every trial at the time it ended{clock}; the line is the best so far that holds its "
        "limits. What could not be measured is marked at the foot."
    )


def _ends_s(result: StudyResult) -> dict[int, float]:
    """When each trial ended, by its number, in seconds since the first one began."""
    records = [r for r in result.records if not r.verdict.outcome.is_retried]
    if result.facts.origin != "measured" or any(r.started_at_s <= 0 for r in records):
        # A virtual clock: one trial after the other.
        sums = accumulate(max(r.cost_s, r.duration_s) for r in records)
        return {r.number: end for r, end in zip(records, sums, strict=True)}
    began = min((r.started_at_s for r in records), default=0.0)
    return {r.number: r.started_at_s - began + max(r.cost_s, r.duration_s) for r in records}


def _best_so_far(timed: Sequence[tuple[float, TrialRecord]]) -> Iterator[Point]:
    """The corners of the steps."""
    best, last = 0.0, None
    for at, record in sorted(timed, key=lambda pair: pair[0]):
        value = figure(record, "throughput") or 0.0
        if record.verdict.outcome is not Outcome.OK or value <= best:
            continue
        corner = point_of(record, at, value)
        if last is not None:
            yield replace(corner, y=last)
        yield corner
        best = last = value
    if last is not None:
        end_s, record = max(timed, key=lambda pair: pair[0])
        yield point_of(record, end_s, last)


def _time_tick(seconds: float) -> str:
    return format_duration(seconds) if seconds >= 120 else f"{seconds:g} s"
