"""Graph mode, as far as it goes without a device.

The wheel's own torchair runs up to the start of the graph engine. Beyond that it is stood in for,
as is the capture: what is tested is this project's side, options, order of calls, what a trial is
told.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from npu_groups import opened

from autotune.core.clock import MonotonicClock
from autotune.core.errors import CompileError, UsageError
from autotune.core.records import Config, WorkloadSpec
from autotune.trial import child, messages
from autotune.workloads import load_workload, torch_module
from autotune.workloads.base import Context, Program


def built(kind: str, device: str = "npu:0", **values: Any) -> Program:
    context = Context(
        config=Config.from_dict({"batch_size": 8, "micro_batch_count": 2, **values}),
        workload=WorkloadSpec(kind=kind, model="mlp", options={"size": "small"}),
        devices=(device,),
        framework_device=device,
        clock=MonotonicClock(),
    )
    program = load_workload(kind)(context)
    assert isinstance(program, Program)
    return program


REAL = """
import ctypes
from torch.utils._python_dispatch import _disable_current_modes
from test_graph import built

plain = torch.compile

def compile_(function, **how):
    graph = plain(function, **how)
    def without_host_maths(*tensors):
        with _disable_current_modes():
            return graph(*tensors)
    return without_host_maths

torch.compile = compile_
answer = {"error": "none"}
try:
    built("torchair", cores_per_instance="16|32")
except BaseException as error:
    answer["error"] = f"{type(error).__name__}: {error}"
stub = ctypes.CDLL("libascendcl.so")
stub.stub_graph_options.restype = ctypes.c_char_p
answer["options"] = stub.stub_graph_options().decode().splitlines()
"""


def test_the_real_torchair_starts_the_graph_engine_with_the_core_split(
    on_stub: Callable[..., Any],
) -> None:
    answer = on_stub(REAL)
    assert "ge.aicoreNum=16|32" in answer["options"]
    assert answer["error"].startswith("CompileError: torchair, ge.aicoreNum 16|32")
    assert "initialize_graph_engine" in answer["error"], "which the stub refuses"


@pytest.fixture
def torchair(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in whose backend runs the function as it is, and keeps what it was given."""
    import torch

    seen = SimpleNamespace(shapes=[], options=None, fails=None)

    def compile_(
        function: Callable[..., Any], *, backend: Any, dynamic: bool, fullgraph: bool
    ) -> Any:
        assert backend == "backend" and dynamic is False and fullgraph

        def graph(*tensors: Any) -> Any:
            if seen.fails is not None:
                raise seen.fails
            seen.shapes.append(tuple(tensors[0].shape))
            return function(*tensors)

        return graph

    def get_npu_backend(*, compiler_config: Any) -> str:
        seen.options = compiler_config
        return "backend"

    module = SimpleNamespace(
        CompilerConfig=lambda: SimpleNamespace(ge_config=SimpleNamespace(aicore_num=None)),
        get_npu_backend=get_npu_backend,
    )
    monkeypatch.setitem(sys.modules, "torchair", module)
    monkeypatch.setattr(torch, "compile", compile_)
    return seen


@pytest.mark.parametrize(("split", "option"), [("16|32", "16|32"), ("all", None)])
def test_torchair_gets_the_core_split_and_one_shape(
    torchair: Any, split: str, option: str | None
) -> None:
    import torch

    program = built("torchair", cores_per_instance=split)
    assert torchair.options.ge_config.aicore_num == option
    assert torchair.shapes == [(4, *torchair.shapes[0][1:])], "compiled for a micro-batch"
    assert not program.takes_part_batches and program.compile_s > 0
    assert any("graph of one shape: torchair" in note for note in program.notes)
    plain = built("torch")
    item = torch.rand(4, *torchair.shapes[0][1:]).to("npu:0")
    assert program.run is not None and plain.run is not None
    assert torch.equal(program.run(item).cpu(), plain.run(item).cpu())


@pytest.mark.parametrize(
    ("words", "no_memory"),
    [
        ("op not supported", False),
        ("NPU out of memory. Tried to allocate 8 GiB", True),
        ("NPU function error: aclrtMalloc, error code is 207001", True),
        ("NPU function error: aclrtMemcpy, error code is 507052", False),
    ],
)
def test_what_the_graph_engine_refuses_is_a_compile_error_or_memory(
    torchair: Any, words: str, no_memory: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    torchair.fails = RuntimeError(words)
    with pytest.raises(CompileError, match=words) as caught:
        built("torchair")
    sent: list[messages.Failed] = []
    process = child.InstanceThreads(SimpleNamespace(instances=(0,)), MonotonicClock())  # type: ignore[arg-type]
    process._devices.append(opened())
    child._report(SimpleNamespace(send=sent.append), caught.value, process)  # type: ignore[arg-type]
    assert sent[0].error == ("OutOfMemory" if no_memory else "CompileError")


@pytest.mark.parametrize("kind", ["torchair", "graph"])
def test_the_cpu_has_no_graphs(kind: str) -> None:
    with pytest.raises(UsageError, match=f"workload.runtime: {kind}"):
        built(kind, "cpu")


def test_a_capture_is_warmed_up_and_fed_before_each_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    log: list[str] = []

    class NPUGraph:
        def replay(self) -> None:
            log.append(f"replay of {held[0].flatten()[0].item():g}")

    @contextlib.contextmanager
    def graph(_: NPUGraph, *, stream: Any) -> Iterator[None]:
        assert stream != torch.npu.default_stream(), "which cannot be captured"
        log.append("capture")
        yield
        log.append("captured")

    monkeypatch.setattr(torch.npu, "NPUGraph", NPUGraph)
    monkeypatch.setattr(torch.npu, "graph", graph)
    held: list[Any] = []
    real = torch_module.build

    def build(*args: Any, **options: Any) -> torch_module.Built:
        plain = real(*args, **options)

        def call(*tensors: Any) -> Any:
            held[:] = tensors
            log.append("run")
            return plain.call(*tensors)

        return replace(plain, call=call)

    monkeypatch.setattr(torch_module, "build", build)
    made = built("graph")
    assert log == ["run", "run", "run", "capture", "run", "captured"]
    assert made.run is not None and not made.takes_part_batches
    shape = tuple(held[0].shape)
    outputs = [made.run(torch.full(shape, value).to("npu:0")) for value in (3.0, 5.0)]
    assert log[6:] == ["replay of 3", "replay of 5"]
    assert outputs[0] is outputs[1], "a graph writes into the outputs it was captured with"
