"""Theory and bookkeeping of pipelines, on steps whose times are declared."""

from __future__ import annotations

import math

import pytest

from autotune.core.codec import from_json_dict, to_json_dict
from autotune.core.errors import WrongOutput
from autotune.core.pipeline import Pass, RankTrace, Span, StepTrace
from autotune.core.records import Measurement
from autotune.measure.pipeline_guard import compare_passes
from autotune.measure.pipeline_theory import bubble_ratio
from autotune.measure.pipeline_timeline import (
    figures_of,
    in_flight,
    measured_bubble,
    replay,
    waiting,
)


def gpipe(ranks: int, count: int) -> list[list[tuple[str, int, int]]]:
    forward = [[("F", rank, i) for i in range(count)] for rank in range(ranks)]
    return [line + [("B", rank, i) for i in range(count)] for rank, line in enumerate(forward)]


def traces(lines, *, order=None) -> list[RankTrace]:
    end_s = max(span.end_s for line in lines for span in line)
    return [
        RankTrace(
            rank=rank, replica=0, place=rank, stages=(rank,), layers=(1,), schedule="GPipe",
            chunks=1, micro_batches=len(line) // 2, rounds=1,
            steps=(StepTrace(end_s, tuple(line)),),
        )
        for rank, line in enumerate(lines)
    ]  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_a_replay_of_even_stages_has_the_formulas_bubble(ranks, count):
    lengths_s = {(kind, s): 2.0 if kind == "B" else 1.0 for kind in "FB" for s in range(ranks)}
    lines = replay(gpipe(ranks, count), lengths_s)
    assert measured_bubble(lines) == pytest.approx(bubble_ratio("GPipe", ranks, count))


def test_time_is_told_apart_into_work_waiting_and_communication():
    # Rank 1 could start at 1.0 and does at 1.3: a transfer. Then it waits for nothing.
    lines = [
        [Span("F", 0, 0, 0.0, 1.0), Span("B", 0, 0, 4.5, 6.0)],
        [Span("F", 1, 0, 1.3, 2.3), Span("B", 1, 0, 2.3, 4.3)],
    ]
    assert waiting(lines) == pytest.approx([3.3, 1.0])
    figures = figures_of(traces(lines))
    assert [rank.busy_s for rank in figures.ranks] == pytest.approx([2.5, 3.0])
    assert [rank.communication_s for rank in figures.ranks] == pytest.approx([0.2, 0.3])
    assert [rank.waiting_s for rank in figures.ranks] == pytest.approx([3.3, 1.0 + 1.7])
    assert figures.bubble_ratio == pytest.approx(1 - 5.5 / 12)
    assert figures.replayed_bubble_ratio == pytest.approx(1 - 5.5 / (2 * 5.5))
    assert figures.formula_bubble_ratio == pytest.approx(0.5)
    kept = to_json_dict(Measurement(pipeline=figures))
    assert from_json_dict(Measurement, kept).pipeline == figures


def test_activations_in_flight_are_those_not_yet_used():
    line = [Span(kind, 0, i, 0.0, 0.0) for kind, i in zip("FFBFBB", (0, 1, 0, 2, 1, 2))]  # noqa: B905
    assert in_flight(line) == 2


def test_formulas_end_where_their_assumptions_do():
    assert bubble_ratio("1F1B", 4, 8) == pytest.approx(3 / 11)
    assert bubble_ratio("Interleaved1F1B", 4, 8, 2) == pytest.approx(3 / 19)
    assert bubble_ratio("Interleaved1F1B", 4, 6, 2) is None
    assert bubble_ratio("ZBVZeroBubble", 4, 7, 2) is None


def test_a_pipelines_first_step_must_be_the_models():
    whole = Pass(loss=2.0, gradient_norms={"0": 3.0, "1": 4.0})
    own = [
        Pass(loss=2.0 + 1e-6, gradient_norms={"0": 3.0}),
        Pass(loss=2.0, gradient_norms={"1": 4.0}),
    ]
    assert compare_passes(own, whole, "float32").loss == pytest.approx(5e-7)
    for wrong, words in (
        (Pass(loss=2.1, gradient_norms={"0": 3.0, "1": 4.0}), "the loss is 2.1"),
        (Pass(loss=2.0, gradient_norms={"0": 3.0, "1": 4.1}), "the furthest is layer 1"),
        (Pass(loss=2.0, gradient_norms={"0": 3.0}), "layers 1 have gradients"),
        (Pass(loss=2.0, gradient_norms={"0": 4.0, "1": 3.0}), "layer"),
        (Pass(loss=math.nan, gradient_norms={}), "not a number"),
    ):
        with pytest.raises(WrongOutput, match=words):
            compare_passes([wrong], whole, "float32")
    with pytest.raises(WrongOutput, match="the furthest is layer 1"):  # of one replica alone
        compare_passes([Pass(loss=2.0, gradient_norms={"1": 8.0}), *own], whole, "float32")
