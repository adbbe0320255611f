from __future__ import annotations

from pathlib import Path

import autotune
from autotune.workloads.simulated import COST_MODELS

VENDOR_BEST_ITEMS_PER_S = 493_065.0
MODEL = COST_MODELS["recommender_a3"]


def test_a_run_finds_more_than_the_vendors_best_within_its_latency(tmp_path: Path) -> None:
    space = autotune.load_space("recommender_a3.yaml", ["trial.seed=3", "confirm=false"])
    assert space.budget.trials == 25
    result = autotune.run(space, studies_dir=tmp_path)
    assert result.config is not None
    true_s = MODEL.latency_s(result.config) + MODEL.host_s(result.config)
    assert true_s <= 2e-3
    assert MODEL.throughput_items_per_s(result.config) >= VENDOR_BEST_ITEMS_PER_S
    assert result.facts.origin == "simulated"
