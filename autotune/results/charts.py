"""Charts as plain SVG: no script, no network, colours and text sizes from the page's style."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from markupsafe import Markup, escape

from autotune.results.labels import (
    BOLD_CHARACTER,
    CHARACTER,
    RING,
    Box,
    Place,
    Segment,
    along_line,
    beside_point,
    text_width,
)
from autotune.results.ticks import linear_ticks, log_ticks

SERIES_COLOURS = 8
"""Colours the page's style defines as --s0, --s1, ...; further series repeat them."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 66.0, 24.0, 14.0, 42.0
_HEAD = 18.0
_TICK_GAP_X, _TICK_GAP_Y = 44.0, 34.0  # least distance of two labels, so that none overlap
_LABEL_HEIGHT = 14.0
_RADIUS = {True: 2.6, False: 4.2}  # of a point that is faint, that is not
_PROVEN_RADIUS = 5.6
_BAND_MARGIN = 9.0  # a band reaches beyond the points at its ends, so that one point shows it too
_CAP = 3.0  # half the width of the ends of a bar

Look = Literal["ok", "unsure", "broken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One trial in a chart.

    Attributes:
        look: Filled, hollow or a cross: the limit holds, is undecided, is broken.
        faint: Drawn small, behind the others. `joined`: on its series' line.
        proven: Drawn large: it rests on more than a trial.
        bar: Interval of y, drawn as a bar; None for none.
        title: Shown when the pointer rests on it. `href`: where a click leads.
    """

    x: float
    y: float
    look: Look
    title: str
    href: str = ""
    faint: bool = False
    joined: bool = False
    proven: bool = False
    bar: tuple[float, float] | None = None

    @property
    def radius(self) -> float:
        """Its size in pixels."""
        return _PROVEN_RADIUS if self.proven else _RADIUS[self.faint]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A ring around a point, with a label. `kind` is its CSS class: "best" is in bold."""

    x: float
    y: float
    name: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of one colour."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of a chart.

    Attributes:
        limit: A value to draw a line at, None for no line; `limit_label` names it. `limit_is`:
            which side of it is shaded, on y alone: what is above a "most", below a "least".
        tick_text: How a value is written beside the axis.
        ticks: Preferred places of the labels; none: round numbers.
        band: An interval to shade, on the x axis only.
    """

    label: str
    log: bool
    tick_text: Callable[[float], str]
    limit: float | None = None
    limit_label: str = ""
    limit_is: Literal["most", "least"] = "most"
    ticks: tuple[float, ...] = ()
    band: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart before it has a size.

    Attributes:
        marks: The most important one first: a label that finds no free place is left out.
        failed: x values at which a trial could not run, marked at the foot.
        joined: A line of its own behind everything, without points; None for none.
    """

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    marks: tuple[Mark, ...] = ()
    failed: tuple[tuple[float, str], ...] = ()
    joined: Series | None = None

    def said(self, say: Callable[[str], str]) -> Chart:
        """The same in another language."""

        def axis(one: Axis) -> Axis:
            return replace(one, label=say(one.label), limit_label=say(one.limit_label))

        def series(one: Series) -> Series:
            points = (replace(point, title=say(point.title)) for point in one.points)
            return replace(one, name=say(one.name), points=tuple(points))

        return replace(
            self,
            title=say(self.title),
            x=axis(self.x),
            y=axis(self.y),
            series=tuple(map(series, self.series)),
            marks=tuple(replace(mark, name=say(mark.name)) for mark in self.marks),
            failed=tuple((at, say(title)) for at, title in self.failed),
        )


@dataclass(frozen=True, slots=True)
class _Scale:
    """Data to pixels along one axis."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(max(value, 1e-300))
        return self.start + (at - low) / (high - low) * (self.end - self.start)


def draw(chart: Chart, width: int, height: int, *, titles: bool = True) -> Markup:
    """The chart as an SVG element of that size, in CSS pixels.

    Args:
        titles: Whether points say what they are when a pointer rests on them.
    Raises:
        ValueError: There is no point to draw.
    """
    points = [point for series in chart.series for point in series.points]
    if not points:
        raise ValueError(f"{chart.title}: nothing to draw")
    xs = [p.x for p in points] + [x for x, _ in chart.failed]
    ys = [y for p in points for y in (p.y, *(p.bar or ()))]
    # A limit on x has its name at the head of the chart, where no point may be.
    head = _TOP if chart.x.limit is None else _TOP + _HEAD
    x = _scale(chart.x, xs, _LEFT, width - _RIGHT)
    y = _scale(chart.y, ys, height - _BOTTOM, head)
    limit_place, *mark_places = _places(chart, x, y, width)
    parts = [
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(chart.title)}">',
        _band(chart.x.band, x, y),
        *_grid(chart, x, y, width),
        *_limits(chart, x, y),
        _joined_line(chart.joined, x, y),
        *(_series(series, index, x, y, titles) for index, series in enumerate(chart.series)),
        *(_failed(at, title, x, y) for at, title in chart.failed),
        _text("limit-label", chart.y.limit_label, limit_place),
        *(
            _mark(mark, x(mark.x), y(mark.y), place)
            for mark, place in zip(chart.marks, mark_places, strict=True)
        ),
        "</svg>",
    ]
    return Markup("\n".join(part for part in parts if part))


def _scale(axis: Axis, values: Sequence[float], start: float, end: float) -> _Scale:
    low, high = min(values), max(values)
    if axis.limit is not None:
        low, high = min(low, axis.limit), max(high, axis.limit)
    if axis.log:
        margin = max((high / low) ** 0.05, 1.15)
        return _Scale(low / margin, high * margin, start, end, True)
    return _Scale(0.0, high * 1.1 or 1.0, start, end, False)


def _grid(chart: Chart, x: _Scale, y: _Scale, width: int) -> list[str]:
    parts = []
    for value in _ticks(chart.y, y, _TICK_GAP_Y):
        at = y(value)
        parts.append(
            f'<line class="grid" x1="{x.start:.1f}" x2="{x.end:.1f}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text class="tick" x="{x.start - 8:.1f}" y="{at + 4:.1f}" text-anchor="end">'
            f"{escape(chart.y.tick_text(value))}</text>"
        )
    for value in _ticks(chart.x, x, _TICK_GAP_X, beside=True):
        at, text = x(value), chart.x.tick_text(value)
        # A long text under the last notch would be cut off at the chart's edge.
        text_x = min(at, width - 1 - text_width(text) / 2)
        parts.append(
            f'<line class="notch" x1="{at:.1f}" x2="{at:.1f}" y1="{y.start:.1f}" '
            f'y2="{y.start + 5:.1f}"/>'
            f'<text class="tick" x="{text_x:.1f}" y="{y.start + 18:.1f}" text-anchor="middle">'
            f"{escape(text)}</text>"
        )
    parts.append(
        f'<line class="axis" x1="{x.start:.1f}" x2="{x.end:.1f}" y1="{y.start:.1f}" '
        f'y2="{y.start:.1f}"/>'
        f'<text class="label" x="{(x.start + x.end) / 2:.1f}" y="{y.start + 37:.1f}" '
        f'text-anchor="middle">{escape(chart.x.label)}</text>'
    )
    return parts


def _band(band: tuple[float, float] | None, x: _Scale, y: _Scale) -> str:
    if band is None:
        return ""
    left, right = (x(end) for end in band)
    left, right = max(left - _BAND_MARGIN, x.start), min(right + _BAND_MARGIN, x.end)
    return (
        f'<rect class="band" x="{left:.1f}" y="{y.end:.1f}" width="{right - left:.1f}" '
        f'height="{y.start - y.end:.1f}"/>'
    )


def _limits(chart: Chart, x: _Scale, y: _Scale) -> list[str]:
    parts = []
    if chart.y.limit is not None:
        at = y(chart.y.limit)
        top, foot = (y.end, at) if chart.y.limit_is == "most" else (at, y.start)
        parts.append(
            f'<rect class="beyond" x="{x.start:.1f}" y="{top:.1f}" '
            f'width="{x.end - x.start:.1f}" height="{max(foot - top, 0):.1f}"/>'
            f'<line class="limit" x1="{x.start:.1f}" x2="{x.end:.1f}" y1="{at:.1f}" y2="{at:.1f}"/>'
        )
    if chart.x.limit is not None:
        at, top = x(chart.x.limit), y.end - _HEAD
        room = x.end - at > text_width(chart.x.limit_label) + 8
        parts.append(
            f'<rect class="beyond" x="{at:.1f}" y="{top:.1f}" '
            f'width="{max(x.end - at, 0):.1f}" height="{y.start - top:.1f}"/>'
            f'<line class="limit" x1="{at:.1f}" x2="{at:.1f}" y1="{top:.1f}" y2="{y.start:.1f}"/>'
            f'<text class="limit-label" x="{at + (6 if room else -6):.1f}" y="{top + 12:.1f}" '
            f'text-anchor="{"start" if room else "end"}">{escape(chart.x.limit_label)}</text>'
        )
    return parts


def _joined_line(series: Series | None, x: _Scale, y: _Scale) -> str:
    if series is None or len(series.points) < 2:
        return ""
    points = sorted(series.points, key=lambda p: p.x)
    path = " ".join(f"{x(p.x):.1f},{y(p.y):.1f}" for p in points)
    return f'<polyline class="front" points="{path}"/>'


def _series(series: Series, index: int, x: _Scale, y: _Scale, titles: bool) -> str:
    line = sorted((p for p in series.points if p.joined), key=lambda p: p.x)
    parts = [f'<g class="series" style="--c: var(--s{index % SERIES_COLOURS})">']
    if len(line) > 1:
        path = " ".join(f"{x(p.x):.1f},{y(p.y):.1f}" for p in line)
        dashed = " dashed" if index >= SERIES_COLOURS else ""
        parts.append(f'<polyline class="line{dashed}" points="{path}"/>')
    parts += [
        _dot(point, x, y, titles) for point in sorted(series.points, key=lambda p: not p.faint)
    ]
    return "".join([*parts, "</g>"])


def _dot(point: Point, x: _Scale, y: _Scale, titles: bool) -> str:
    cx, cy, r = x(point.x), y(point.y), point.radius
    style = f"dot {point.look}{' faint' if point.faint else ''}"
    if point.look == "broken":
        r *= 0.85
        shape = (
            f'<path class="{style}" d="M{cx - r:.1f} {cy - r:.1f}l{2 * r:.1f} {2 * r:.1f}'
            f'm0 {-2 * r:.1f}l{-2 * r:.1f} {2 * r:.1f}">'
        )
        close = "</path>"
    else:
        shape, close = f'<circle class="{style}" cx="{cx:.1f}" cy="{cy:.1f}" r="{r}">', "</circle>"
    title = f"<title>{escape(point.title)}</title>" if titles else ""
    dot = f"{_bar(point, cx, y)}{shape}{title}{close}"
    return f'<a href="{escape(point.href)}">{dot}</a>' if point.href else dot


def _bar(point: Point, cx: float, y: _Scale) -> str:
    if point.bar is None:
        return ""
    low, high = (y(end) for end in point.bar)
    style = f"bar{' faint' if point.faint else ''}"
    return (
        f'<path class="{style}" d="M{cx - _CAP:.1f} {low:.1f}h{2 * _CAP:.1f}'
        f'm{-_CAP:.1f} 0V{high:.1f}m{-_CAP:.1f} 0h{2 * _CAP:.1f}"/>'
    )


def _failed(at: float, title: str, x: _Scale, y: _Scale) -> str:
    cx, foot = x(at), y.start - 1
    return (
        f'<path class="failed" d="M{cx - 4:.1f} {foot:.1f}h8l-4 -7z">'
        f"<title>{escape(title)}</title></path>"
    )


def _mark(mark: Mark, cx: float, cy: float, place: Place | None) -> str:
    line = ""
    if place is not None and place.leader is not None:
        x1, y1, x2, y2 = place.leader
        line = f'<line class="leader" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
    return (
        f'<circle class="mark {mark.kind}" cx="{cx:.1f}" cy="{cy:.1f}" r="{RING}"/>'
        f"{line}{_text(f'mark-label {mark.kind}', mark.name, place)}"
    )


def _text(kind: str, text: str, place: Place | None) -> str:
    if place is None:
        return ""
    box = place.box
    at = {"start": box.left, "middle": (box.left + box.right) / 2, "end": box.right}[place.align]
    return (
        f'<text class="{kind}" x="{at:.1f}" y="{box.bottom - 3:.1f}" '
        f'text-anchor="{place.align}">{escape(text)}</text>'
    )


def _places(chart: Chart, x: _Scale, y: _Scale, width: int) -> list[Place | None]:
    """Where the labels stand of the limit on y, then of each mark; None: no room, or no label."""
    rings = [(x(mark.x), y(mark.y)) for mark in chart.marks]
    points = [
        (x(point.x), y(point.y), point.radius + 1) for s in chart.series for point in s.points
    ]
    points += [(x(at), y.start - 4, 4.0) for at, _ in chart.failed]
    taken = [Box.around(cx, cy, RING) for cx, cy in rings]
    taken += [Box.around(cx, cy, half) for cx, cy, half in points]
    top = y.end if chart.x.limit is not None else y.end - _TOP + 2
    bounds = Box(x.start + 2, top, width - 4, y.start - 3)
    places: list[Place | None] = [None]
    if chart.y.limit is not None:
        size = (text_width(chart.y.limit_label), _LABEL_HEIGHT)
        box = along_line(y(chart.y.limit), size, bounds=bounds, taken=taken)
        if box is not None:
            places = [Place(box, "start")]
            taken.append(box)
    lines = _lines(chart, x, y)
    for mark, (cx, cy) in zip(chart.marks, rings, strict=True):
        # What lies in the middle of its own ring is what the label names.
        others = [
            box for box in taken
            if math.hypot((box.left + box.right) / 2 - cx, (box.top + box.bottom) / 2 - cy) > 1
        ]  # fmt: skip
        character = BOLD_CHARACTER if mark.kind == "best" else CHARACTER
        size = (text_width(mark.name, character), _LABEL_HEIGHT)
        place = beside_point(cx, cy, size, bounds=bounds, taken=others, lines=lines)
        places.append(place)
        if place is not None:
            taken.append(place.box)
    return places


def _lines(chart: Chart, x: _Scale, y: _Scale) -> list[Segment]:
    """What crosses the chart: the limits and the lines of the series."""
    lines: list[Segment] = []
    if chart.y.limit is not None:
        lines.append((x.start, y(chart.y.limit), x.end, y(chart.y.limit)))
    if chart.x.limit is not None:
        lines.append((x(chart.x.limit), y.start, x(chart.x.limit), y.end))
    for series in (*chart.series, *([chart.joined] if chart.joined else ())):
        joined = sorted((p.x, p.y) for p in series.points if p.joined)
        lines += [(x(ax), y(ay), x(bx), y(by)) for (ax, ay), (bx, by) in pairwise(joined)]
    return lines


def _ticks(axis: Axis, scale: _Scale, gap: float, *, beside: bool = False) -> list[float]:
    """Values to label: as many as fit, every second, third ... of them if they are too near.

    Args:
        beside: Labels stand side by side, so that their widths count.
    """
    if axis.ticks:
        values = [v for v in axis.ticks if scale.low <= v <= scale.high]
    elif scale.log:
        values = log_ticks(scale.low, scale.high)
    else:
        values = linear_ticks(scale.high, abs(scale.end - scale.start) / gap)
    if beside:
        widest = max((text_width(axis.tick_text(value)) for value in values), default=0.0)
        gap = max(gap, widest + CHARACTER)
    for step in range(1, len(values) + 1):
        kept = values[::step]
        places = [scale(value) for value in kept]
        if all(abs(b - a) >= gap for a, b in pairwise(places)):
            return kept
    return values[:1]
