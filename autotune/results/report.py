"""The report of a study: one HTML file that needs neither network nor script."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from importlib import resources
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from autotune.core.outcomes import Outcome
from autotune.core.records import TrialRecord
from autotune.core.units import format_size
from autotune.results import words
from autotune.results.charts import Chart, draw
from autotune.results.curves import (
    curve,
    instance_counts,
    instances_text,
    knee_band,
    latency_metric,
    trial_map,
)
from autotune.results.front_view import front_chart, front_table
from autotune.results.left_open import left_open
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
from autotune.results.why import why

WIDE, NARROW, MAP = (540, 330), (340, 290), (1110, 400)
"""Chart sizes in CSS pixels: drawn for the width they are shown at, so that text keeps its size."""

MAX_ERRORS = 10

FIRST_ROWS = 4
"""Trials that a narrow page shows at once; the style sheet counts the same."""

_NAME_WORDS = 4


def render(result: StudyResult, *, now_s: float, version: str) -> str:
    """The report as HTML.

    Args:
        now_s: Wall clock (Unix time) for the date at the foot, beside this tool's `version`.
    """
    environment = Environment(autoescape=True, trim_blocks=False)
    files = resources.files("autotune.results")
    template = environment.from_string((files / "report.html.j2").read_text(encoding="utf-8"))
    style = Markup((files / "report.css").read_text(encoding="utf-8"))
    return template.render(view=_view(result, _footer(result, now_s, version)), style=style)


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
        "error": _leading_error(result),
        "summary": standing(result),
        "commands": _commands(result),
        **_curves(result),
        **_map(result),
        "why": why(result),
        "left_open": left_open(result),
        "proof": proof_table(result, AGAIN[facts.origin]),
        "trials": trials_table(result),
        "more_trials": len(result.records) > FIRST_ROWS,
        "logs": _logs(result),
        "warnings": list(dict.fromkeys(measurement_of(result.shown).warnings)),
        "conditions": _conditions(result),
        "space_text": facts.space_text.strip(),
        "footer": footer,
    }


def _footer(result: StudyResult, now_s: float, version: str) -> str:
    """When it was measured and when written: a report can be written again much later."""
    records = (*result.records, *result.recommendation.confirmations)
    begun = [r.started_at_s for r in records if r.started_at_s > 0]
    written = f"written {_date(now_s)} UTC by autotune {version}"
    if not begun:
        return written.capitalize()
    first, last = _date(min(begun)), _date(max(begun))
    # The day is said once if the last began on it too.
    last = last.removeprefix(f"{first.split()[0]} ")
    span = first if first.endswith(last) else f"{first} to {last}"
    return f"Measurements begun {span} UTC · {written}"


def _date(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, timezone.utc).strftime("%Y-%m-%d %H:%M")


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
        "A line joins configurations that differ in their batch size alone; slower ones at the "
        "same batch size are faint. Each point leads to its row below."
    )
    if len(batches) == 1:
        caption = f"A single batch size, {min(batches)}, was measured: points, no curve."
    if any(r.measurement is not None for r in result.recommendation.confirmations):
        caption += (
            f" Large points were {AGAIN[result.facts.origin]}, and are what the figures above "
            "say; the short trials they replace are faint."
        )
    if knee_band(result) is not None:
        caption += (
            " The knee lies in the shaded interval with 90 % probability. Bars are 95 % intervals."
        )
    return {
        "curves": charts,
        "curves_missing": missing,
        "curves_caption": caption,
        "series": [instances_text(count) for count in instance_counts(result)],
        "looks": _looks(result, tuple(units)),
    }


def _map(result: StudyResult) -> dict[str, Any]:
    """The trade-offs: the front where one is wanted, else throughput over latency."""
    front = front_chart(result)
    if front is None:
        title, heading = "Throughput in items/s", "What more throughput costs in latency"
        chart = _sized(trial_map(result), MAP, title)
        return {"map": chart, "map_heading": heading, "front": front_table(result)}
    first, second = (words.metric_label(g.metric) for g in result.facts.objective.goals[:2])
    chart = _sized(front, MAP, f"{_capital(first)}; the line joins the front")
    heading = f"The front: {first} against {second}"
    return {"map": chart, "map_heading": heading, "front": front_table(result)}


def _looks(result: StudyResult, metrics: Sequence[str]) -> list[tuple[str, str]]:
    """The legend of what is not a colour: kinds of marks with their names."""
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
    legend += [
        ("limit", words.limit_text(limit))
        for limit in result.facts.objective.limits
        if limit.metric in metrics
    ]
    if knee_band(result) is not None:
        legend.append(("band", "where the knee lies"))
    if result.config is not None:
        legend.append(("best", "recommended"))
    if result.config != result.facts.baseline:
        legend.append(("base", "baseline"))
    return legend


def _sized(chart: Chart | None, wide: tuple[int, int], title: str) -> dict[str, Any] | None:
    if chart is None:
        return None
    # A narrow screen has no pointer to rest, and every title counts once per chart and trial.
    narrow = draw(chart, *NARROW, titles=False)
    return {"title": title, "wide": draw(chart, *wide), "narrow": narrow}


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _logs(result: StudyResult) -> list[tuple[str, str]]:
    """One log per kind of error, with its title."""
    logs = []
    for alike in _alike([r for r in result.records if r.log_tail.strip()])[:MAX_ERRORS]:
        first, more = alike[0], f", and {len(alike) - 1} alike" if len(alike) > 1 else ""
        title = f"trial {first.number}{more}: {_error_text(first)}"
        logs.append((title, first.log_tail.strip()))
    return logs


def _leading_error(result: StudyResult) -> tuple[str, str] | None:
    """If nothing was measured: how many trials ended with the commonest error, and its text."""
    failed = [r for r in result.records if not r.verdict.outcome.is_retried]
    if not failed or any(r.verdict.outcome.is_measured for r in failed):
        return None
    alike = _alike(failed)[0]
    count = f"{len(alike)} of {len(failed)} trials" if len(failed) > 1 else "The only trial"
    return f"{count} ended with this error:", _error_text(alike[0])


def _alike(records: Sequence[TrialRecord]) -> list[list[TrialRecord]]:
    """Records by their errors, the commonest first; numbers in the texts make no difference."""
    groups: dict[tuple[Outcome, str], list[TrialRecord]] = {}
    for record in records:
        text = re.sub(r"\d+", "0", words.reason_text(record))
        groups.setdefault((record.verdict.outcome, text), []).append(record)
    return sorted(groups.values(), key=len, reverse=True)


def _error_text(record: TrialRecord) -> str:
    return words.reason_text(record) or words.outcome_text(record.verdict.outcome)


def _conditions(
    result: StudyResult,
) -> list[tuple[str, list[tuple[str, str]]]]:
    return [
        ("Settings", list(result.facts.settings.items())),
        ("Environment of the tool", list(result.facts.environment.items())),
        (
            "Environment of the measurement",
            [_fact(*pair) for pair in measurement_of(result.shown).environment.items()],
        ),
        ("The device beside the measurement", _telemetry(measurement_of(result.shown).telemetry)),
    ]


def _telemetry(told: Mapping[str, float]) -> list[tuple[str, str]]:
    """What the device told of itself, where it told it."""
    kinds: dict[str, tuple[str, Callable[[float], str]]] = {
        "utilisation_mean_ratio": ("in use, mean", lambda share: f"{share:.0%}"),
        "memory_used_peak_bytes": ("memory in use by all, at most", format_size),
        "temperature_max_c": ("temperature, at most", lambda celsius: f"{celsius:.0f} °C"),
        "power_mean_w": ("power, mean", lambda watts: f"{watts:.3g} W"),
        "frequency_mean_hz": ("clock, mean", lambda hertz: f"{hertz / 1e6:.0f} MHz"),
        "frequency_min_hz": ("clock, lowest", lambda hertz: f"{hertz / 1e6:.0f} MHz"),
        "readings": ("readings", lambda count: f"{count:.0f}"),
    }
    return [(name, text(told[key])) for key, (name, text) in kinds.items() if key in told]


def _fact(name: str, text: str) -> tuple[str, str]:
    """A pair of the environment: a numbered note names itself, or is simply a note."""
    if not re.fullmatch(r"note \d+", name):
        return name, text
    subject, colon, rest = text.partition(": ")
    return (subject, rest) if colon and len(subject.split()) <= _NAME_WORDS else ("note", text)
