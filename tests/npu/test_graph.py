"""Graph mode, as far as it goes without a device: torchair and the capture are stood in for.

What is tested is this project's side: options, order of calls, what a trial is told. torchair and
NPUGraph themselves do not run on the stub.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.core.clock import MonotonicClock
from autotune.core.errors import CompileError, UsageError
from autotune.core.records import Config, WorkloadSpec
from autotune.workloads import load_workload
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


@pytest.fixture
def torchair(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in whose backend runs the function as it is, and keeps what it was given."""
    import torch
    import torch_npu.dynamo

    seen = SimpleNamespace(shapes=[], options=None, fails=None)

    def compile_(function: Callable[..., Any], *, backend: Any, dynamic: bool) -> Any:
        assert backend == "backend" and dynamic is False

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
    monkeypatch.setattr(torch_npu.dynamo, "torchair", module, raising=False)
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


def test_what_the_graph_engine_refuses_is_a_compile_error(torchair: Any) -> None:
    torchair.fails = RuntimeError("op not supported")
    with pytest.raises(CompileError, match="op not supported"):
        built("torchair")
    torchair.fails = RuntimeError("NPU out of memory. Tried to allocate 8 GiB")
    with pytest.raises(RuntimeError, match="out of memory"):
        built("torchair")


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
    def graph(_: NPUGraph) -> Iterator[None]:
        log.append("capture")
        yield
        log.append("captured")

    monkeypatch.setattr(torch.npu, "NPUGraph", NPUGraph)
    monkeypatch.setattr(torch.npu, "graph", graph)
    held: list[Any] = []
    real = load_workload("torch")

    def program(context: Context) -> Program:
        from dataclasses import replace

        plain = real(context)

        def run(*tensors: Any) -> Any:
            held[:] = tensors
            log.append("run")
            return plain.run(*tensors)

        return replace(plain, run=run)

    monkeypatch.setattr("autotune.workloads.torch_module.program", program)
    made = built("graph")
    assert log == ["run", "run", "run", "capture", "run", "captured"]
    assert made.run is not None and not made.takes_part_batches
    shape = tuple(held[0].shape)
    outputs = [made.run(torch.full(shape, value).to("npu:0")) for value in (3.0, 5.0)]
    assert log[6:] == ["replay of 3", "replay of 5"]
    assert outputs[0] is outputs[1], "a graph writes into the outputs it was captured with"
