"""A front as a table, as lines of text and as a chart; its points go by letters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from string import ascii_uppercase

from autotune.core.objective import METRICS
from autotune.results import words
from autotune.results.charts import Chart, Mark, Series
from autotune.results.curves import anchor, trial_map
from autotune.results.document import Column, Row, Table
from autotune.results.front import FrontPoint
from autotune.results.sections.settings import setting_cells, setting_columns
from autotune.results.study_result import StudyResult
from autotune.results.summary import AGAIN

MAX_LETTERS = len(ascii_uppercase)
MAX_LINES = 20  # in a terminal


def front_table(result: StudyResult) -> Table | None:
    """The front, one configuration per row; None where none is wanted or known."""
    if not result.front:
        return None
    goals = [goal.metric for goal in result.facts.objective.goals]
    columns = (
        Column(name="", kind="role"),
        *(Column(name=words.metric_label(metric)) for metric in goals),
        *setting_columns(result),
        Column(name="rests on", kind="text"),
    )
    rows = []
    for letter, point in _lettered(result):
        cells = (
            letter,
            *_goal_texts(point, goals),
            *setting_cells(result, point.record.config),
            _basis(result, point),
        )
        best = " best" if point.record.config == result.config else ""
        rows.append(Row(cells=cells, kind=f"{point.record.verdict.outcome}{best}"))
    return Table(
        caption="",
        columns=columns,
        rows=tuple(rows),
        unfold=f"All {len(rows)} configurations of the front",
    )


def front_lines(result: StudyResult) -> Iterator[str]:
    """The front as lines of equal columns."""
    if not result.front:
        return
    goals = [goal.metric for goal in result.facts.objective.goals]
    yield f"  The front: {front_sentence(result)}"
    for letter, point in islice(_lettered(result), MAX_LINES):
        cells = "  ".join(f"{text:>11}" for text in _goal_texts(point, goals))
        config = words.config_text(point.record.config, result.searched or ("batch_size",))
        mark = "  (recommended)" if point.record.config == result.config else ""
        yield f"  {letter or ' '}  {cells}  {config}  {_basis(result, point)}{mark}"
    if len(result.front) > MAX_LINES:
        yield f"  … and {len(result.front) - MAX_LINES} more, all in the report"


def front_sentence(result: StudyResult) -> str:
    """How many there are, how many of them rest on more than a trial, and how to choose."""
    points = result.front
    beaten = sum(point.beaten_by is not None for point in points)
    proven = sum(point.is_proven and point.beaten_by is None for point in points)
    count = len(points) - beaten
    text = f"{count} configuration{'s are' if count != 1 else ' is'} beaten by no other in all"
    text += " goals; " + (
        f"{proven} of them {AGAIN[result.facts.origin]}"
        if proven
        else "each rests on a single trial"
    )
    if beaten:
        text += f"; {beaten} that seemed to be was beaten there"
    study, metric = words.quoted(result.facts.study), result.facts.objective.goals[-1].metric
    return f"{text}. Choose by what you need: autotune show {study} --prefer {metric}=…"


def front_chart(result: StudyResult) -> Chart | None:
    """Every trial by the first two goals, the front joined by a line and named by its letters."""
    goals = [goal.metric for goal in result.facts.objective.goals]
    if len(goals) < 2 or not result.front:
        return None
    chart = trial_map(result, x_metric=goals[1], y_metric=goals[0])
    if chart is None:
        return None
    on_front = {f"#{anchor(p.record)}" for p in result.front if p.beaten_by is None}
    series = tuple(
        replace(one, points=tuple(replace(p, faint=p.href not in on_front) for p in one.points))
        for one in chart.series
    )
    line = [p for one in series for p in one.points if p.href in on_front]
    joined = Series(name="front", points=tuple(replace(p, joined=True) for p in line))
    places = {p.href: p for p in line}
    marks = [
        Mark(x=place.x, y=place.y, name=letter, kind="point")
        for letter, point in _lettered(result)
        if letter and (place := places.get(f"#{anchor(point.record)}")) is not None
    ]
    best = [m for m in chart.marks if m.kind == "best"]
    letters = {(m.x, m.y): m.name for m in marks}
    named = [replace(m, name=f"{letters.get((m.x, m.y), '')} recommended".strip()) for m in best]
    others = [m for m in marks if (m.x, m.y) not in {(b.x, b.y) for b in best}]
    return replace(chart, series=series, joined=joined, marks=(*named, *others))


def _lettered(result: StudyResult) -> Iterator[tuple[str, FrontPoint]]:
    for place, point in enumerate(result.front):
        yield (ascii_uppercase[place] if place < MAX_LETTERS else ""), point


def _goal_texts(point: FrontPoint, goals: list[str]) -> list[str]:
    figures = point.record.verdict.objectives
    return [words.metric_text(metric, figures.get(METRICS[metric].field)) for metric in goals]


def _basis(result: StudyResult, point: FrontPoint) -> str:
    if not point.is_proven:
        return "one trial"
    if point.beaten_by is None:
        return AGAIN[result.facts.origin]
    return f"beaten by {words.config_text(point.beaten_by, result.searched or None)}"
