"""Where the time of a call goes, as far as the device tells."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.core.records import Config, TrialRecord
from autotune.core.units import format_duration
from autotune.results import words
from autotune.results.document import BROAD, Key, Paragraph, Picture, Pictures, Section
from autotune.results.lanes import Lane, Lanes, Span
from autotune.results.study_result import StudyResult

_STAGES = {
    "h2d_mean_s": ("copies to the device", "s0"),
    "compute_mean_s": ("computing", "s2"),
    "d2h_mean_s": ("copies back", "s1"),
}


def where_time_goes(result: StudyResult) -> Section | None:
    """The stages of a mean call, of what is recommended and what it is compared with."""
    chart = stages_chart(result)
    if chart is None:
        return None
    text = (
        "The mean call of each configuration by its stages, as the device timed them; stages may "
        "overlap those of other micro-batches and instances."
    )
    keys = tuple(Key(look="area", text=name, colour=colour) for name, colour in _STAGES.values())
    picture = Picture(title="Mean time of a call", drawing=chart, size=BROAD)
    return Section(
        title="Where the time of a call goes",
        blocks=(Paragraph(text=text), Pictures(pictures=(picture,), legends=(keys,))),
    )


def stages_chart(result: StudyResult) -> Lanes | None:
    """The stages as bars, a configuration per lane; None if no stage time is known."""
    lanes = tuple(_lanes(result))
    if not lanes:
        return None
    return Lanes(title="Mean time of a call", label="time", tick_text=_tick, lanes=lanes)


def _lanes(result: StudyResult) -> Iterator[Lane]:
    for role, record in _records(result):
        measurement = record.measurement
        if measurement is None:
            continue
        times = {field: getattr(measurement, field) or 0.0 for field in _STAGES}
        if not sum(times.values()) > 0:
            continue
        at, spans = 0.0, []
        for field, seconds in times.items():
            name, colour = _STAGES[field]
            span = Span(
                start=at, end=at + seconds, colour=colour, text=format_duration(seconds),
                title=f"{name}: {format_duration(seconds)}",
            )  # fmt: skip
            spans += [span] if seconds > 0 else []
            at += seconds
        config = words.config_text(record.config, result.searched or ("batch_size",))
        copies = measurement.copies_per_call
        told = f"{copies} copies per call" if copies else ""
        yield Lane(name=f"{role}: {config}", spans=tuple(spans), note=told)


def _records(result: StudyResult) -> Iterator[tuple[str, TrialRecord]]:
    """What is recommended, the best batch size alone, and the baseline; fresh where there is."""
    fresh = {record.config: record for record in result.recommendation.confirmations}
    seen: set[Config] = set()
    named = (
        ("recommended" if result.config else "closest", result.shown),
        ("batch size alone", result.ranking.batch_only),
        ("baseline", result.recommendation.baseline),
    )
    for role, record in named:
        if record is not None and record.config not in seen:
            seen.add(record.config)
            yield role, fresh.get(record.config, record)


def _tick(seconds: float) -> str:
    return format_duration(seconds)
