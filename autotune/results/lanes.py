"""Bars along one axis, lane under lane: shares, spans of time, what each of several things took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup, escape

from autotune.results.labels import CHARACTER, shortened, text_width
from autotune.results.ticks import linear_ticks

MAX_LANES = 40
MAX_SPANS = 2000
"""Of a chart; what is beyond is left out, and said."""

_LEFT, _RIGHT, _TOP = 16.0, 22.0, 2.0
_NAME, _BAR, _GAP, _FOOT = 17.0, 16.0, 9.0, 40.0
_TICK_GAP = 64.0
_LEAST = 1.0  # width of the thinnest span in pixels
_FONT = 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A part of a lane.

    Attributes:
        colour: A variable of the page's style without its dashes: "s0" … "s7", "good", "warn",
            "bad", "rule".
        text: Written into the bar if there is room. `title`: shown when a pointer rests on it.
    """

    start: float
    end: float
    colour: str
    text: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A named row of spans; `note` stands at its right."""

    name: str
    spans: tuple[Span, ...]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """Bars before they have a size.

    Attributes:
        tick_text: How a value is written below the axis; the axis begins at 0.
        high: Where the axis ends; None: at the end of the longest lane.
    """

    title: str
    label: str
    tick_text: Callable[[float], str]
    lanes: tuple[Lane, ...]
    high: float | None = None

    def said(self, say: Callable[[str], str]) -> Lanes:
        """The same in another language."""

        def of(lane: Lane) -> Lane:
            spans = (replace(s, text=say(s.text), title=say(s.title)) for s in lane.spans)
            return replace(lane, name=say(lane.name), note=say(lane.note), spans=tuple(spans))

        lanes = tuple(of(lane) for lane in self.lanes)
        return replace(self, title=say(self.title), label=say(self.label), lanes=lanes)


def draw_lanes(chart: Lanes, width: int, *, titles: bool = True) -> Markup:
    """The lanes as an SVG element of that width, as high as they need.

    Raises:
        ValueError: There is nothing to draw.
    """
    lanes = chart.lanes[:MAX_LANES]
    high = chart.high or max((s.end for lane in lanes for s in lane.spans), default=0.0)
    if high <= 0:
        raise ValueError(f"{chart.title}: nothing to draw")
    scale = (width - _LEFT - _RIGHT) / high
    step = _NAME + _BAR + _GAP
    foot = _TOP + step * len(lanes)
    parts = [
        f'<svg class="chart lanes" viewBox="0 0 {width} {foot + _FOOT:.0f}" role="img" '
        f'aria-label="{escape(chart.title)}">',
        *_axis(chart, high, scale, foot, width),
    ]
    budget = MAX_SPANS
    for index, lane in enumerate(lanes):
        top = _TOP + index * step
        parts += _head(lane, top, width)
        for span in lane.spans[: max(budget, 0)]:
            parts.append(_bar(span, _LEFT, scale, top + _NAME, titles))
        budget -= len(lane.spans)
    return Markup("\n".join([*parts, "</svg>"]))


def _axis(chart: Lanes, high: float, scale: float, foot: float, width: int) -> list[str]:
    parts = []
    for value in linear_ticks(high, (width - _LEFT - _RIGHT) / _TICK_GAP):
        at, text = _LEFT + value * scale, chart.tick_text(value)
        half = text_width(text) / 2
        text_x = min(max(at, half + 1), width - 1 - half)
        parts.append(
            f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP:.1f}" y2="{foot:.1f}"/>'
            f'<text class="tick" x="{text_x:.1f}" y="{foot + 14:.1f}" text-anchor="middle">'
            f"{escape(text)}</text>"
        )
    if chart.label:
        label = shortened(chart.label, width - 4)
        parts.append(
            f'<text class="label" x="{width / 2:.1f}" y="{foot + 33:.1f}" text-anchor="middle">'
            f"{escape(label)}</text>"
        )
    return parts


def _head(lane: Lane, top: float, width: int) -> Sequence[str]:
    note = shortened(lane.note, width / 2)
    room = width - _LEFT - _RIGHT - text_width(note) - CHARACTER
    name = shortened(lane.name, room)
    parts = [f'<text class="lane" x="{_LEFT:.1f}" y="{top + 12:.1f}">{escape(name)}</text>']
    if note:
        parts.append(
            f'<text class="tick" x="{width - _RIGHT:.1f}" y="{top + 12:.1f}" text-anchor="end">'
            f"{escape(note)}</text>"
        )
    return parts


def _bar(span: Span, left: float, scale: float, top: float, titles: bool) -> str:
    x, width = left + span.start * scale, max((span.end - span.start) * scale, _LEAST)
    title = f"<title>{escape(span.title)}</title>" if titles and span.title else ""
    text = ""
    if span.text and text_width(span.text) + 8 <= width:
        text = (
            f'<text class="in-bar" x="{x + width / 2:.1f}" y="{top + 12:.1f}" '
            f'text-anchor="middle">{escape(span.text)}</text>'
        )
    return (
        f'<rect class="span" style="--c: var(--{span.colour})" x="{x:.1f}" y="{top:.1f}" '
        f'width="{width:.1f}" height="{_BAR:.0f}">{title}</rect>{text}'
    )
