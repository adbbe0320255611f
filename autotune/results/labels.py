"""Where a chart's labels can stand so that they hide nothing: a matter of boxes alone."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

CHARACTER, BOLD_CHARACTER = 6.6, 8.8
"""Widths of a Latin character at the page's 12 px, rounded up."""

_IDEOGRAPH = 12.5  # as wide as the font is high

Align = Literal["start", "middle", "end"]
Segment = tuple[float, float, float, float]
"""x and y of its start, x and y of its end."""

RING = 8.5
"""Radius of the ring around a point that has a label, pixels."""

_GAP = 3.0  # between a label and anything it does not name
_NEAR = 8.0  # farther from its ring than this, a label needs a line that leads to it
_REACHES = tuple(range(0, 116, 4))
# Right, left, or above and below: centred, beginning or ending there.
_SIDES: tuple[tuple[int, int, Align], ...] = (
    (1, -1, "start"), (1, 1, "start"), (-1, -1, "end"), (-1, 1, "end"),
    (1, 0, "start"), (-1, 0, "end"), (0, -1, "middle"), (0, 1, "middle"),
    (0, -1, "start"), (0, 1, "start"), (0, -1, "end"), (0, 1, "end"),
)  # fmt: skip


def text_width(text: str, character: float = CHARACTER) -> float:
    """How wide a label may become, pixels."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return character * (len(text) - wide) + _IDEOGRAPH * wide


def shortened(text: str, width: float) -> str:
    """The text, cut so that it is no wider."""
    if text_width(text) <= width:
        return text
    while text and text_width(text) + CHARACTER > width:
        text = text[:-1]
    return f"{text}…"


@dataclass(frozen=True, slots=True)
class Box:
    """An upright rectangle in pixels, y growing downwards."""

    left: float
    top: float
    right: float
    bottom: float

    @classmethod
    def around(cls, x: float, y: float, half: float) -> Box:
        """The square with that centre."""
        return cls(x - half, y - half, x + half, y + half)

    def overlaps(self, other: Box, gap: float = 0.0) -> bool:
        """True if the two are less than `gap` apart, in x and in y."""
        return (
            self.left < other.right + gap
            and other.left < self.right + gap
            and self.top < other.bottom + gap
            and other.top < self.bottom + gap
        )

    def inside(self, other: Box) -> bool:
        """True if no part of it is outside of the other."""
        return (
            self.left >= other.left
            and self.right <= other.right
            and self.top >= other.top
            and self.bottom <= other.bottom
        )

    def nearest(self, x: float, y: float) -> tuple[float, float]:
        """The point of the box that is nearest to a place."""
        return min(max(x, self.left), self.right), min(max(y, self.top), self.bottom)

    def distance(self, other: Box) -> float:
        """Between the two, 0 if they touch."""
        dx = max(self.left - other.right, other.left - self.right, 0.0)
        dy = max(self.top - other.bottom, other.top - self.bottom, 0.0)
        return math.hypot(dx, dy)

    def is_crossed_by(self, line: Segment) -> bool:
        """True if a part of the segment is inside."""
        x0, y0, x1, y1 = line
        enters, leaves = 0.0, 1.0
        for start, step, low, high in (
            (x0, x1 - x0, self.left, self.right),
            (y0, y1 - y0, self.top, self.bottom),
        ):
            if step == 0:
                if not low < start < high:
                    return False
                continue
            near, far = sorted(((low - start) / step, (high - start) / step))
            enters, leaves = max(enters, near), min(leaves, far)
        return enters < leaves


@dataclass(frozen=True, slots=True)
class Place:
    """Where a label stands.

    Attributes:
        align: Which of its ends is nearest to what it names.
        leader: A line from the ring to the label, None where nobody could mistake its point.
    """

    box: Box
    align: Align
    leader: Segment | None = None


def beside_point(
    x: float,
    y: float,
    size: tuple[float, float],
    *,
    bounds: Box,
    taken: Sequence[Box] = (),
    lines: Sequence[Segment] = (),
) -> Place | None:
    """The best place for the label of the ringed point at (x, y); None if there is none.

    Args:
        size: Width and height of the label.
        taken: What it must not touch: other points, rings and texts.
        lines: What it had better not cover.
    """
    best: tuple[float, Place] | None = None
    for least_cost, place in _around(x, y, size):
        if best is not None and best[0] <= least_cost:
            break
        box = place.box
        if not box.inside(bounds) or any(box.overlaps(other, _GAP) for other in taken):
            continue
        leader = _leader(x, y, box)
        cost = least_cost + 12.0 * sum(map(box.is_crossed_by, lines))
        if _needs_leader(leader, box, taken):
            if any(other.is_crossed_by(leader) for other in taken):
                continue
            place, cost = Place(box, place.align, leader), cost + 6.0
        if best is None or cost < best[0]:
            best = (cost, place)
    return best[1] if best else None


def along_line(
    y: float, size: tuple[float, float], *, bounds: Box, taken: Sequence[Box] = ()
) -> Box | None:
    """The leftmost free box just above or below a level line; None if there is none."""
    width, height = size
    left = bounds.left + _GAP
    while left + width <= bounds.right:
        for top in (y - 3 - height, y + 3):
            box = Box(left, top, left + width, top + height)
            if box.inside(bounds) and not any(box.overlaps(other, _GAP) for other in taken):
                return box
        left += 6
    return None


def _around(x: float, y: float, size: tuple[float, float]) -> Iterator[tuple[float, Place]]:
    """Places in the order in which they are liked, each with what it costs at least."""
    width, height = size
    for reach in _REACHES:
        for preference, (dx, dy, align) in enumerate(_SIDES):
            # At a corner the ring is nearer to the centre than at its sides.
            away = reach + (RING + 1.5) * (0.72 if dx and dy else 1.0)
            over = {"start": -RING, "middle": -width / 2, "end": RING - width}[align]
            left = x + (over, away, -away - width)[dx]
            top = y + (-height / 2, away, -away - height)[dy]
            yield (
                reach + 0.25 * preference,
                Place(Box(left, top, left + width, top + height), align),
            )


def _leader(x: float, y: float, box: Box) -> Segment:
    to_x, to_y = box.nearest(x, y)
    length = max(math.hypot(to_x - x, to_y - y), RING)
    return (x + (to_x - x) * RING / length, y + (to_y - y) * RING / length, to_x, to_y)


def _needs_leader(leader: Segment, box: Box, taken: Sequence[Box]) -> bool:
    own = math.hypot(leader[2] - leader[0], leader[3] - leader[1])
    return own > _NEAR or any(box.distance(other) < own for other in taken)
