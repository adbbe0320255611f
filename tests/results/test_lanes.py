from __future__ import annotations

import re

import pytest

from autotune.results.lanes import Lane, Lanes, Span, draw_lanes


def a_chart(name: str = "stage", *spans: Span) -> Lanes:
    lane = Lane(name=name, spans=spans, note="28 copies per call")
    return Lanes(title="<b>", label="time", tick_text=lambda v: f"{v:g} s", lanes=(lane,))


def test_spans_lie_where_they_should_and_thin_ones_can_be_seen() -> None:
    spans = (
        Span(start=0, end=1, colour="s0", text="1 s", title="<one>"),
        Span(start=1, end=1.000001, colour="s1", text="too narrow"),
        Span(start=2, end=4, colour="s2", text="2 s"),
    )
    svg = str(draw_lanes(a_chart("stage", *spans), 540))
    bars = [
        (float(x), float(width))
        for x, width in re.findall(
            r'<rect class="span"[^>]* x="([\d.]+)" [^>]*?width="([\d.]+)"', svg
        )
    ]
    (zero, one), (_, thin), (two, double) = bars
    assert double == pytest.approx(2 * one, abs=0.2) and thin >= 1
    assert two - zero == pytest.approx(double, abs=0.2) and two + double <= 540
    assert "too narrow" not in svg and "2 s</text>" in svg
    assert "<b>" not in svg and "<one>" not in svg and "&lt;one&gt;" in svg


def test_a_long_name_is_cut_before_its_note() -> None:
    svg = str(draw_lanes(a_chart("x" * 500, Span(start=0, end=1, colour="s0")), 340))
    name = re.search(r'class="lane"[^>]*>([^<]*)', svg)
    assert name is not None and name.group(1).endswith("…")
    assert len(name.group(1)) * 6.6 + len("28 copies per call") * 6.6 < 340


def test_nothing_to_draw_is_said_and_very_many_spans_are_not_drawn() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_lanes(a_chart(), 340)
    many = tuple(Span(start=n, end=n + 1, colour="s0") for n in range(5000))
    assert str(draw_lanes(a_chart("many", *many), 340)).count("<rect") == 2000
