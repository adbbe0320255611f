"""`autotune dashboard`: a study in optuna-dashboard, with our decision and figures in it.

optuna-dashboard does not know constraints as Optuna 5 has them: its best trial may break a limit.
So the decision stands in the study's note, and figures show what holds its limits. It knows no
users either, and obeys whoever asks to delete a study: hence the gate.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from autotune.apps.guarded_web import Gate, Listening, listen, new_token
from autotune.apps.store import load_result, load_stored
from autotune.core.errors import UnavailableError, UsageError
from autotune.results.charts import Axis, Chart, Look
from autotune.results.curves import curve, latency_metric, trial_map
from autotune.results.front_view import front_chart
from autotune.results.study_result import StudyResult
from autotune.results.summary import figures, headline, reasons, standing
from autotune.results.words import config_text
from autotune.search.study import StoredStudy

if TYPE_CHECKING:
    import plotly.graph_objects as go

NOTE_LINE = "\n\n---\n"
_SYMBOLS: dict[Look, str] = {"ok": "circle", "unsure": "circle-open", "broken": "x"}
SYMBOLS_TEXT = "filled: holds its limits; open: undecided; cross: breaks one"


def dashboard(
    study: str,
    *,
    studies_dir: Path = Path("studies"),
    storage: str = "",
    host: str = "127.0.0.1",
    port: int = 8080,
    may_change: bool = False,
) -> Listening:
    """Put our note and figures into the study and set up a server for its storage.

    Args:
        study: Its name; empty: the one that was changed last.
        host: On another address than this machine's own a token is needed, which `url` has.
        port: 0: any that is free.
        may_change: Let the dashboard delete, rename and make studies.
    Raises:
        UnavailableError: optuna-dashboard is not installed. UsageError: There is no such study,
            or the address cannot be used. StorageError: The storage cannot be used.
    """
    package = _package()
    name = study or _latest(studies_dir)
    stored = load_stored(name, studies_dir, storage)
    writable = StoredStudy.load(stored.name, stored.directory, storage=stored.url, read_only=False)
    annotate(writable, load_result(name, studies_dir, storage))
    token = new_token(host)
    application = Gate(token=token, may_change=may_change).around(package.wsgi(writable.storage))
    return listen(application, host, port, token=token, path="/dashboard")


def annotate(stored: StoredStudy, result: StudyResult) -> None:
    """Write the decision as the study's note and our charts as its figures.

    What someone wrote below the note's line is kept.
    """
    package = _package()
    study = stored.optuna_study
    _, _, of_others = package.get_note(study).partition(NOTE_LINE)
    package.save_note(study, f"{note_text(result)}{NOTE_LINE}{of_others}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls it experimental
        study.set_metric_names([goal.metric for goal in result.facts.objective.goals])
    for name, chart in _charts(result):
        package.save_plotly_graph_object(study, plotly_figure(chart), graph_object_id=name)


def note_text(result: StudyResult) -> str:
    """The decision in Markdown."""
    rows = [(f.name, f.figure, f.detail) for f in figures(result)]
    rows += [(name, text, "") for name, text in standing(result)]
    lines = [
        f"## {_escaped(headline(result))}",
        *([f"`{config_text(result.config)}`"] if result.config else []),
        "",
        "| | | |",
        "|---|---|---|",
        *(f"| {' | '.join(map(_escaped, row))} |" for row in rows),
        "",
        *(f"- {_escaped(reason)}" for reason in reasons(result)),
        "",
        "The dashboard's own *Best Trial* does not know the limits; the decision above does. "
        "What is written below the line is kept.",
    ]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """Text that Markdown and HTML leave as it is."""
    for char in "\\`*_{}[]<>#|":
        text = text.replace(char, f"\\{char}")
    return text.replace("\n", " ")


def _charts(result: StudyResult) -> Iterator[tuple[str, Chart]]:
    found = {
        "throughput-over-batch": curve(result, "throughput"),
        "latency-over-batch": curve(result, latency_metric(result)),
        "throughput-over-latency": trial_map(result),
        "front": front_chart(result),
    }
    return ((name, chart) for name, chart in found.items() if chart is not None)


def plotly_figure(chart: Chart) -> go.Figure:
    """One of the report's charts as a figure of plotly."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for series in chart.series:
        figure.add_scatter(
            x=[point.x for point in series.points],
            y=[point.y for point in series.points],
            text=[point.title for point in series.points],
            hoverinfo="text",
            mode="markers",
            name=series.name,
            marker={
                "size": 9,
                "symbol": [_SYMBOLS[point.look] for point in series.points],
                "opacity": [0.35 if point.faint else 0.9 for point in series.points],
            },
        )
    points = [point for series in chart.series for point in series.points]
    figure.update_xaxes(**_axis(chart.x, [point.x for point in points]))
    figure.update_yaxes(**_axis(chart.y, [point.y for point in points]))
    if chart.x.limit is not None:
        figure.add_vline(chart.x.limit, line_dash="dash")
    if chart.y.limit is not None:
        figure.add_hline(chart.y.limit, line_dash="dash")
    for mark in chart.marks:
        figure.add_annotation(
            x=_drawn(mark.x, chart.x.log), y=_drawn(mark.y, chart.y.log), text=mark.name
        )
    limits = "; ".join(filter(None, (chart.x.limit_label, chart.y.limit_label)))
    legend = f"<br><sub>{SYMBOLS_TEXT}{f'; dashed: {limits}' if limits else ''}</sub>"
    figure.update_layout(
        title={"text": f"{chart.title}{legend}", "font": {"size": 14}}, template="plotly_white"
    )
    return figure


def _axis(axis: Axis, values: Sequence[float]) -> dict[str, Any]:
    """An axis whose labels carry units, as the report's do."""
    if not axis.log:
        return {"title": axis.label}
    known = [*values, *([axis.limit] if axis.limit is not None else [])]
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    ticks = [digit * 10.0**power for power in range(low, high + 1) for digit in (1, 2, 5)]
    texts = [axis.tick_text(tick) for tick in ticks]
    return {"title": axis.label, "type": "log", "tickvals": ticks, "ticktext": texts}


def _drawn(value: float, is_log: bool) -> float:
    """Where plotly wants an annotation: on a logarithmic axis at the exponent."""
    return math.log10(value) if is_log and value > 0 else value


def _latest(studies_dir: Path) -> str:
    """The study that was changed last.

    Raises:
        UsageError: There is none.
    """
    inside = studies_dir.iterdir() if studies_dir.is_dir() else iter(())
    found = [path for path in inside if path.is_dir() and path.name[0] != "."]
    if not found:
        raise UsageError(f"there is no study in {studies_dir}/; run one first")
    return max(found, key=_changed_s).name


def _changed_s(directory: Path) -> float:
    return max((file.stat().st_mtime for file in directory.iterdir()), default=0.0)


def _package() -> ModuleType:
    try:
        return importlib.import_module("optuna_dashboard")
    except ImportError as error:
        raise UnavailableError(
            f"the dashboard needs optuna-dashboard and plotly ({error}); "
            'pip install "autotune-npu[dashboard]"'
        ) from None
