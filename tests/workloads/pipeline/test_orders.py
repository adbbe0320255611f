"""The formulas of bubbles against the orders of work of the installed torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.testing._internal.distributed.fake_pg import FakeStore

from autotune.core.pipeline import SCHEDULES
from autotune.core.records import Config
from autotune.measure.pipeline_theory import bubble_ratio, idle_share
from autotune.measure.pipeline_timeline import Work, measured_bubble, replay
from autotune.workloads.pipeline.layout import Layout
from autotune.workloads.pipeline.ranks.stages import schedule_class

KINDS = {"FORWARD": "F", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W", "FULL_BACKWARD": "B"}
LENGTHS_S = {"F": 1.0, "I": 1.0, "W": 1.0, "B": 2.0}
SEVERAL = [name for name, kind in SCHEDULES.items() if not kind.single]
RANKS = 4


@pytest.fixture(scope="module", autouse=True)
def ranks() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


def orders(layout: Layout) -> list[list[Work]]:
    stages = [
        PipelineStage(torch.nn.Identity(), index, layout.stages, torch.device("cpu"))
        for index in layout.stages_of(0)
    ]
    made: Any = schedule_class(layout.schedule)(stages, layout.micro_batches, loss_fn=torch.sum)
    return [list(pieces(made.pipeline_order[rank])) for rank in range(RANKS)]


def pieces(actions: list[Any]) -> Iterator[Work]:
    for action in filter(None, actions):
        if action.sub_actions:
            yield from pieces(list(action.sub_actions))
        else:
            kind = KINDS[action.computation_type.name]
            yield kind, action.stage_index, action.microbatch_index


@pytest.mark.parametrize("schedule", SEVERAL)
@pytest.mark.parametrize(("count", "chunks"), [(8, 2), (12, 2), (8, 3)])
def test_a_replay_of_the_order_has_the_formulas_bubble(schedule, count, chunks):
    if SCHEDULES[schedule].placement == "v" and chunks != 2:
        pytest.skip("a V has two stages per rank")
    layout = Layout.of(
        Config.from_dict(
            {
                "global_batch_size": count, "micro_batch_count": count, "stage_count": RANKS,
                "schedule": schedule, "chunks_per_rank": chunks,
            }
        )
    )  # fmt: skip
    found = orders(layout)
    lengths_s = {(kind, stage): LENGTHS_S[kind] for line in found for kind, stage, _ in line}
    bubble = measured_bubble(replay(found, lengths_s))
    assert bubble == pytest.approx(bubble_ratio(schedule, RANKS, count, chunks))
    idle = idle_share(schedule, RANKS, count, chunks)
    assert bubble == pytest.approx(idle / (1 + idle))
