"""How many replicas a pipeline has on the devices that are named."""

from __future__ import annotations

import autotune
from autotune.apps.replicas import with_replicas
from autotune.space.search_space import SearchSpace, settled


def paired(space: SearchSpace) -> set[tuple[object, object]]:
    configs = settled(space).configs()
    return {(config.get("stage_count", 0), config.get("replicas", 0)) for config in configs}


def test_replicas_follow_from_the_devices_where_they_are_not_named():
    space = autotune.load_space("pipeline_llm_pretraining.yaml", ["device=cpu"])
    eight = with_replicas(space, 8)
    assert paired(eight) == {(2, 4), (4, 2)}
    baseline = settled(eight).baseline
    assert (baseline.get("stage_count", 0), baseline.get("replicas", 0)) == (2, 4)
    assert eight.notes[-1].endswith("the 8 devices: 4 x 2 stages, 2 x 4 stages")
    six = with_replicas(space, 6)  # a batch of 32 is not divided by three
    assert paired(six) == {(2, 2), (4, 1)}
    assert six.notes[-1].endswith("2 x 2 stages (2 idle), 1 x 4 stages (2 idle)")
    assert with_replicas(space, 3) is space


def test_replicas_that_are_named_stay():
    space = autotune.load_space(
        "pipeline_llm_pretraining.yaml", ["device=cpu", "params.replicas=[1, 2]"]
    )
    assert with_replicas(space, 8) is space
