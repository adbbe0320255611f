"""What holds a configuration back, the parameter that is next, and whether forecasts came true."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.core.diagnosis import Diagnosis, Forecast
from autotune.core.outcomes import Outcome
from autotune.core.records import Config
from autotune.results import words
from autotune.results.document import (
    BROAD,
    Block,
    Bullets,
    Column,
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

LEAST_SHARE = 0.005
"""Of the time; a part that takes less is not drawn."""

MAX_FORECASTS = 8

_PARTS = {
    "queue": "waiting for an instance",
    "host": "the host's own work",
    "h2d": "copies to the device",
    "gaps": "launches and idle gaps",
    "compute": "computing",
    "memory": "memory traffic",
    "communication": "communication",
    "d2h": "copies back",
}
_SOURCES = {
    "profile": "from a recorded profile",
    "trial": "from the stage times of its trial",
    "declared": "from the simulated device's cost model",
    "files": "from a profiler's files",
}


def what_holds_it_back(result: StudyResult) -> Section | None:
    """The verdicts on where the time goes; None where it was not looked at."""
    blocks = [block for found in result.diagnoses for block in _blocks(found, result)]
    return Section(title="What holds it back", blocks=tuple(blocks)) if blocks else None


def _blocks(found: Diagnosis, result: StudyResult) -> Iterator[Block]:
    yield Paragraph(text=f"{_name(found.config, result)}, {_SOURCES[found.source]}.")
    yield Bullets(items=found.sentences)
    lanes = shares_chart(found)
    if lanes is not None:
        yield Pictures(pictures=(Picture(title="Share of the time", drawing=lanes, size=BROAD),))
    if found.forecasts:
        yield _forecasts(found.forecasts[:MAX_FORECASTS], result)


def _name(config: Config | None, result: StudyResult) -> str:
    if config is None:
        return "A configuration that is not known"
    if config == result.config:
        return "The recommended configuration"
    is_base = config == result.facts.baseline
    return "The baseline" if is_base else f"A configuration: {words.config_text(config)}"


def shares_chart(found: Diagnosis) -> Lanes | None:
    """The parts of the time as bars, the one that holds it back in red; None: none is known."""
    lanes = tuple(
        Lane(
            name=_PARTS.get(part, part),
            spans=(Span(start=0.0, end=share, colour="bad" if part == found.part else "s0"),),
            note=f"{share:.1%}",
        )
        for part, share in sorted(found.shares.items(), key=lambda pair: -pair[1])
        if share >= LEAST_SHARE
    )
    if not lanes:
        return None
    return Lanes(
        title="Share of the time",
        label="share of the time",
        tick_text=lambda share: f"{share:.0%}",
        lanes=lanes,
        high=max(1.0, *found.shares.values()),
    )


def _forecasts(forecasts: tuple[Forecast, ...], result: StudyResult) -> Table:
    columns = (
        Column(name="parameter", kind="role"),
        Column(name="change"),
        Column(name="predicted gain"),
        Column(name="measured gain"),
        Column(name="forecast", kind="outcome"),
        Column(name="by", kind="text"),
    )
    rows = tuple(
        Row(
            cells=tuple(_cells(one, result)),
            kind="" if one.holds is None else "ok" if one.holds else "over_limit",
        )
        for one in forecasts
    )
    limits = " The limits are no part of a forecast." if result.facts.objective.limits else ""
    return Table(
        caption="What a change of one parameter should bring by that, and what it was seen to "
        f"bring where two trials or the proof show it.{limits}",
        columns=columns,
        rows=rows,
    )


def _cells(one: Forecast, result: StudyResult) -> Iterator[str]:
    before, after = (words.value_text(one.knob, value) for value in (one.before, one.after))
    yield Verbatim(one.knob)
    yield Verbatim(f"{before} → {after}")
    yield f"{'≤ ' if one.at_most else ''}{words.factor_text(one.gain)}"
    measured = "" if one.measured is None else words.factor_text(one.measured)
    if one.measured_ci is not None:
        measured += f" ({words.factor_interval_text(one.measured_ci)})"
    yield measured
    yield {True: "came true", False: "off", None: "not measured"}[one.holds]
    quantity = "mean latency" if one.metric == "latency_mean" else "throughput"
    trials = " and ".join(map(str, one.trials))
    changed = next((r for r in result.records if r.number in one.trials[1:]), None)
    is_over = changed is not None and changed.verdict.outcome is Outcome.OVER_LIMIT
    over = "; the changed one is over a limit" if is_over else ""
    yield f"{quantity}, trials {trials}{over}" if trials else quantity
