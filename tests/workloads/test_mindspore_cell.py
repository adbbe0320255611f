"""A cell of MindSpore's, where it is installed: it is no part of a usual environment."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from autotune.core.errors import UnavailableError, UsageError
from autotune.core.records import Config, GroupSpec, InputSpec, Plan, Samples, Window, WorkloadSpec
from autotune.measure.equal_work import compare, reference_of
from autotune.trial.session import Launcher, open_session
from autotune.workloads import check_workload

CORES = sorted(os.sched_getaffinity(0))
CODE = """\
import mindspore
from mindspore import nn

class Cell(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table, self.dense = nn.Embedding(50, 8), nn.Dense(16, 8)
        self.drop = nn.Dropout(p=0.5)

    def construct(self, features, ids):
        return self.drop(self.dense(features) * self.table(ids).sum(1))
"""
INPUTS = (
    InputSpec(name="features", shape=("batch", 16)),
    InputSpec(name="ids", shape=("batch", 3), dtype="int64", high=50),
)


@pytest.fixture
def spec(tmp_path: Path) -> WorkloadSpec:
    (tmp_path / "cells.py").write_text(CODE)
    return WorkloadSpec(kind="mindspore", model=f"{tmp_path}/cells.py:Cell", inputs=INPUTS)


def test_what_cannot_be_run_is_found_early(
    spec: WorkloadSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    for model, message in (
        ("mlp", "runs what a factory"),
        ("m.onnx", "runs what a factory"),
        (spec.model.replace("Cell", "Sell"), "has no 'Sell'"),
    ):
        with pytest.raises(UsageError, match=message):
            check_workload(WorkloadSpec(kind="mindspore", model=model))
    with pytest.raises(UsageError, match="leave bfloat16 out"):
        check_workload(WorkloadSpec(kind="mindspore", model=spec.model, precision="bfloat16"))
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    with pytest.raises(UnavailableError, match=r"pip install 'autotune-npu\[mindspore\]'"):
        check_workload(spec)


@pytest.mark.skipif(
    importlib.util.find_spec("mindspore") is None,
    reason="mindspore is not installed (0.8 GB): pip install 'autotune-npu[mindspore]'",
)
def test_a_cell_does_the_same_work_in_every_mode_batch_and_kind_of_copy(spec: WorkloadSpec) -> None:
    answers = []
    with Launcher() as launcher:
        for mode, batch, parts, packed in (
            ("graph", 4, 1, False), ("graph", 8, 2, True), ("pynative", 6, 2, False),
        ):  # fmt: skip
            config = Config(
                batch_size=batch,
                micro_batch_count=parts,
                batched_h2d=packed,
                instance_count=parts,
                extra=(("mindspore.mode", mode),),
            )
            cores = tuple((CORES[-1 - index],) for index in range(parts))
            group = GroupSpec(config=config, workload=spec, devices=("cpu",), cores=cores)
            with open_session(group, launcher) as session:
                answers += session.answers
                samples = session.measure(Plan(windows=(Window(iterations=20),)))
            assert isinstance(samples, Samples)
            assert samples.item_count.tolist() == [batch] * 20
            facts = samples.facts[0]
            assert (facts.cores, facts.precision) == ((CORES[-1],), "float32")
            assert "mindspore" in facts.versions
    reference = reference_of(answers[0])
    assert not reference.untold
    for other in answers[1:]:
        difference = compare(other, reference).difference
        assert difference is not None and difference < 1e-4
