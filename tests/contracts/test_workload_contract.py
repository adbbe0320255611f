"""What every workload must do; a new one adds a line to `EXAMPLES`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from autotune.core.clock import VirtualClock
from autotune.core.errors import AutotuneError, UsageError
from autotune.core.records import Config, GroupSpec, InputSpec, Plan, Reported, Window, WorkloadSpec
from autotune.workloads import WORKLOADS, check_workload, load_workload, preload_modules
from autotune.workloads.base import Context, Program
from autotune.workloads.data import make_requests
from autotune.workloads.outputs import figures_of

CELL = "from mindspore import nn\ndef make(): return nn.ReLU()\n"
GRID = "batch_size,throughput_items_per_s,latency_p99_s,status,cost_s\n2,50,0.1,ok,1\n"

EXAMPLES: dict[str, WorkloadSpec] = {
    "torch": WorkloadSpec(kind="torch", model="mlp", options={"size": "small"}),
    "onnxruntime": WorkloadSpec(kind="onnxruntime", model="model.onnx"),
    "openvino": WorkloadSpec(kind="openvino", model="model.onnx"),
    "torchair": WorkloadSpec(kind="torchair", model="mlp", options={"size": "small"}),
    "graph": WorkloadSpec(kind="graph", model="mlp", options={"size": "small"}),
    "mindspore": WorkloadSpec(
        kind="mindspore", model="cell.py:make", inputs=(InputSpec(name="x", shape=("batch", 3)),)
    ),
    "pipeline": WorkloadSpec(kind="pipeline", model="transformer"),
    "replay": WorkloadSpec(kind="replay", model="grid.csv"),
    "simulated": WorkloadSpec(kind="simulated", model="recommender_a3"),
    "command": WorkloadSpec(
        kind="command", options={"command": ["echo", '{"throughput": 5, "latency_p99_ms": 1}']}
    ),
    "server": WorkloadSpec(
        kind="server",
        options={
            "command": [sys.executable, "-m", "http.server", "{port}"],
            "url": "http://127.0.0.1:{port}",
            "request": {"path": "/", "method": "GET", "headers": {}},
        },
    ),
}
ELSEWHERE = {  # in which tests it is run, as it takes a process of its own
    "ranks": "tests/trial/test_ranks.py",
    "server": "tests/trial/test_server.py",
}
CONFIG = Config(batch_size=2)
NEEDS_ACCELERATOR = ("torchair", "graph")


def write_onnx(path: Path) -> None:
    from onnx import TensorProto, helper, save

    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 3]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.fixture(params=WORKLOADS)
def kind(request: pytest.FixtureRequest) -> str:
    assert isinstance(request.param, str)
    return request.param


@pytest.fixture
def spec(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkloadSpec:
    if kind == "mindspore" and importlib.util.find_spec(kind) is None:
        pytest.skip("mindspore is not installed (0.8 GB): pip install 'autotune-npu[mindspore]'")
    (tmp_path / "grid.csv").write_text(GRID)
    (tmp_path / "cell.py").write_text(CELL)
    write_onnx(tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    return EXAMPLES[kind]


def test_a_right_one_passes_the_check(spec: WorkloadSpec) -> None:
    check_workload(spec)


def test_a_wrong_model_is_refused_early(kind: str, spec: WorkloadSpec) -> None:
    wrong = WorkloadSpec(kind=kind, model="nosuch")
    if WORKLOADS[kind].is_outside:
        wrong = replace(spec, options={**spec.options, "command": ["nosuch"]})
    with pytest.raises(UsageError, match="nosuch"):
        check_workload(wrong)


def test_preloading_names_modules_that_exist(spec: WorkloadSpec) -> None:
    for name in preload_modules(spec):
        assert importlib.util.find_spec(name) is not None


def test_looking_it_up_loads_no_framework(kind: str) -> None:
    code = (
        "import sys\nfrom autotune import workloads\n"
        f"workloads.load_workload({kind!r})\n"
        "frameworks = {'torch', 'transformers', 'onnxruntime', 'openvino', 'optuna'}\n"
        "assert not frameworks & set(sys.modules)"
    )
    root = str(Path(sys.modules["autotune.workloads"].__file__ or "").parents[2])
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_it_gives_what_its_kind_promises(kind: str, spec: WorkloadSpec) -> None:
    function = load_workload(kind)
    if (where := ELSEWHERE.get(WORKLOADS[kind].runs)) is not None:
        pytest.skip(f"see {where}")
    if WORKLOADS[kind].runs in ("report", "program"):
        group = GroupSpec(config=CONFIG, workload=spec, devices=("cpu",), cores=((),))
        result = function(group, Plan(windows=(Window(duration_s=1.0),)))
        assert isinstance(result, Reported)
        assert result.metrics["throughput_items_per_s"] > 0
        assert result.duration_s >= (1.0 if WORKLOADS[kind].runs == "report" else 0.0)
        return
    clock = VirtualClock()
    context = Context(
        config=CONFIG, workload=spec, devices=("cpu",), framework_device="cpu", clock=clock
    )
    if kind in NEEDS_ACCELERATOR:
        with pytest.raises(UsageError, match=f"workload.runtime: {kind}"):
            function(context)
        pytest.skip(f"{kind} needs an accelerator")
    program = function(context)
    assert isinstance(program, Program)
    assert (program.run is None) != (program.step is None)
    if program.step is not None:
        before_s = clock.now_s()
        times = program.step(0)
        assert 0 < sum(times) <= clock.now_s() - before_s + 1e-12
    else:
        assert program.run is not None
        (request,) = make_requests(program.inputs, CONFIG.batch_size, 1, seed=0)
        tensors = list(map(torch.as_tensor, request))
        if program.stage is not None:
            tensors = list(program.stage(program.inputs, [request], CONFIG).load(0, 0))
        output = program.run(*tensors)
        if program.wait is not None:
            program.wait()
        if program.outputs is not None:
            output = program.outputs(output)
        for tensor in figures_of(output, CONFIG.batch_size, program.inputs[0].batch_axis):
            assert tensor.figures is not None and np.isfinite(tensor.figures).all()
    program.close()


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(AutotuneError, match="known: torch, "):
        load_workload("nosuch")
