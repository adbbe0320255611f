"""Pipelines that cannot run are refused before anything starts: reason, values, what to do."""

from __future__ import annotations

import pytest

import autotune
from autotune.apps.layouts import refusal
from autotune.apps.resolve import only_config, resolve
from autotune.core.errors import UsageError


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["params.global_batch_size=7"], "micro_batch_count is 2, 4; global_batch_size is 7"),
        (["params.replicas=3"], "x replicas = 6; 30 or 36 is"),
        (["params.schedule=DualPipeV", "params.micro_batch_count=[2]"], "micro_batch_count=2 is"),
        (["params.stage_count=9", "params.schedule=GPipe"], "8 layers are too few for 9 stages"),
        (["params.stage_split=3-4"], "3-4 has 7 layers, and the model has 8"),
        (["params.replicas=32", "params.stage_count=4", "params.global_batch_size=4096"],
         "4 x replicas=32 are 128 ranks, and there is room for 64"),
        (["workload.options.forward_only=true", "params.schedule=1F1B"], "write schedule: GPipe"),
        (["workload.options.heads=3"], "width 128 is not divisible by 3"),
        (["load.poisson.rate=10/s"], "nothing arrives; write load"),
        (["objective=knee"], "batch_size, which a pipeline does not have"),
    ],
)  # fmt: skip
def test_a_space_without_a_pipeline_that_runs(settings, words):
    with pytest.raises(UsageError, match=words):
        resolve(
            autotune.load_space(
                "pipeline.yaml", ["device=cpu", "params.micro_batch_count=[2, 4]", *settings]
            )
        )


def test_a_configuration_that_breaks_a_rule_says_why():
    space = resolve(
        autotune.load_space(
            "pipeline.yaml",
            ["device=cpu", "params.schedule=[GPipe, 1F1B]", "params.micro_batch_count=[1, 4]"],
        )
    ).space
    assert only_config(space) == space.baseline
    why = refusal(space.baseline.changed(schedule="1F1B"), space)
    assert "breaks the rule" in why and "1 is below 2; GPipe takes fewer" in why
