"""Which configurations of a pipeline can run, how stages lie, how layers are shared out."""

from __future__ import annotations

import itertools

import pytest

from autotune.core.errors import OutOfMemory, UsageError
from autotune.core.pipeline import SCHEDULES, Pass
from autotune.core.records import Config
from autotune.space.rules import Rule
from autotune.workloads.pipeline.layout import Bounds, Layout, balanced, even, rules
from autotune.workloads.pipeline.memory import check_memory, least_bytes


def config(**values) -> Config:
    return Config.from_dict({"global_batch_size": 24, "stage_count": 2, **values})


@pytest.mark.parametrize("has_chunks", [False, True])
def test_the_rules_refuse_exactly_what_a_layout_refuses(has_chunks):
    bounds = Bounds(schedules=tuple(SCHEDULES), layers=8, has_chunks=has_chunks)
    checks = [Rule(text=text) for text in rules(bounds, ["4-4", "2-2-2-2", "even"])]
    chunks = ({"chunks_per_rank": 1}, {"chunks_per_rank": 2}) if has_chunks else ({},)
    for name, count, ranks, split, replicas, more in itertools.product(
        SCHEDULES, (1, 2, 3, 4, 6, 8, 12), (1, 2, 4), ("4-4", "2-2-2-2", "even"), (1, 2), chunks
    ):
        one = config(
            schedule=name, micro_batch_count=count, stage_count=ranks, stage_split=split,
            replicas=replicas, **more,
        )  # fmt: skip
        try:
            Layout.of(one).counts(split, 8)
            runs = True
        except UsageError:
            runs = False
        assert all(rule.holds(one.as_dict(), {}) for rule in checks) == runs, one
        assert bool(bounds.refusal(one)) != runs, one


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"micro_batch_count": 5}, "global_batch_size=24 is not divisible by"),
        ({"micro_batch_count": 2, "stage_count": 3, "schedule": "1F1B"}, "2 is below 3"),
        ({"micro_batch_count": 3, "schedule": "DualPipeV"}, "as many micro-batches as stages"),
        ({"schedule": "GPipe", "chunks_per_rank": 2}, "one stage per rank"),
        ({"schedule": "Chimera"}, "unknown 'Chimera'; known: GPipe"),
    ],
)
def test_a_refusal_says_what_does_not_fit(values, words):
    with pytest.raises(UsageError, match=words):
        Layout.of(config(**values))


def test_a_split_of_another_model_is_refused():
    layout = Layout.of(config())
    assert layout.counts("3-5", 8) == (3, 5)
    with pytest.raises(UsageError, match="has 8 layers, and the model has 9"):
        layout.counts("3-5", 9)
    with pytest.raises(UsageError, match="for 3 stages, and there are 2"):
        layout.counts("3-3-2", 8)
    with pytest.raises(UsageError, match="1 layers are too few"):
        layout.counts("even", 1)


def test_stages_lie_in_loops_or_in_a_v():
    looped = Layout.of(config(schedule="LoopedBFS"))
    turned = Layout.of(config(schedule="ZBVZeroBubble"))
    assert [looped.stages_of(place) for place in (0, 1)] == [(0, 2), (1, 3)]
    assert [turned.stages_of(place) for place in (0, 1)] == [(0, 3), (1, 2)]


def test_the_balanced_split_has_the_shortest_longest_stage():
    times_s = [5.0, 1.0, 1.0, 1.0, 4.0, 3.0, 1.0]
    counts = balanced(times_s, 3)
    cuts = ((a, b) for a in range(1, 6) for b in range(a + 1, 7))
    longest = min(max(sum(times_s[:a]), sum(times_s[a:b]), sum(times_s[b:])) for a, b in cuts)
    first, second = counts[0], counts[0] + counts[1]
    got = max(sum(times_s[:first]), sum(times_s[first:second]), sum(times_s[second:]))
    assert got == longest and sum(counts) == 7 and all(counts)
    assert even(7, 3) == (3, 2, 2)


def test_what_cannot_fit_is_refused_before_it_starts():
    layers = 8
    known = Pass(
        loss=1.0,
        gradient_norms={},
        forward_s=(1.0,) * layers,
        backward_s=(1.0,) * layers,
        parameter_bytes=(1000,) * layers,
        activation_bytes=(10.0,) * layers,
    )
    # 4 layers per rank with their gradients; 3 items a micro-batch, 8 of them or at most 2.
    at_once = config(schedule="GPipe", micro_batch_count=8)
    assert least_bytes(at_once, known, {}) == (8000 + 8 * 3 * 40,) * 2
    in_turn = config(schedule="1F1B", micro_batch_count=8)
    needed = least_bytes(in_turn, known, {"optimizer": "adamw"})
    assert needed == (16000 + 2 * 3 * 40, 16000 + 3 * 40)
    assert least_bytes(in_turn, known, {"forward_only": True}) == (4000, 4000)
    check_memory(needed, 16240, together=False)
    with pytest.raises(OutOfMemory, match="not started: rank 0 would need"):
        check_memory(needed, 16239, together=False)
    with pytest.raises(OutOfMemory, match="the ranks together"):
        check_memory(needed, 20000, together=True)
