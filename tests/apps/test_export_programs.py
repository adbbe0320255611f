"""Exported programs, run as whoever takes them would run them."""

from __future__ import annotations

import ast
import json
import runpy
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exporting import run_program, subject

from autotune.apps import export_programs
from autotune.core.errors import UsageError
from autotune.programs import command
from autotune.workloads.exported import Declared
from autotune.workloads.lengths import with_lengths

MODEL = """
import torch

class Ranker(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed = torch.nn.Embedding(50, width)
        self.out = torch.nn.Linear(width + 4, 3)

    def forward(self, ids, x):
        return {"score": self.out(torch.cat([self.embed(ids), x], 1)), "double": 2 * x}

def build(width=8):
    return Ranker(width)
"""
SPACE = """
workload:
  model: ranker.py:build
  options: {width: 6}
  inputs: [{name: ids, shape: [batch], dtype: int64, low: 0, high: 50},
           {name: x, shape: [batch, 4]}]
trial: {seed: 3}
"""
ITEMS = {
    "ids": np.arange(21) % 50,
    "x": np.linspace(-1, 1, 84, dtype=np.float32).reshape(21, 4),
}


def answered(path: Path, tmp_path: Path, items: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    np.savez(tmp_path / "in.npz", **items)
    run_program(path, "--infer", str(tmp_path / "in.npz"), str(tmp_path / "out.npz"))
    with np.load(tmp_path / "out.npz") as found:
        return [found[name] for name in sorted(found.files)]


@pytest.fixture
def ranker(tmp_path: Path) -> Path:
    (tmp_path / "ranker.py").write_text(MODEL)
    return tmp_path


@pytest.fixture
def inputs_as_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is started to build the model."""
    monkeypatch.setattr(
        export_programs,
        "declared_inputs",
        lambda spec, seed: Declared(inputs=with_lengths(spec.inputs, spec.lengths)),
    )


@pytest.mark.parametrize(
    ("environment", "values"),
    [
        (
            {"cores": "0 0", "OMP_WAIT_POLICY": "PASSIVE"},
            {"instance_count": 2, "micro_batch_count": 2, "batched_h2d": True},
        ),
        ({}, {"instance_count": 2, "instance_mode": "thread", "max_queue_delay": 0.002}),
    ],
)
def test_the_torch_program_answers_as_the_model_does(
    ranker: Path, environment: dict[str, str], values: dict[str, Any]
) -> None:
    import torch

    (path,) = export_programs.torch(subject(ranker, SPACE, environment, **values))
    found = answered(path, ranker, ITEMS)
    torch.manual_seed(3)
    scope: dict[str, Any] = {}
    exec(MODEL, scope)
    with torch.inference_mode():
        wanted = scope["build"](6)(*map(torch.as_tensor, ITEMS.values()))
    assert [array.shape for array in found] == [(21, 3), (21, 4)]
    np.testing.assert_allclose(found[0], wanted["score"].numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found[1], wanted["double"].numpy())


def write_onnx(path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(4, 3), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", [x], [y], [weight])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=opset), path)


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("micro_batch_count", [1, 4])
def test_the_program_of_a_model_file_answers_as_the_file_does(
    tmp_path: Path, runtime: str, micro_batch_count: int
) -> None:
    pytest.importorskip(runtime)
    write_onnx(tmp_path / "m.onnx")
    values = {
        "instance_count": 2,
        "micro_batch_count": micro_batch_count,
        "batched_h2d": micro_batch_count == 1,
    }
    text = f"workload: {{model: m.onnx, runtime: {runtime}}}\n"
    export: Callable[..., tuple[Path, ...]] = getattr(export_programs, runtime)
    (path,) = export(subject(tmp_path, text, {"cores": "0 0"}, **values))
    (found,) = answered(path, tmp_path, {"x": ITEMS["x"]})
    weight = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_allclose(found, ITEMS["x"] @ weight, rtol=1e-4, atol=1e-4)


def test_outputs_may_change_their_shape_from_call_to_call(tmp_path: Path) -> None:
    """As many columns as the largest number says: none in the first call, of zeros."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "found"])
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["whole", "one"], ["end"]),
        helper.make_node("Slice", ["x", "zero", "end", "one"], ["y"]),
    ]
    numbers = [
        numpy_helper.from_array(np.array([n]), name) for name, n in (("zero", 0), ("one", 1))
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], numbers)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=opset), tmp_path / "m.onnx")
    about = subject(tmp_path, "workload: {model: m.onnx}\n", {}, batch_size=4)
    (path,) = export_programs.onnxruntime(about)
    items = np.arange(16, dtype=np.float32).reshape(4, 4) / 5
    (found,) = answered(path, tmp_path, {"x": items})
    np.testing.assert_array_equal(found, items[:, :3])


def test_a_program_measures_itself_with_and_without_arrivals(tmp_path: Path) -> None:
    write_onnx(tmp_path / "m.onnx")
    text = "workload: {model: m.onnx}\n"
    (path,) = export_programs.onnxruntime(subject(tmp_path, text, {}, instance_count=1))
    full = run_program(path, "--bench", "0.3")
    calls = full["throughput_items_per_s"] * 0.3 / 8
    assert full["call_count"] == pytest.approx(calls, rel=0.5)
    assert full["latency_p99_s"] >= full["latency_p50_s"]
    paced = run_program(path, "--bench", "1", "--rate", "200")
    assert paced["throughput_items_per_s"] == pytest.approx(200, rel=0.35)
    assert 120 <= paced["call_count"] <= 300  # one latency per request


