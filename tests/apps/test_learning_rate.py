"""What a recommended batch that is not the baseline's means for a training."""

from __future__ import annotations

from pathlib import Path

import pytest

import autotune
from autotune.apps.export import export_study
from autotune.apps.learning_rate import STEPS, measured_scale
from autotune.apps.resolve import resolve
from autotune.core.errors import UsageError
from autotune.trial.session import Launcher

GRID = """global_batch_size,stage_count,micro_batch_count,throughput_items_per_s,status,cost_s
8,2,2,100,ok,1
32,2,4,300,ok,1
"""
SMALL = "workload.options={layers: 2, width: 32, heads: 2, length: 8, vocabulary: 32}"


def test_a_recorded_training_has_its_learning_rate_and_no_gradients(tmp_path: Path) -> None:
    (tmp_path / "grid.csv").write_text(GRID)
    (tmp_path / "larger.yaml").write_text(
        "workload: {replay: grid.csv}\nbaseline: {global_batch_size: 8, micro_batch_count: 2}\n"
        "budget: {trials: 2}\nconfirm: false\n"
    )
    result = autotune.run(tmp_path / "larger.yaml", studies_dir=tmp_path)
    told = " ".join(result.recommendation.reasons)
    assert "the global batch is 32 instead of 8" in told
    assert "4 times as high for SGD" in told and "2 times for Adam" in told
    assert "noise scale" not in told
    (path,) = export_study("larger", "env", out=None, studies_dir=tmp_path, unproven=True)
    text = path.read_text()
    assert "# note        the global batch is 32 instead of 8" in text
    assert "AUTOTUNE_GLOBAL_BATCH_SIZE=32" in text and "AUTOTUNE_BATCH_SIZE" not in text


def test_a_step_of_one_micro_batch_is_cut_to_measure_its_noise() -> None:
    words = ["device=cpu", SMALL, "params.global_batch_size=8", "params.stage_split=even"]
    resolved = resolve(autotune.load_space("pipeline.yaml", words))
    whole = resolved.space.baseline
    assert whole.micro_batch_count == 1
    with Launcher() as launcher:
        assert measured_scale(whole, resolved, launcher).steps == STEPS
        alone = resolve(
            autotune.load_space("pipeline.yaml", [*words, "params.micro_batch_count=1"])
        )
        with pytest.raises(UsageError, match="one micro-batch"):
            measured_scale(whole, alone, launcher)
