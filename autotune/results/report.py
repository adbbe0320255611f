"""The report of a study: one HTML file that needs neither network nor script, or Markdown."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from importlib import resources
from typing import Literal

from jinja2 import Environment
from markupsafe import Markup, escape

from autotune.core.text import clean
from autotune.results.charts import Chart, draw
from autotune.results.document import FIRST_ROWS, NARROW, Document, Picture, Say, Section
from autotune.results.lanes import draw_lanes
from autotune.results.language import LANGUAGES, language
from autotune.results.markdown import to_markdown
from autotune.results.sections.best import best_configurations
from autotune.results.sections.bottleneck import what_holds_it_back
from autotune.results.sections.charts import over_batch_size, trade_offs
from autotune.results.sections.conditions import conditions
from autotune.results.sections.course import how_trials_ended
from autotune.results.sections.decision import decision_blocks, failures, subject
from autotune.results.sections.influence import what_mattered
from autotune.results.sections.pipeline import one_step, over_micro_batches
from autotune.results.sections.reasoning import do_it_again, what_is_open, why_this
from autotune.results.sections.stages import where_time_goes
from autotune.results.sections.tables import every_trial, the_proof
from autotune.results.study_result import StudyResult
from autotune.results.summary import ORIGIN_NOTICE, headline, status_meaning
from autotune.results.words import capital

SECTIONS: tuple[Callable[[StudyResult], Section | None], ...] = (
    the_proof,
    why_this,
    what_holds_it_back,
    what_is_open,
    do_it_again,
    over_batch_size,
    over_micro_batches,
    one_step,
    trade_offs,
    best_configurations,
    where_time_goes,
    what_mattered,
    how_trials_ended,
    failures,
    every_trial,
    conditions,
)
"""The parts of a report below its decision, in their order; None: there is nothing to say.

To add one: a function that returns a `Section`, a line here, its sentences in `zh.po`."""

Format = Literal["html", "md"]


def render(
    result: StudyResult,
    *,
    now_s: float,
    version: str,
    lang: str = "en",
    form: Format = "html",
) -> str:
    """The report as text.

    Args:
        now_s: Wall clock (Unix time) for the date at the foot, beside this tool's `version`.
        lang: A key of `language.LANGUAGES`.
    Raises:
        UsageError: There is no such language.
    """
    say = language(lang)
    document = make_document(result, now_s=now_s, version=version).said(say)
    text = to_markdown(document, say) if form == "md" else _to_html(document, say, lang)
    return clean(text)  # a record may hold what no file can, from a program's output


def _to_html(document: Document, say: Say, lang: str) -> str:
    environment = Environment(autoescape=True, trim_blocks=False)
    environment.filters |= {"breakable": _breakable, "wide": _wide, "narrow": _narrow}
    files = resources.files("autotune.results")
    template = environment.from_string((files / "report.html.j2").read_text(encoding="utf-8"))
    style = Markup((files / "report.css").read_text(encoding="utf-8"))
    return template.render(
        view=document, say=say, style=style, tag=LANGUAGES[lang], first_rows=FIRST_ROWS
    )


def make_document(result: StudyResult, *, now_s: float, version: str) -> Document:
    """The report in English, before it has a form."""
    made = (section(result) for section in SECTIONS)
    return Document(
        study=result.facts.study,
        subject=subject(result),
        notice=ORIGIN_NOTICE.get(result.facts.origin),
        status=result.status,
        status_word=result.status,
        status_meaning=status_meaning(result),
        decision=headline(result),
        blocks=decision_blocks(result),
        sections=tuple(section for section in made if section is not None),
        footer=_footer(result, now_s, version),
    )


def _footer(result: StudyResult, now_s: float, version: str) -> str:
    """When it was measured and when written: a report can be written again much later."""
    records = (*result.records, *result.recommendation.confirmations)
    begun = [r.started_at_s for r in records if r.started_at_s > 0]
    written = f"written {_date(now_s)} UTC by autotune {version}"
    if not begun:
        return capital(written)
    first, last = _date(min(begun)), _date(max(begun))
    # The day is said once if the last began on it too.
    last = last.removeprefix(f"{first.split()[0]} ")
    span = first if first.endswith(last) else f"{first} to {last}"
    return f"Measurements begun {span} UTC · {written}"


def _date(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, timezone.utc).strftime("%Y-%m-%d %H:%M")


def _breakable(name: str) -> Markup:
    """A name that a narrow column may break after an underscore or a dot."""
    return Markup(str(escape(name)).replace("_", "_<wbr>").replace(".", ".<wbr>"))


def _wide(picture: Picture) -> Markup:
    return _drawn(picture, *picture.size, titles=True)


def _narrow(picture: Picture) -> Markup:
    # A narrow screen has no pointer to rest, and every title counts once per chart and trial.
    return _drawn(picture, *NARROW, titles=False)


def _drawn(picture: Picture, width: int, height: int, *, titles: bool) -> Markup:
    if isinstance(picture.drawing, Chart):
        return draw(picture.drawing, width, height, titles=titles)
    return draw_lanes(picture.drawing, width, titles=titles)
