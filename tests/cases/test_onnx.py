"""ONNX files and several runtimes, as a user runs them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from onnx import TensorProto, helper, save

if TYPE_CHECKING:
    from conftest import Place

TAIL = "trial: {iterations: 20}\nsampler: grid\nconfirm: false\n"


def write_identity(path: Path, dims: list[Any]) -> None:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, dims) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_a_fixed_batch_narrows_the_space_before_the_first_trial(place: Place) -> None:
    write_identity(place.path / "m.onnx", [2, 16])
    place.write(
        "t.yaml",
        "workload: {model: m.onnx}\n"
        "params: {batch_size: [1, 2, 4, 8], micro_batch_count: [1, 2], instance_count: [1, 2]}\n"
        + TAIL,
    )
    ended = place.autotune("run", "--space", "t.yaml", "--json")
    assert ended.returncode == 0, ended.stderr
    assert "input x of m.onnx has the batch 2 fixed" in ended.stderr
    found = {
        (t["batch_size"], t["micro_batch_count"], t["instance_count"], t["outcome"])
        for t in place.trials()
    }
    assert found == {(b, m, i, "ok") for b, m in (("2", "1"), ("4", "2")) for i in ("1", "2")}


@pytest.mark.parametrize(
    ("dims", "key", "message"),
    [
        ([8, 16], "params: {batch_size: [1, 4]}", "params.batch_size: input x of m.onnx has the"),
        (["N", "seq"], "params: {batch_size: [1]}", "workload.inputs: input x: dimension 'seq'"),
        (["N", 4], "device: cuda", "device cuda is not available"),
        (["N", 4], "params: {runtime: [torch, openvino]}", "workload.runtime: torch cannot run"),
    ],
)
def test_what_cannot_be_run_is_said_before_there_is_a_study(
    place: Place, dims: list[Any], key: str, message: str
) -> None:
    write_identity(place.path / "m.onnx", dims)
    place.write("t.yaml", f"workload: {{model: m.onnx}}\n{key}\n{TAIL}")
    ended = place.autotune("run", "--space", "t.yaml")
    assert ended.returncode == (3 if "cuda" in key else 2)
    assert message in ended.stderr
    assert not (place.path / "studies").exists()


def test_one_study_over_the_runtimes_of_a_file(place: Place) -> None:
    write_identity(place.path / "m.onnx", ["N", "seq"])
    place.write(
        "t.yaml",
        "workload: {model: m.onnx, inputs: [{name: x, shape: [batch, 64]}]}\n"
        "params:\n"
        "  runtime: [onnxruntime, openvino]\n"
        "  batch_size: 8\n"
        "  micro_batch_count: 2\n"
        "  openvino.streams: [1, 2]\n"
        "  onnxruntime.graph_optimization: [all, basic]\n"
        "  instance_mode: [process, thread]\n"
        "  instance_count: 2\n"
        "  cores_per_instance: 1\n" + TAIL,
    )
    code, result = place.run()
    assert code == 0
    trials = place.trials()
    assert [t["outcome"] for t in trials] == ["ok"] * 8
    kinds = [(t["runtime"], t["openvino.streams"], t["instance_mode"]) for t in trials]
    assert len({*kinds}) == 6
    assert result["config"]["runtime"] in {kind[0] for kind in kinds}


RANKER = """\
import torch
class Ranker(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.dense = torch.nn.Embedding(1000, 16), torch.nn.Linear(8, 16)
    def forward(self, features, ids, temperature):
        return (self.dense(features) * self.table(ids).sum(1)).sum(1) / temperature
"""
RANKER_SPACE = """\
workload:
  model: ranker.py:Ranker
  inputs:
    - {name: features, shape: [batch, 8]}
    - {name: ids, shape: [batch, 4], dtype: int64, high: 1000}
    - {name: temperature, shape: [], low: 0.5, high: 2}
params: {batch_size: [1, 64], runtime: [torch, onnxruntime]}
"""


def test_a_model_of_ones_own_with_three_inputs_on_two_runtimes_in_fifteen_lines(
    place: Place,
) -> None:
    assert len((RANKER + RANKER_SPACE).splitlines()) <= 15
    place.write("ranker.py", RANKER)
    place.write("t.yaml", RANKER_SPACE + TAIL)
    code, result = place.run(env={"XDG_CACHE_HOME": str(place.path / "cache")})
    assert code == 0
    trials = place.trials()
    assert [t["outcome"] for t in trials] == ["ok"] * 4
    assert max(float(t["output_difference"]) for t in trials) < 1e-4
    assert result["config"]["batch_size"] == 64
