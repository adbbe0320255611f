from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from autotune.core.outcomes import Outcome
from autotune.core.records import Config, TrialRecord, Verdict
from autotune.results.ranking import Ranking, rank
from autotune.results.recommend import decide
from autotune.results.report import FIRST_ROWS, render
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


def test_what_the_device_told_of_itself_is_there_and_nothing_that_it_did_not(
    make_study: Make,
) -> None:
    result = make_study()
    assert "The device beside" not in page_of(result).text
    told = {"utilisation_mean_ratio": 0.43, "temperature_max_c": 61.0, "power_mean_w": 210.4}
    shown = result.shown
    assert shown is not None and shown.measurement is not None
    seen = replace(shown, measurements=(replace(shown.measurement, telemetry=told),))
    confirmed = result.recommendation.confirmations
    changed = replace(
        result.recommendation,
        record=seen,
        confirmations=tuple(seen if r is shown else r for r in confirmed),
    )
    text = page_of(replace(result, recommendation=changed)).text
    assert "The device beside the measurement" in text
    for figure in ("43%", "61 °C", "210 W"):
        assert figure in text
    assert "MHz" not in text


def test_the_decision_comes_first_with_its_evidence(make_study: Make) -> None:
    result = make_study()
    text = page_of(result).text
    decision = text.index("Use this configuration")
    assert decision < text.index("Do it again") < text.index("Every trial")
    for words in ("confirmed", "95 % interval", "holds ≤ 20.0 ms", "Gain over the baseline"):
        assert words in text
    assert "autotune measure --space online.yaml" in text
    assert text.index("Why this configuration") < text.index("Every trial")


def test_it_needs_neither_network_nor_script(make_study: Make) -> None:
    page = page_of(make_study())
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "img", "iframe", "object"}
    for _, attributes in page.tags:
        for name in ("href", "src"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))
    html = render(make_study(), now_s=0, version="1.2.3")
    assert "url(" not in html and "@import" not in html and "http://" not in html
    assert len(html) < 200_000


def test_every_trial_is_in_the_table_and_every_point_leads_to_its_row(make_study: Make) -> None:
    result = make_study()
    page = page_of(result)
    anchors = {attributes.get("id") for tag, attributes in page.tags if tag in ("tr", "section")}
    links = {attributes["href"] for tag, attributes in page.tags if tag == "a"}
    assert {f"trial-{record.number}" for record in result.records} <= anchors
    assert links and {link[1:] for link in links if link} <= anchors


def test_names_and_reasons_are_escaped(
    make_study: Make, make_trial: Callable[..., TrialRecord]
) -> None:
    evil = "<script>alert(1)</script>\x1b[31m\x00\u202e"
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
    assert not set("\x1b\x00\u202e") & set(html)


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


def cells_of(html: str, section: str) -> list[list[str]]:
    """The rows of a section's table."""
    part = html.split(f"<h2>{section}</h2>")[1].split("</section>")[0].split("<tbody>")[1]
    rows = re.findall(r"<tr.*?</tr>", part, re.S)
    return [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in rows]


def test_the_proof_says_which_row_is_which_and_why_the_others_lost(make_study: Make) -> None:
    result = make_study()
    rows = cells_of(render(result, now_s=0, version="1"), "The proof")
    by_role = {row[0]: row for row in rows}
    assert {"baseline", "recommended"} <= set(by_role)
    assert any("batch size alone" in role for role in by_role)
    for row, record in zip(rows, result.recommendation.confirmations, strict=True):
        if record.config in (result.config, result.facts.baseline):
            assert row[-1] == ""
        else:
            assert row[-1]


def test_a_faster_finalist_that_is_not_shown_to_hold_is_explained(make_study: Make) -> None:
    result = make_study()
    winner = result.config
    assert winner is not None
    unsure = Verdict(outcome=Outcome.UNDECIDED, reasons=("9 of 900 calls were late",))
    fast = replace(
        next(r for r in result.recommendation.confirmations if r.config == winner),
        config=winner.changed(micro_batch_count=8), verdict=unsure, number=77,
    )  # fmt: skip
    against = next(c for c in result.recommendation.comparisons if c.config == winner)
    ahead = replace(against, config=fast.config, ratio=2 * against.ratio)
    recommendation = replace(
        result.recommendation,
        confirmations=(*result.recommendation.confirmations, fast),
        comparisons=(*result.recommendation.comparisons, ahead),
    )
    html = render(replace(result, recommendation=recommendation), now_s=0, version="1")
    assert cells_of(html, "The proof")[-1][-1] == "faster, but 9 of 900 calls were late"
    text = Page(html).text
    assert "Faster in the proof, but not recommended" in text
    assert "but is undecided: 9 of 900 calls were late." in text
    assert "Faster in the proof" not in page_of(make_study(confirmed=False)).text


def test_an_all_crashed_study_shows_its_error_and_promises_nothing(
    make_study: Make, make_trial: Callable[..., TrialRecord]
) -> None:
    result = make_study()
    objective, baseline = result.facts.objective, result.facts.baseline
    records = tuple(
        replace(
            make_trial(
                baseline.changed(batch_size=n), number=n, outcome=Outcome.CRASHED,
                reasons=(f"RuntimeError: shapes {n}x63 and 64x256 do not fit",),
            ),
            log_tail=f"Traceback of {n}",
        )
        for n in range(1, 6)
    )  # fmt: skip
    decided = decide(rank(records, objective, baseline), objective)
    text = page_of(replace(result, records=records, recommendation=decided)).text
    error = text.index("5 of 5 trials ended with this error:RuntimeError: shapes 1x63")
    assert error < text.index("Do it again")
    assert "recommended configuration is marked" not in text
    assert "figures above" not in text
    assert "Traceback of 2" not in text  # five alike say no more than one
    assert "trial 1, and 4 alike" in text and "Traceback of 1" in text


