"""The benchmark's picture: mean regret by trials and by seconds, as an SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

WIDTH, HEIGHT = 420, 300
LEFT, TOP, RIGHT, BOTTOM = 52, 26, 12, 40
LOWEST, HIGHEST = 0.5, 100.0  # per cent, on a logarithmic axis
COLOURS = ("#0b62a4", "#c44e00", "#2b8a3e", "#7a3e9d", "#8a6d00", "#555555", "#b3003c")


def regret_plot(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Two panels side by side.

    Args:
        found: Strategy to its `curve` (trials) and `curve_s` (seconds), pairs of a place and %.
    """
    panels = [
        _panel({name: f["curve"] for name, f in found.items()}, "trials", 0),
        _panel({name: f["curve_s"] for name, f in found.items()}, "seconds", WIDTH),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="11">'
        f'<rect width="{2 * WIDTH}" height="{HEIGHT}" fill="#fff"/>{"".join(panels)}</svg>\n'
    )


def _panel(curves: Mapping[str, Sequence[tuple[float, float]]], unit: str, shift: int) -> str:
    last = max(x for curve in curves.values() for x, _ in curve)

    def place(x: float, y: float) -> tuple[float, float]:
        inside = min(max(y, LOWEST), HIGHEST)
        down = math.log(HIGHEST / inside) / math.log(HIGHEST / LOWEST)
        return (
            shift + LEFT + (WIDTH - LEFT - RIGHT) * x / last,
            TOP + (HEIGHT - TOP - BOTTOM) * down,
        )

    parts = [f'<text x="{shift + LEFT}" y="16">mean regret (%) by {unit}</text>']
    for tick in (0.5, 1, 2, 5, 10, 20, 50, 100):
        (x, y), (end, _) = place(0, tick), place(last, tick)
        parts.append(f'<path d="M{x:.1f} {y:.1f}H{end:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for k in range(6):
        x, y = place(last * k / 5, LOWEST)
        parts.append(
            f'<text x="{x:.1f}" y="{y + 16:.1f}" text-anchor="middle">{last * k / 5:g}</text>'
        )
    for curve, colour in zip(curves.values(), COLOURS, strict=False):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in curve))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
    for k, (name, colour) in enumerate(zip(curves, COLOURS, strict=False)):
        x = shift + LEFT + 8 + 75 * (k % 5)
        y = HEIGHT - 8 - 11 * (k // 5)
        parts.append(f'<text x="{x}" y="{y}" fill="{colour}">{name}</text>')
    return "".join(parts)
