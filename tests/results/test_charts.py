from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from itertools import combinations

import pytest

from autotune.results.charts import Axis, Chart, Mark, Point, Series, draw
from autotune.results.curves import curve, trial_map
from autotune.results.labels import RING, Box, along_line, beside_point
from autotune.results.study_result import StudyResult

Make = Callable[..., StudyResult]
SIZES = ((540, 330), (340, 290), (1110, 400))
PAGE = Box(0, 0, 400, 300)
LABEL = (80.0, 14.0)
CHARACTER = {"mark-label best": 8.8}


def texts(svg: str) -> Iterator[tuple[str, str, Box]]:
    """Class, text and box of every text of a chart, as wide as its characters may become."""
    pattern = r'<text class="([\w -]+)" x="([\d.-]+)" y="([\d.-]+)" text-anchor="(\w+)">([^<]+)'
    for kind, x, y, anchor, text in re.findall(pattern, svg):
        width = CHARACTER.get(kind, 6.6) * len(text.replace("&lt;", "<"))
        left = float(x) - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
        yield kind, text, Box(left, float(y) - 11, left + width, float(y) + 3)


def rings(svg: str) -> list[tuple[float, float]]:
    found = re.findall(r'<circle class="mark \w+" cx="([\d.]+)" cy="([\d.]+)"', svg)
    return [(float(x), float(y)) for x, y in found]


def dots(svg: str) -> list[Box]:
    circles = re.findall(r'<circle class="dot[\w ]*" cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)"', svg)
    crosses = re.findall(r'<path class="dot[\w ]*" d="M([\d.]+) ([\d.]+)l([\d.]+)', svg)
    boxes = [Box.around(float(x), float(y), float(r)) for x, y, r in circles]
    return boxes + [
        Box(float(x), float(y), float(x) + float(w), float(y) + float(w)) for x, y, w in crosses
    ]


def crowd(seed: int, count: int) -> Chart:
    """Two marks among points that leave little room."""
    rng = random.Random(seed)
    points = [
        Point(x=rng.uniform(1, 100), y=rng.uniform(1, 100), look="ok", title="")
        for _ in range(count)
    ]
    low, high = points[0], points[1]
    axis = Axis(
        label="latency", log=False, tick_text=lambda v: f"{v:g} ms", limit=50.0,
        limit_label="P99 latency ≤ 50.0 ms",
    )  # fmt: skip
    return Chart(
        title="crowd",
        x=Axis(label="batch size", log=False, tick_text=lambda v: f"{v:g}"),
        y=axis,
        series=(Series(name="", points=tuple(points)),),
        marks=(
            Mark(x=low.x, y=low.y, name="recommended", kind="best"),
            Mark(x=high.x, y=high.y, name="baseline", kind="base"),
        ),
    )


def check_texts(chart: Chart, width: int, height: int) -> int:
    """Assert that no text hides anything; returns how many labels of marks there are."""
    svg = str(draw(chart, width, height))
    found = list(texts(svg))
    for kind, text, box in found:
        assert box.inside(Box(0, 0, width, height)), (kind, text, box)
    for (_, one, a), (_, two, b) in combinations(found, 2):
        assert not a.overlaps(b), (one, two)
    placed = [(kind, box) for kind, _, box in found if kind.startswith(("mark-label", "limit"))]
    for kind, box in placed:
        if kind.startswith("limit") and chart.x.limit is not None:
            continue  # at the head of the chart, where no point is
        assert not any(box.overlaps(dot) for dot in dots(svg)), kind
        assert not any(box.overlaps(Box.around(x, y, RING - 2.5)) for x, y in rings(svg)), kind
    return sum(kind.startswith("mark-label") for kind, _ in placed)


@pytest.mark.parametrize("size", SIZES)
def test_labels_hide_nothing_however_crowded_the_chart(size: tuple[int, int]) -> None:
    labels = [check_texts(crowd(seed, count), *size) for seed in range(8) for count in (2, 12, 60)]
    assert sum(labels) > 0.7 * 2 * len(labels)  # leaving all out would be no answer


@pytest.mark.parametrize("size", SIZES)
def test_labels_of_studies_hide_nothing(size: tuple[int, int], make_study: Make) -> None:
    for seed in range(4):
        for limit_s in (0.020, 0.003, 0.0005):
            study = make_study(seed=seed, limit_s=limit_s)
            for chart in (
                curve(study, "throughput"), curve(study, "latency_p99"), trial_map(study)
            ):  # fmt: skip
                assert chart is not None
                check_texts(chart, *size)


