"""Charts as plain SVG: no script, no network, colours and text sizes from the page's style."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from markupsafe import Markup, escape

SERIES_COLOURS = 8
"""Colours the page's style defines as --s0, --s1, ...; further series repeat them."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 14.0, 14.0, 42.0
_HEAD = 18.0
_TICK_GAP_X, _TICK_GAP_Y = 44.0, 34.0  # least distance of two labels, so that none overlap
_LABEL_WIDTH, _BOLD_WIDTH = 6.6, 8.8  # of a character at the page's 12 px, rounded up

_Box = tuple[float, float, float, float]  # left, right, top, bottom in pixels

Look = Literal["ok", "unsure", "broken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One trial in a chart.

    Attributes:
        look: Filled, hollow or a cross: the limit holds, is undecided, is broken.
        faint: Drawn small, behind the others. `joined`: on its series' line.
        title: Shown when the pointer rests on it. `href`: where a click leads.
    """

    x: float
    y: float
    look: Look
    title: str
    href: str = ""
    faint: bool = False
    joined: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of one colour."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of a chart.

    Attributes:
        limit: A value to draw a line at, None for no line; `limit_label` names it.
        tick_text: How a value is written beside the axis.
        ticks: Preferred places of the labels; none: round numbers.
    """

    label: str
    log: bool
    tick_text: Callable[[float], str]
    limit: float | None = None
    limit_label: str = ""
    ticks: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart before it has a size.

    Attributes:
        marks: Named places (x, y, name, kind of mark as a CSS class).
        failed: x values at which a trial could not run, marked at the foot.
    """

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    marks: tuple[tuple[float, float, str, str], ...] = ()
    failed: tuple[tuple[float, str], ...] = ()


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


def draw(chart: Chart, width: int, height: int) -> Markup:
    """The chart as an SVG element of that size, in CSS pixels.

    Raises:
        ValueError: There is no point to draw.
    """
    points = [point for series in chart.series for point in series.points]
    if not points:
        raise ValueError(f"{chart.title}: nothing to draw")
    xs = [p.x for p in points] + [x for x, _ in chart.failed]
    ys = [p.y for p in points]
    # A limit on x has its name at the head of the chart, where no point may be.
    head = _TOP if chart.x.limit is None else _TOP + _HEAD
    x = _scale(chart.x, xs, _LEFT, width - _RIGHT)
    y = _scale(chart.y, ys, height - _BOTTOM, head)
    parts = [
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(chart.title)}">',
        *_grid(chart, x, y),
        *_limits(chart, x, y),
        *(_series(series, index, x, y) for index, series in enumerate(chart.series)),
        *(_failed(at, title, x, y) for at, title in chart.failed),
        *(_mark(mark, chart, x, y) for mark in chart.marks),
        "</svg>",
    ]
    return Markup("\n".join(parts))


def _scale(axis: Axis, values: Sequence[float], start: float, end: float) -> _Scale:
    low, high = min(values), max(values)
    if axis.limit is not None:
        low, high = min(low, axis.limit), max(high, axis.limit)
    if axis.log:
        margin = max((high / low) ** 0.05, 1.15)
        return _Scale(low / margin, high * margin, start, end, True)
    return _Scale(0.0, high * 1.1 or 1.0, start, end, False)


def _grid(chart: Chart, x: _Scale, y: _Scale) -> list[str]:
    parts = []
    for value in _ticks(chart.y, y, _TICK_GAP_Y):
        at = y(value)
        parts.append(
            f'<line class="grid" x1="{x.start:.1f}" x2="{x.end:.1f}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text class="tick" x="{x.start - 8:.1f}" y="{at + 4:.1f}" text-anchor="end">'
            f"{escape(chart.y.tick_text(value))}</text>"
        )
    for value in _ticks(chart.x, x, _TICK_GAP_X):
        at = x(value)
        parts.append(
            f'<line class="notch" x1="{at:.1f}" x2="{at:.1f}" y1="{y.start:.1f}" '
            f'y2="{y.start + 5:.1f}"/>'
            f'<text class="tick" x="{at:.1f}" y="{y.start + 18:.1f}" text-anchor="middle">'
            f"{escape(chart.x.tick_text(value))}</text>"
        )
    parts.append(
        f'<line class="axis" x1="{x.start:.1f}" x2="{x.end:.1f}" y1="{y.start:.1f}" '
        f'y2="{y.start:.1f}"/>'
        f'<text class="label" x="{(x.start + x.end) / 2:.1f}" y="{y.start + 37:.1f}" '
        f'text-anchor="middle">{escape(chart.x.label)}</text>'
    )
    return parts


def _limits(chart: Chart, x: _Scale, y: _Scale) -> list[str]:
    parts = []
    if chart.y.limit is not None:
        at = y(chart.y.limit)
        # Under the line where the top is too near for a label above it.
        text_y = at - 6 if at - y.end > 16 else at + 14
        parts.append(
            f'<rect class="beyond" x="{x.start:.1f}" y="{y.end:.1f}" '
            f'width="{x.end - x.start:.1f}" height="{max(at - y.end, 0):.1f}"/>'
            f'<line class="limit" x1="{x.start:.1f}" x2="{x.end:.1f}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text class="limit-label" x="{x.start + 6:.1f}" y="{text_y:.1f}">'
            f"{escape(chart.y.limit_label)}</text>"
        )
    if chart.x.limit is not None:
        at, top = x(chart.x.limit), y.end - _HEAD
        room = x.end - at > _LABEL_WIDTH * len(chart.x.limit_label) + 8
        parts.append(
            f'<rect class="beyond" x="{at:.1f}" y="{top:.1f}" '
            f'width="{max(x.end - at, 0):.1f}" height="{y.start - top:.1f}"/>'
            f'<line class="limit" x1="{at:.1f}" x2="{at:.1f}" y1="{top:.1f}" y2="{y.start:.1f}"/>'
            f'<text class="limit-label" x="{at + (6 if room else -6):.1f}" y="{top + 12:.1f}" '
            f'text-anchor="{"start" if room else "end"}">{escape(chart.x.limit_label)}</text>'
        )
    return parts


def _series(series: Series, index: int, x: _Scale, y: _Scale) -> str:
    line = sorted((p for p in series.points if p.joined), key=lambda p: p.x)
    parts = [f'<g class="series" style="--c: var(--s{index % SERIES_COLOURS})">']
    if len(line) > 1:
        path = " ".join(f"{x(p.x):.1f},{y(p.y):.1f}" for p in line)
        dashed = " dashed" if index >= SERIES_COLOURS else ""
        parts.append(f'<polyline class="line{dashed}" points="{path}"/>')
    parts += [_dot(point, x, y) for point in sorted(series.points, key=lambda p: not p.faint)]
    return "".join([*parts, "</g>"])


def _dot(point: Point, x: _Scale, y: _Scale) -> str:
    cx, cy, r = x(point.x), y(point.y), 2.6 if point.faint else 4.2
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
    dot = f"{shape}<title>{escape(point.title)}</title>{close}"
    return f'<a href="{escape(point.href)}">{dot}</a>' if point.href else dot


def _failed(at: float, title: str, x: _Scale, y: _Scale) -> str:
    cx, foot = x(at), y.start - 1
    return (
        f'<path class="failed" d="M{cx - 4:.1f} {foot:.1f}h8l-4 -7z">'
        f"<title>{escape(title)}</title></path>"
    )


def _mark(mark: tuple[float, float, str, str], chart: Chart, x: _Scale, y: _Scale) -> str:
    at_x, at_y, name, kind = mark
    cx, cy = x(at_x), y(at_y)
    box = min(_label_boxes(cx, cy, name), key=lambda box: _clutter(box, chart, x, y))
    left = box[1] < cx
    return (
        f'<circle class="mark {kind}" cx="{cx:.1f}" cy="{cy:.1f}" r="8.5"/>'
        f'<text class="mark-label {kind}" x="{box[1] if left else box[0]:.1f}" '
        f'y="{box[3] - 3:.1f}" text-anchor="{"end" if left else "start"}">{escape(name)}</text>'
    )


def _label_boxes(cx: float, cy: float, name: str) -> list[_Box]:
    """Where a point's label could stand, the preferred place first."""
    width = _BOLD_WIDTH * len(name)
    rows = [(cy - 22, cy - 8), (cy + 8, cy + 22)]
    columns = [(cx + 8, cx + 8 + width), (cx - 8 - width, cx - 8)]
    return [(x0, x1, y0, y1) for y0, y1 in rows for x0, x1 in columns]


def _clutter(box: _Box, chart: Chart, x: _Scale, y: _Scale) -> float:
    """How much a label at `box` would hide; leaving the chart is worst."""
    x0, x1, y0, y1 = box
    top = y.end - _TOP if chart.x.limit is None else y.end
    cost = 100.0 * ((x0 < x.start) + (x1 > x.end + _RIGHT - 4) + (y0 < top) + (y1 > y.start))
    if chart.y.limit is not None:
        at, named_x1 = y(chart.y.limit), x.start + _LABEL_WIDTH * len(chart.y.limit_label) + 6
        cost += 50.0 * (x0 < named_x1 and y0 < at + 4 and y1 > at - 18)
        cost += 2.0 * (y0 < at < y1)
    if chart.x.limit is not None:
        cost += 2.0 * (x0 < x(chart.x.limit) < x1)
    points = (p for series in chart.series for p in series.points)
    return cost + sum(x0 - 4 < x(p.x) < x1 + 4 and y0 - 4 < y(p.y) < y1 + 4 for p in points)


def _ticks(axis: Axis, scale: _Scale, gap: float) -> list[float]:
    """Values to label: as many as fit, every second, third ... of them if they are too near."""
    if axis.ticks:
        values = [v for v in axis.ticks if scale.low <= v <= scale.high]
    elif scale.log:
        values = _log_ticks(scale.low, scale.high)
    else:
        values = _linear_ticks(scale.high, abs(scale.end - scale.start) / gap)
    for step in range(1, len(values) + 1):
        kept = values[::step]
        places = [scale(value) for value in kept]
        if all(abs(b - a) >= gap for a, b in pairwise(places)):
            return kept
    return values[:1]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 2, 3, 4, 6, 8)):
        values = [d * 10.0**e for e in decades for d in digits if low <= d * 10.0**e <= high]
        if len(values) >= 3:
            # Too many decades for 1-2-5: every second of them would drop the round ones.
            return (
                values if len(values) <= 9 else [10.0**e for e in decades if low <= 10.0**e <= high]
            )
    return values or [math.sqrt(low * high)]


def _linear_ticks(high: float, most: float) -> list[float]:
    rough = high / max(most, 1.0)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough)
    return [step * i for i in range(int(high / step) + 1)]
