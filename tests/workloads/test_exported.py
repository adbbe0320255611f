from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from autotune.core.errors import UsageError
from autotune.core.records import Config, InputSpec, Lengths, WorkloadSpec
from autotune.devices.staging import tensors_of
from autotune.workloads import check_workload, export, exported, prepare_workload
from autotune.workloads.data import make_requests
from autotune.workloads.torch_module import Built, build

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "autotune" / "onnx"


def here(request: exported.Request) -> None:
    """Export in this process, where torch is loaded already."""
    export.export(request)


def spec_of(model: str, kind: str = "onnxruntime", **how: Any) -> WorkloadSpec:
    return WorkloadSpec(kind=kind, model=model, **how)


THREE_INPUTS = """
class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 8)
        self.dense = nn.Linear(4, 8)
    def forward(self, features, ids, temperature):
        scores = (self.dense(features) * self.table(ids).sum(1)).sum(-1, keepdim=True)
        return {"score": torch.sigmoid(scores / temperature), "raw": scores}
def make():
    return Ranker(), [
        {"name": "features", "shape": ["batch", 4]},
        {"name": "ids", "shape": ["batch", 3], "dtype": "int64", "low": 0, "high": 50},
        {"name": "temperature", "shape": [], "low": 0.5, "high": 2.0},
    ]
"""


@pytest.mark.parametrize("model", ["dlrm", "minilm", "user"])
def test_an_export_computes_the_same_at_batches_it_was_not_made_with(
    model: str, user_file: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxruntime

    monkeypatch.setattr(exported, "_run_exporter", here)
    spec = spec_of(model, options={"size": "small"})
    if model == "minilm":
        spec = replace(spec, lengths=Lengths(low=5, high=40))
    if model == "user":
        spec = spec_of(f"{user_file(THREE_INPUTS)}:make")
    check_workload(spec)
    ready = exported.model_of(prepare_workload(spec, 3))
    built = build(spec, seed=3, config=Config(), device="cpu")
    assert ready.inputs == built.inputs
    session = onnxruntime.InferenceSession(str(ready.path))
    for batch_size in (1, 7):
        (request,) = make_requests(ready.inputs, batch_size, 1, 5)
        feeds = {item.name: a for item, a in zip(ready.inputs, request, strict=True)}
        with torch.inference_mode():
            wanted = list(tensors_of(built.call(*map(torch.as_tensor, request))))
        found = session.run(None, feeds)
        assert len(found) == len(wanted)
        for one, other in zip(wanted, found, strict=True):
            assert np.abs(one.numpy() - other).max() <= 1e-3


def test_an_export_is_made_once_and_again_when_the_model_or_the_seed_changes(
    user_file: Write, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[exported.Request] = []

    def write(request: exported.Request) -> None:
        made.append(request)
        Path(request.directory, exported.INPUTS_NAME).write_text("{}")

    monkeypatch.setattr(exported, "_run_exporter", write)
    path = user_file("def make(): return nn.Linear(4, 4)")
    spec = spec_of(f"{path}:make")
    first = prepare_workload(spec, 0)
    assert Path(first.artifact).parent == cache
    assert prepare_workload(spec, 0) == first
    assert prepare_workload(replace(spec, kind="openvino"), 0).artifact == first.artifact
    assert len(made) == 1
    assert prepare_workload(spec, 1).artifact != first.artifact
    path.write_text(path.read_text() + "# another version\n")
    assert prepare_workload(spec, 0).artifact != first.artifact
    assert len(made) == 3
    assert not list(cache.glob(".making-*"))


def test_openvino_exports_in_single_precision_and_lowers_it_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[WorkloadSpec] = []

    def note(spec: WorkloadSpec, seed: int, directory: Path) -> None:
        asked.append(spec)

    monkeypatch.setattr(exported, "_export", note)
    prepared = prepare_workload(spec_of("mlp", "openvino", precision="bfloat16"), 0)
    assert (asked[0].precision, prepared.precision) == ("float32", "bfloat16")


def test_a_model_that_cannot_be_exported_says_why(user_file: Write) -> None:
    """In a process of its own, as it is in earnest."""
    path = user_file("def make(): return (lambda x: x), [{'name': 'x', 'shape': ['batch', 2]}]")
    with pytest.raises(UsageError, match=r"cannot be exported to ONNX for onnxruntime: only an nn"):
        prepare_workload(spec_of(f"{path}:make"), 0)


def test_an_export_that_computes_something_else_is_refused(tmp_path: Path) -> None:
    class Halved(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

    model = Halved()
    model.factor = 0.5
    built = Built(model=model, call=model, inputs=(InputSpec(name="x", shape=("batch", 3)),))
    export.write_onnx(built, tmp_path / "m.onnx")
    export._compare(built, tmp_path / "m.onnx", "float32", 0)
    model.factor = 0.51
    with pytest.raises(UsageError, match="computes something else: output 0 at batch 3"):
        export._compare(built, tmp_path / "m.onnx", "float32", 0)


def test_the_cache_keeps_what_was_used_last(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exported, "CACHE_LIMIT_BYTES", 250)
    for age_s, name in enumerate(("newest", "old", "older", "oldest")):
        (cache / name).mkdir(parents=True)
        (cache / name / "model.onnx").write_bytes(bytes(100))
        used_at = time.time() - 1000 * age_s
        os.utime(cache / name, (used_at, used_at))
    exported._prune(cache / "newest")
    assert {path.name for path in cache.iterdir()} == {"newest", "old"}


def test_a_cache_that_cannot_be_written_to_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="set XDG_CACHE_HOME"):
        prepare_workload(spec_of("mlp"), 0)