def test_a_narrow_page_hides_trials_until_asked_and_print_shows_all(make_study: Make) -> None:
    html = render(make_study(), now_s=0, version="1")
    assert "<summary>All 32 trials</summary>" in html
    style = html[html.index("<style>") : html.index("</style>")]
    cut = style.index("tr:nth-child(n+5)")
    media = style.rindex("@media", 0, cut)
    assert style[media:].startswith("@media screen and (max-width")
    assert f"n+{FIRST_ROWS + 1})" in style
    few = render(make_study(trials=FIRST_ROWS), now_s=0, version="1")
    assert 'class="more"' not in few


def test_the_foot_says_when_it_was_measured_and_when_written(make_study: Make) -> None:
    text = Page(render(make_study(), now_s=1.8e9, version="1.2.3")).text
    assert "Measurements begun 2023-11-14 22:13 UTC · written 2027-01-15 08:00 UTC" in text
    result = make_study()
    late = replace(result.records[-1], started_at_s=1.7e9 + 3600)
    days = replace(result.records[-1], started_at_s=1.7e9 + 86400)
    for record, words in ((late, "22:13 to 23:13 UTC"), (days, "22:13 to 2023-11-15 22:13 UTC")):
        records = (*result.records[:-1], record)
        assert f"2023-11-14 {words}" in page_of(replace(result, records=records)).text


def test_notes_of_the_environment_have_readable_names(make_study: Make) -> None:
    result = make_study()
    record = result.recommendation.record
    assert record is not None and record.measurement is not None
    notes = {"note 1": "copies to the device: separate", "note 2": "inputs were inferred"}
    measurement = replace(record.measurement, environment=notes)
    shown = replace(record, measurements=(measurement,))
    changed = replace(result, recommendation=replace(result.recommendation, record=shown))
    html = render(changed, now_s=0, version="1")
    assert "<dt>copies to the device</dt><dd>separate</dd>" in html
    assert "<dt>note</dt><dd>inputs were inferred</dd>" in html


def test_every_chart_has_a_legend(make_study: Make) -> None:
    html = render(make_study(), now_s=0, version="1")
    for section in html.split("<section")[1:]:
        assert ('class="chart"' in section) == ('class="legend"' in section)


def test_of_very_many_trials_a_thousand_are_shown_and_it_says_so(
    make_study: Make, make_trial: Callable[..., TrialRecord]
) -> None:
    result = make_study()
    many = tuple(
        make_trial(
            Config(batch_size=1 + n, instance_count=2), number=100 + n, throughput=50.0 + n % 97,
            outcome=Outcome.OOM if n % 40 == 0 else None,
        )
        for n in range(3000)
    )  # fmt: skip
    html = render(replace(result, records=(*result.records, *many)), now_s=0, version="1")
    rows = set(re.findall(r'<tr id="([\w-]+)"', html))
    links = set(re.findall(r'href="#((?:trial|proof)-\d+)"', html))
    assert links <= rows and 900 < len(rows) <= 1010
    best = [r for r in result.records if r.config == result.config]
    assert {f"trial-{r.number}" for r in best} <= rows
    assert "Of 3,032 trials 1,000 are shown here and in the charts" in html
    assert "autotune show online --csv has all" in html
    assert len(html) < 4e6


def test_half_a_character_in_a_record_does_not_keep_the_report_from_being_written(
    make_study: Make, make_trial: Callable[..., TrialRecord]
) -> None:
    result = make_study()
    odd = make_trial(Config(batch_size=3), outcome=Outcome.CRASHED, reasons=("\ud800",), number=99)
    for form in ("html", "md"):
        text = render(
            replace(result, records=(*result.records, odd)), now_s=0, version="1", form=form
        )
        assert b"\\ud800" in text.encode("utf-8")


def test_the_command_to_repeat_it_has_what_the_study_was_run_with(make_study: Make) -> None:
    result = make_study()
    record = result.recommendation.record
    assert record is not None
    odd = replace(record, config=replace(record.config, extra=(("onnxruntime.arena", "a b"),)))
    facts = replace(
        result.facts, command=("autotune run", "--space online.yaml", "--set limits.power=9W")
    )
    changed = replace(result.recommendation, record=odd)
    text = page_of(replace(result, facts=facts, recommendation=changed)).text
    assert "autotune measure --space online.yaml --set limits.power=9W --set batch_size=" in text
    assert "--set 'params.onnxruntime.arena=a b'" in text


@pytest.mark.parametrize("outcome", list(Outcome))
def test_whatever_a_measured_finalist_ended_as_the_page_is_written(
    outcome: Outcome, make_study: Make
) -> None:
    result = make_study()
    ended = Verdict(outcome=outcome, reasons=("why",))
    last, second = result.recommendation.confirmations[-1], result.records[1]
    proof = tuple(
        replace(r, verdict=ended) if r is last else r for r in result.recommendation.confirmations
    )
    changed = replace(
        result,
        records=tuple(replace(r, verdict=ended) if r is second else r for r in result.records),
        recommendation=replace(result.recommendation, confirmations=proof),
    )
    assert "why" in page_of(changed).text
