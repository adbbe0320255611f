from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from autotune.core.outcomes import Outcome
from autotune.core.records import Config, TrialRecord
from autotune.results.charts import Axis, Chart, Point, Series, draw
from autotune.results.recommend import Ranking, decide, rank
from autotune.results.report import render
from autotune.results.study_result import Ending, StudyResult

Make = Callable[..., StudyResult]
VOID = {"meta", "link", "br", "wbr", "circle", "line", "path", "rect", "polyline"}


class Page(HTMLParser):
    """The page's text, its elements, and whether every element that is opened is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def page_of(result: StudyResult) -> Page:
    page = Page(render(result, now_s=1.7e9, version="1.2.3"))
    assert page.open == []
    return page


def test_the_decision_comes_first_with_its_evidence(make_study: Make) -> None:
    result = make_study()
    text = page_of(result).text
    decision = text.index("Use this configuration")
    assert decision < text.index("Do it again") < text.index("Every trial")
    for words in ("confirmed", "95 % interval", "holds ≤ 20.0 ms", "Gain over the baseline"):
        assert words in text
    assert "autotune measure --space online.yaml" in text
    assert "autotune 1.2.3 · 2023-11-14 22:13 UTC" in text


def test_it_needs_neither_network_nor_script(make_study: Make) -> None:
    page = page_of(make_study())
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "img", "iframe", "object"}
    for _, attributes in page.tags:
        for name in ("href", "src"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))
    html = render(make_study(), now_s=0, version="1.2.3")
    assert "url(" not in html and "@import" not in html and "http://" not in html
    assert len(html) < 1_000_000


def test_every_trial_is_in_the_table_and_every_point_leads_to_its_row(make_study: Make) -> None:
    result = make_study()
    page = page_of(result)
    anchors = {attributes.get("id") for tag, attributes in page.tags if tag == "tr"}
    links = {attributes["href"] for tag, attributes in page.tags if tag == "a"}
    assert {f"trial-{record.number}" for record in result.records} <= anchors
    assert links and {link[1:] for link in links if link} <= anchors


def test_names_and_reasons_are_escaped(
    make_study: Make, make_trial: Callable[..., TrialRecord]
) -> None:
    evil = "<script>alert(1)</script>"
    result = make_study(study=evil)
    crash = make_trial(Config(batch_size=3), outcome=Outcome.CRASHED, reasons=(evil,), number=99)
    crash = replace(crash, log_tail=f"</pre>{evil}")
    odd = replace(result.recommendation, reasons=(evil,))
    facts = replace(
        result.facts, settings={evil: evil}, space_text=evil, workload=evil, command=(evil,)
    )
    html = render(
        replace(result, facts=facts, records=(*result.records, crash), recommendation=odd),
        now_s=0,
        version="1",
    )
    assert "<script" not in html
    assert "&lt;script&gt;" in html


@pytest.mark.parametrize(
    ("origin", "words"),
    [("simulated", "nothing was measured on a device"), ("replayed", "nothing was measured")],
)
def test_figures_that_were_not_measured_are_never_called_so(
    origin: str, words: str, make_study: Make
) -> None:
    result = make_study()
    result = replace(result, facts=replace(result.facts, origin=origin))  # type: ignore[arg-type]
    text = page_of(result).text
    assert words in text
    assert "Measured again" not in text and "were measured" not in text


def test_nothing_feasible_shows_the_closest_marked_as_breaking_the_limit(make_study: Make) -> None:
    text = page_of(make_study(limit_s=0.0005)).text
    assert "No tested configuration holds P99 latency ≤ 500 µs" in text
    assert "breaks ≤ 500 µs" in text
    assert "Use this configuration" not in text


def test_with_nothing_to_draw_there_are_words_instead_of_an_empty_plot(
    make_study: Make, make_trial: Callable[..., TrialRecord]
) -> None:
    result = make_study()
    objective, baseline = result.facts.objective, result.facts.baseline
    oom = make_trial(baseline, outcome=Outcome.OOM, reasons=("too large",))
    for records in ((), (oom,)):
        decided = decide(rank(records, objective, baseline), objective)
        page = page_of(replace(result, records=records, recommendation=decided))
        assert "there is no curve to draw" in page.text
        charts = [a for tag, a in page.tags if tag == "svg" and a.get("class") == "chart"]
        assert charts == []


def test_one_batch_size_is_points_and_says_so(
    make_study: Make, make_trial: Callable[..., TrialRecord]
) -> None:
    result = make_study()
    records = (make_trial(Config(cores_per_instance=1)),)
    decided = decide(
        rank(records, result.facts.objective, result.facts.baseline), result.facts.objective
    )
    text = page_of(replace(result, records=records, recommendation=decided)).text
    assert "A single batch size, 1, was measured" in text


def test_a_search_that_was_stopped_says_how_far_it_came(make_study: Make) -> None:
    result = make_study()
    facts = replace(result.facts, trials=100)
    ending = Ending(complete=False, stopped="stopped by time", elapsed_s=3.0)
    text = page_of(replace(result, facts=facts, ending=ending)).text
    assert "32 of 100" in text
    assert "not complete: stopped by time" in text


def test_texts_of_a_chart_do_not_overlap(make_study: Make) -> None:
    """Tick labels of one axis keep their distance, at both sizes, whatever the range."""
    for limit_s, trials in ((0.020, 32), (0.0005, 12), (0.003, 3)):
        html = render(make_study(limit_s=limit_s, trials=trials), now_s=0, version="1.2.3")
        for svg in re.findall(r'<svg class="chart".*?</svg>', html, re.S):
            ticks = re.findall(
                r'class="tick" x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)">([^<]+)', svg
            )
            feet = sorted((float(x), text) for x, _, anchor, text in ticks if anchor == "middle")
            sides = sorted(float(y) for _, y, anchor, _ in ticks if anchor == "end")
            assert len(feet) >= 2 and len(sides) >= 2
            for (left, a), (right, b) in pairwise(feet):
                assert right - left >= 6.6 * (len(a) + len(b)) / 2
            assert all(b - a >= 14 for a, b in pairwise(sides))


def test_an_empty_ranking_needs_no_special_case(make_study: Make) -> None:
    result = make_study()
    empty = decide(Ranking(), result.facts.objective)
    assert (
        "No trial is complete yet"
        in page_of(replace(result, records=(), recommendation=empty)).text
    )


def test_a_marks_label_takes_the_place_that_hides_least() -> None:
    axis = Axis(label="", log=False, tick_text=str)

    def label_of(*others: tuple[float, float]) -> tuple[str, str]:
        points = tuple(
            Point(x=x, y=y, look="ok", title="") for x, y in ((5.0, 5.0), (10.0, 10.0), *others)
        )
        marks = ((5.0, 5.0, "here", "best"),)
        chart = Chart(
            title="", x=axis, y=axis, series=(Series(name="", points=points),), marks=marks
        )
        svg = draw(chart, 400, 300)
        found = re.search(r'mark-label best" x="[\d.]+" y="([\d.]+)" text-anchor="(\w+)"', svg)
        assert found is not None
        return found[1], found[2]

    free_y, free_side = label_of()
    assert free_side == "start"
    crowded_y, crowded_side = label_of((5.5, 5.5), (5.7, 5.5))
    assert (crowded_y, crowded_side) != (free_y, free_side)
