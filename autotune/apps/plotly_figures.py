"""The report's charts as figures of plotly, for optuna-dashboard."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from autotune.results.charts import Axis, Chart, Look, Point, Series
from autotune.results.lanes import Lanes, Span

if TYPE_CHECKING:
    import plotly.graph_objects as go

NAME_CHARS = 34  # on one line
SYMBOLS_TEXT = "filled: holds its limits; open: undecided; cross: breaks one"
_SYMBOLS: dict[Look, str] = {"ok": "circle", "unsure": "circle-open", "broken": "x"}
_COLOURS = {
    "s0": "#2563d9", "s1": "#c2570c", "s2": "#15803d", "s3": "#8036c4", "s4": "#c0266b",
    "s5": "#0b7d80", "s6": "#86651a", "s7": "#56606b", "good": "#1a7f37", "warn": "#8a5a00",
    "bad": "#b42318",
}  # fmt: skip
"""The style sheet's."""


def plotly_figure(chart: Chart | Lanes) -> go.Figure:
    """A chart as a figure."""
    return _bars(chart) if isinstance(chart, Lanes) else _points(chart)


def _points(chart: Chart) -> go.Figure:
    import plotly.graph_objects as go

    figure = go.Figure()
    if chart.joined is not None:
        figure.add_scatter(**_line(chart.joined, "#8a929c"), name=chart.joined.name)
    for index, series in enumerate(chart.series):
        colour = _COLOURS[f"s{index % 8}"]
        figure.add_scatter(**_line(series, colour), showlegend=False)
        figure.add_scatter(**_dots(series.points, colour), name=html.escape(series.name))
    points = [point for series in chart.series for point in series.points]
    figure.update_xaxes(**_axis(chart.x, [point.x for point in points]))
    figure.update_yaxes(**_axis(chart.y, [point.y for point in points]))
    if chart.x.limit is not None:
        figure.add_vline(chart.x.limit, line_dash="dash")
    if chart.y.limit is not None:
        figure.add_hline(chart.y.limit, line_dash="dash")
    for mark in chart.marks:
        figure.add_annotation(
            x=_drawn(mark.x, chart.x.log),
            y=_drawn(mark.y, chart.y.log),
            text=html.escape(mark.name),
        )
    limits = "; ".join(filter(None, (chart.x.limit_label, chart.y.limit_label)))
    _title(figure, chart.title, f"{SYMBOLS_TEXT}{f'; dashed: {limits}' if limits else ''}")
    return figure


def _line(series: Series, colour: str) -> dict[str, Any]:
    joined = sorted((p for p in series.points if p.joined), key=lambda p: p.x)
    return {
        "x": [point.x for point in joined],
        "y": [point.y for point in joined],
        "mode": "lines",
        "hoverinfo": "skip",
        "line": {"color": colour, "width": 1.5},
    }


def _dots(points: Sequence[Point], colour: str) -> dict[str, Any]:
    above = [point.bar[1] - point.y if point.bar else 0.0 for point in points]
    below = [point.y - point.bar[0] if point.bar else 0.0 for point in points]
    return {
        "x": [point.x for point in points],
        "y": [point.y for point in points],
        "text": [html.escape(point.title) for point in points],
        "hoverinfo": "text",
        "mode": "markers",
        "marker": {
            "size": [11 if point.proven else 8 for point in points],
            "color": colour,
            "symbol": [_SYMBOLS[point.look] for point in points],
            "opacity": [0.35 if point.faint else 0.9 for point in points],
        },
        "error_y": {
            "array": above, "arrayminus": below, "symmetric": False, "thickness": 1,
            "visible": any(above) or any(below),
        },
    }  # fmt: skip


def _bars(chart: Lanes) -> go.Figure:
    import plotly.graph_objects as go

    figure = go.Figure()
    names = [_wrapped(f"{index}. {lane.name}") for index, lane in enumerate(chart.lanes, 1)]
    for name, lane in zip(names, chart.lanes, strict=True):
        for span in lane.spans:
            figure.add_bar(
                x=[span.end - span.start],
                base=[span.start],
                y=[name],
                orientation="h",
                marker_color=_COLOURS.get(span.colour, "#56606b"),
                hovertext=_hover(span, lane.note),
                hoverinfo="text",
                showlegend=False,
            )
    ends = [span.end for lane in chart.lanes for span in lane.spans]
    ticks = [max(ends, default=1.0) * step / 4 for step in range(5)]
    figure.update_xaxes(
        title=chart.label, tickvals=ticks, ticktext=[chart.tick_text(tick) for tick in ticks]
    )
    figure.update_yaxes(autorange="reversed", automargin=True)
    figure.update_layout(barmode="overlay")
    _title(figure, chart.title, "")
    return figure


def _wrapped(name: str) -> str:
    """A name beside the bars, on several lines if it is long."""
    return "<br>".join(map(html.escape, textwrap.wrap(name, NAME_CHARS)))


def _hover(span: Span, note: str) -> str:
    return html.escape("; ".join(filter(None, (span.title or span.text, note))))


def _title(figure: go.Figure, title: str, below: str) -> None:
    text = f"{html.escape(title)}<br><sub>{html.escape(below)}</sub>"
    figure.update_layout(title={"text": text, "font": {"size": 14}}, template="plotly_white")


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