def test_a_program_answers_over_http_and_refuses_what_is_wrong(tmp_path: Path) -> None:
    write_onnx(tmp_path / "m.onnx")
    (path,) = export_programs.onnxruntime(subject(tmp_path, "workload: {model: m.onnx}\n", {}))
    process = subprocess.Popen(
        [sys.executable, str(path), "--serve", "0"], stdout=subprocess.PIPE, text=True
    )
    timer = threading.Timer(60, process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()

        def ask(content: Any) -> tuple[int, Any]:
            try:
                with urllib.request.urlopen(url, json.dumps(content).encode(), 30) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                return error.code, json.load(error)

        status, found = ask({"x": [[1, 0, 0, 0], [0, 0, 0, 1]]})
        assert (status, found) == (200, {"outputs": [[[0, 1, 2], [9, 10, 11]]]})
        assert ask({"x": [[1, 0]]})[0] == 400
        assert ask({"z": [[1, 0]]})[1]["error"].startswith("the inputs are x")
        with urllib.request.urlopen(url, timeout=30) as answer:
            assert json.load(answer) == {"status": "ok"}
    finally:
        timer.cancel()
        process.terminate()
        process.wait(30)


def test_requests_of_one_batch_do_not_spoil_each_other(tmp_path: Path) -> None:
    """Those with another scale, which has no item axis; one whose ids the model fails with."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch"])
    scale = helper.make_tensor_value_info("scale", TensorProto.FLOAT, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch"])
    table = numpy_helper.from_array(np.arange(9, dtype=np.float32), "table")
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["row"]),
        helper.make_node("Mul", ["row", "scale"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [ids, scale], [y], [table])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=opset), tmp_path / "m.onnx")
    values = {"instance_mode": "thread", "max_queue_delay": 0.05, "micro_batch_count": 2}
    about = subject(tmp_path, "workload: {model: m.onnx}\n", {}, **values)
    (path,) = export_programs.onnxruntime(about)
    with runpy.run_path(str(path), run_name="read")["server"]() as server:
        futures = [
            server.submit({"ids": [i, 99 if i == 6 else 1], "scale": 1 + (i > 4)}) for i in range(9)
        ]
        for i, future in enumerate(futures):
            if i == 6:
                with pytest.raises(ValueError, match="the model failed with"):
                    future.result(30)
            else:
                np.testing.assert_array_equal(
                    future.result(30)[0], np.array([i, 1]) * (1 + (i > 4))
                )
        for wrong in ([1.5], ["1"], [[1]], [None]):
            with pytest.raises(ValueError, match="ids h"):
                server.submit({"ids": wrong, "scale": 1})


@pytest.mark.parametrize(
    "words", [["--bench", "nan"], ["--bench", "1", "--rate", "-5"], ["--serve", "70000"]]
)
def test_a_program_refuses_odd_numbers_at_once(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["program", *words])
    with pytest.raises(SystemExit, match="2"):
        command.main(Any, {"study": "s"})
    assert words[-1] in capsys.readouterr().err


@pytest.mark.usefixtures("inputs_as_given")
def test_a_program_stands_alone_and_says_what_it_rests_on(ranker: Path) -> None:
    about = subject(ranker, SPACE, {"cores": "0"}, cores_per_instance=1)
    (path,) = export_programs.torch(about)
    text = path.read_text()
    roots = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(text))
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    }
    assert roots - sys.stdlib_module_names == {"numpy", "torch"}
    head = ast.get_docstring(ast.parse(text)) or ""
    assert "1,950/s, 95 % interval 1,900 to 2,000/s" in head
    assert "18.2 ms, 95 % interval 17.0 ms to 19.0 ms" in head
    assert "2023-11-14" in head and "torch 2.13.0" in head and "UNPROVEN" not in head
    assert "autotune measure --space s.yaml --set budget.trials=4 --set batch_size=8" in head


@pytest.mark.usefixtures("inputs_as_given")
def test_the_npu_program_compiles_and_keeps_the_core_split(ranker: Path) -> None:
    (path,) = export_programs.torch_npu(
        subject(
            ranker,
            SPACE + "device: npu:1\n",
            {"note 2": "host-to-device copies: foreach (native batch copy)"},
            instance_count=2,
            cores_per_instance="12|24",
            batched_h2d=True,
        )
    )
    settings = runpy.run_path(str(path), run_name="read")["SETTINGS"]
    assert settings["cores_per_instance"] == "12|24" and settings["copy_method"] == "foreach"
    assert settings["device"] == "npu:1"


@pytest.mark.usefixtures("inputs_as_given")
def test_what_a_program_cannot_serve_is_refused(ranker: Path) -> None:
    lengths = (
        "workload: {model: ranker.py:build, lengths: {low: 8, high: 16}, "
        "inputs: [{name: ids, shape: [batch, length], dtype: int64}]}\n"
    )
    with pytest.raises(UsageError, match="items differ in length"):
        export_programs.torch(subject(ranker, lengths, {}))
    with pytest.raises(UsageError, match="export it --to torch"):
        export_programs.torch_npu(subject(ranker, SPACE + "device: cpu\n", {}))
    with pytest.raises(UsageError, match="writes a program for the CPU"):
        export_programs.torch(subject(ranker, SPACE + "device: npu:0\n", {}))