def test_a_long_label_under_the_last_notch_is_not_cut() -> None:
    axis = Axis(label="", log=True, tick_text=lambda v: f"{v:g} milliseconds", ticks=(1, 10, 100))
    points = tuple(Point(x=x, y=1.0, look="ok", title="") for x in (1.0, 100.0))
    chart = Chart(title="", x=axis, y=axis, series=(Series(name="", points=points),))
    ends = [box.right for _, text, box in texts(str(draw(chart, 800, 300))) if "100" in text]
    assert ends and max(ends) <= 800


def test_a_label_stands_at_its_ring_if_there_is_room() -> None:
    place = beside_point(200, 150, LABEL, bounds=PAGE)
    assert place is not None and place.leader is None
    assert place.align == "start"
    assert place.box.distance(Box.around(200, 150, 0)) < RING + 3


def test_a_label_avoids_what_is_taken_and_a_line_leads_to_it_from_afar() -> None:
    around = [
        Box.around(200 + dx, 150 + dy, 5) for dx in range(-60, 61, 12) for dy in (-24, -12, 12, 24)
    ]
    place = beside_point(200, 150, LABEL, bounds=PAGE, taken=around)
    assert place is not None
    assert not any(place.box.overlaps(box) for box in around)
    if place.leader is not None:
        assert not any(box.is_crossed_by(place.leader) for box in around)
    near = beside_point(200, 150, LABEL, bounds=PAGE, taken=[Box(205, 100, 290, 200)])
    assert near is not None and near.box.right < 205


def test_a_line_leads_to_a_label_that_is_far_or_nearer_to_another_point() -> None:
    near, far = Box(200, 160, 300, 180), Box(200, 165, 300, 190)
    place = beside_point(200, 150, LABEL, bounds=near)
    assert place is not None and place.leader is None
    beside = beside_point(200, 150, LABEL, bounds=near, taken=[Box.around(250, 156, 1)])
    assert beside is not None and beside.leader is not None
    distant = beside_point(200, 150, LABEL, bounds=far)
    assert distant is not None and distant.leader is not None
    blocked = beside_point(200, 150, LABEL, bounds=far, taken=[Box(180, 159, 300, 161)])
    assert blocked is None  # the line would run through what is there


def test_a_label_without_room_is_left_out() -> None:
    assert beside_point(200, 150, LABEL, bounds=PAGE, taken=[PAGE]) is None
    assert beside_point(200, 150, (500.0, 14.0), bounds=PAGE) is None
    assert along_line(150, LABEL, bounds=PAGE, taken=[PAGE]) is None


def test_lines_are_left_readable_where_that_costs_nothing() -> None:
    free = beside_point(200, 150, LABEL, bounds=PAGE)
    assert free is not None
    middle = (free.box.top + free.box.bottom) / 2
    crossed = beside_point(200, 150, LABEL, bounds=PAGE, lines=[(200, middle, 400, middle)])
    assert crossed is not None and not crossed.box.is_crossed_by((200, middle, 400, middle))


def test_a_limits_label_moves_along_its_line() -> None:
    first = along_line(150, LABEL, bounds=PAGE)
    assert first is not None and first.bottom < 150 and first.left < 10
    below = along_line(150, LABEL, bounds=PAGE, taken=[Box(0, 100, 400, 149)])
    assert below is not None and below.top > 150
    later = along_line(150, LABEL, bounds=PAGE, taken=[Box(0, 100, 60, 200)])
    assert later is not None and later.left >= 63 and later.bottom < 150


@pytest.mark.parametrize(
    ("line", "crosses"),
    [
        ((0, 5, 20, 5), True),
        ((0, 0, 20, 20), True),
        ((0, 11, 20, 11), False),
        ((0, 5, 3, 5), False),
        ((5, 0, 5, 3), False),
        ((5, 0, 5, 30), True),
        ((0, 12, 20, -44), False),
    ],
)
def test_a_segment_crosses_a_box_or_not(
    line: tuple[float, float, float, float], crosses: bool
) -> None:
    assert Box(4, 4, 10, 10).is_crossed_by(line) is crosses
