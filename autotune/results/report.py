"""The report of a study: one HTML file that needs neither network nor script."""

from __future__ import annotations

from datetime import datetime, timezone
from importlib import resources
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from autotune.core.outcomes import Outcome
from autotune.results import words
from autotune.results.charts import Chart, draw
from autotune.results.curves import (
    curve,
    instance_counts,
    instances_text,
    latency_metric,
    trial_map,
)
from autotune.results.report_tables import proof_table, trials_table
from autotune.results.study_result import StudyResult
from autotune.results.summary import (
    AGAIN,
    ORIGIN_NOTICE,
    figures,
    headline,
    measurement_of,
    reasons,
    standing,
    status_meaning,
)

WIDE, NARROW, MAP = (540, 330), (340, 290), (1110, 400)
"""Chart sizes in CSS pixels: drawn for the width they are shown at, so that text keeps its size."""

MAX_LOGS = 10


def render(result: StudyResult, *, now_s: float, version: str) -> str:
    """The report as HTML.

    Args:
        now_s: Wall clock (Unix time) for the date at the foot, beside this tool's `version`.
    """
    environment = Environment(autoescape=True, trim_blocks=False)
    files = resources.files("autotune.results")
    template = environment.from_string((files / "report.html.j2").read_text(encoding="utf-8"))
    style = Markup((files / "report.css").read_text(encoding="utf-8"))
    return template.render(view=_view(result, f"autotune {version} · {_date(now_s)}"), style=style)


def _view(result: StudyResult, footer: str) -> dict[str, Any]:
    facts = result.facts
    return {
        "study": facts.study,
        "subject": _subject(result),
        "origin_notice": ORIGIN_NOTICE.get(facts.origin),
        "status": result.status,
        "status_meaning": status_meaning(result),
        "headline": headline(result),
        "configuration": _configuration(result),
        "tiles": figures(result),
        "reasons": reasons(result),
        "summary": standing(result),
        "commands": _commands(result),
        **_curves(result),
        "map": _sized(trial_map(result), MAP, "Throughput in items/s"),
        "proof": proof_table(result, AGAIN[facts.origin]),
        "trials": trials_table(result),
        "logs": _logs(result),
        "warnings": list(dict.fromkeys(measurement_of(result.shown).warnings)),
        "conditions": _conditions(result),
        "space_text": facts.space_text.strip(),
        "footer": footer,
    }


def _date(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def _subject(result: StudyResult) -> str:
    facts = result.facts
    limits = ", ".join(words.limit_text(limit) for limit in facts.objective.limits)
    parts = [
        f"{facts.workload} on {facts.device}" if facts.device else facts.workload,
        facts.objective.name.replace("_", " "),
        limits or "no limits",
    ]
    return " · ".join(parts)


def _configuration(result: StudyResult) -> list[dict[str, Any]]:
    if result.shown is None:
        return []
    items = words.config_items(result.shown.config).items()
    return [
        {"name": name, "value": value, "searched": name in result.searched} for name, value in items
    ]


def _commands(result: StudyResult) -> list[tuple[str, list[str]]]:
    """Purposes with commands, these in words between which a line may break."""
    facts, commands = result.facts, []
    if result.config is not None and facts.space_path:
        measure = ["autotune measure", f"--space {words.quoted(facts.space_path)}"]
        measure += words.set_arguments(result.config)
        commands.append(("Try the recommended configuration once more:", measure))
    if facts.command:
        commands.append(("Run the study again, or go on with it:", list(facts.command)))
    return commands


def _curves(result: StudyResult) -> dict[str, Any]:
    latency = latency_metric(result)
    units = {"throughput": "Throughput in items/s", latency: _capital(words.metric_label(latency))}
    charts, missing = [], []
    for metric, title in units.items():
        sized = _sized(curve(result, metric), WIDE, title)
        if sized:
            charts.append(sized)
        else:
            missing.append(f"No trial has a {words.metric_label(metric)}, so there is no curve.")
    if not charts:
        missing = ["No trial has a measurement, so there is no curve to draw."]
    batches = {r.config.batch_size for r in result.records if r.measurement is not None}
    caption = (
        "A line joins trials that differ in their batch size alone; slower trials at the same "
        "batch size are faint. Each point leads to its row below."
    )
    if len(batches) == 1:
        caption = f"A single batch size, {min(batches)}, was measured: points, no curve."
    looks = {
        "ok": ("limits hold" if result.facts.objective.limits else "measured", Outcome.OK),
        "unsure": ("undecided", Outcome.UNDECIDED),
        "broken": ("over a limit", Outcome.OVER_LIMIT),
    }
    legend = [
        (look, name) for look, (name, outcome) in looks.items() if str(outcome) in result.counts
    ]
    if any(r.verdict.outcome.is_infeasible for r in result.records):
        legend.append(("failed", "could not run"))
    return {
        "curves": charts,
        "curves_missing": missing,
        "curves_caption": caption,
        "series": [instances_text(count) for count in instance_counts(result)],
        "looks": legend,
    }


def _sized(chart: Chart | None, wide: tuple[int, int], title: str) -> dict[str, Any] | None:
    if chart is None:
        return None
    return {"title": title, "wide": draw(chart, *wide), "narrow": draw(chart, *NARROW)}


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _logs(result: StudyResult) -> list[tuple[str, str]]:
    failed = [r for r in result.records if r.log_tail.strip()]
    return [
        (f"trial {r.number}: {words.reason_text(r) or r.verdict.outcome}", r.log_tail.strip())
        for r in failed[-MAX_LOGS:]
    ]


def _conditions(
    result: StudyResult,
) -> list[tuple[str, list[tuple[str, str]]]]:
    return [
        ("Settings", list(result.facts.settings.items())),
        ("Environment of the tool", list(result.facts.environment.items())),
        ("Environment of the measurement", list(measurement_of(result.shown).environment.items())),
    ]
