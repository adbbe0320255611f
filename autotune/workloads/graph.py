"""Torch modules run as a graph of one shape: compiled by torchair on an NPU, or captured.

`runtime: torchair` hands the module to the Ascend graph engine, with the core split as its option
`ge.aicoreNum`. `runtime: graph` captures the launches of one call and replays them; what the model
does on the host is not in it. Either way a graph has one shape, so each batch size has its own,
and its compilation is part of what a trial costs. Neither has run on a device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune.core.errors import CompileError, UnavailableError, UsageError
from autotune.core.records import Config, InputSpec, WorkloadSpec
from autotune.core.text import describe
from autotune.devices.splits import parse_split
from autotune.workloads import torch_module
from autotune.workloads.base import Context, Program

if TYPE_CHECKING:
    import torch

WARMUP_CALLS = 3  # before a capture: what is allocated and chosen on first use must be done


def check(spec: WorkloadSpec) -> None:
    """As for a module that is run step by step."""
    torch_module.check(spec)


def preload(spec: WorkloadSpec) -> tuple[str, ...]:
    """As for a module that is run step by step."""
    return torch_module.preload(spec)


def compiled(context: Context) -> Program:
    """The module compiled by torchair for the shape of a micro-batch.

    Raises:
        UsageError: The device is no NPU. UnavailableError: torchair cannot be loaded.
        CompileError: The graph engine refused the module.
    """
    if not context.framework_device.startswith("npu"):
        raise UsageError(
            f"workload.runtime: torchair is for an NPU, and the device is {context.devices[0]}"
        )
    import torch
    import torch_npu  # noqa: F401 (it is what offers torchair)

    try:
        import torchair

        options = torchair.CompilerConfig()
    except ImportError as error:
        reason = str(error).partition("\n")[0]
        raise UnavailableError(
            f"workload.runtime: torchair cannot be loaded: {reason}; it needs CANN's "
            "graph engine and the packages protobuf and packaging"
        ) from error
    split = context.config.cores_per_instance
    if split != "all":
        cube, vector = parse_split(split)
        options.ge_config.aicore_num = f"{cube}|{vector}"
    backend = torchair.get_npu_backend(compiler_config=options)

    note = f"torchair, ge.aicoreNum {split}" if split != "all" else "torchair"

    def compile_(call: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
        # All of it or nothing: what is left out of a graph would run step by step without a word.
        graph: Callable[..., Any] = torch.compile(
            call, backend=backend, dynamic=False, fullgraph=True
        )
        with _refusals(note):
            torch_module.inference(graph)(*inputs)  # compiles
        return graph

    return _of_one_shape(context, compile_, note)


def captured(context: Context) -> Program:
    """The module's launches for the shape of a micro-batch, captured once and replayed.

    Raises:
        UsageError: The device has no graphs. CompileError: The capture failed.
    """
    import torch

    kind = context.framework_device.partition(":")[0]
    runtime = torch.get_device_module(kind)
    graph_class = getattr(runtime, f"{kind.upper()}Graph", None)  # NPUGraph, CUDAGraph, MLUGraph
    if graph_class is None:
        raise UsageError(f"workload.runtime: graph needs an accelerator; {kind} captures no graphs")
    note = f"{graph_class.__name__}, captured once"

    def capture(call: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
        run = torch_module.inference(call)
        own = runtime.current_stream()
        # A thread's own stream may have a limit of cores, which a capture takes over; the default
        # stream cannot be captured.
        stream = runtime.Stream() if own == runtime.default_stream() else own
        stream.wait_stream(own)
        with runtime.stream(stream):
            for _ in range(WARMUP_CALLS):
                run(*inputs)
        own.wait_stream(stream)
        graph = graph_class()
        with _refusals(note), runtime.graph(graph, stream=stream):
            outputs = run(*inputs)

        def replay(*tensors: torch.Tensor) -> Any:
            for held, tensor in zip(inputs, tensors, strict=True):
                held.copy_(tensor)
            graph.replay()
            return outputs

        return replay

    return _of_one_shape(context, capture, note)


@contextlib.contextmanager
def _refusals(note: str) -> Iterator[None]:
    """What is raised meanwhile is a graph that cannot be had, unless the host has no memory."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # the device knows the words of its own that mean out of memory
        raise CompileError(f"{note}: {describe(error)}") from error


def _of_one_shape(
    context: Context,
    build: Callable[[Callable[..., Any], Sequence[torch.Tensor]], Callable[..., Any]],
    note: str,
) -> Program:
    """The eager program with its call built into a graph, and what that took."""

    def compile_(
        call: Callable[..., Any], inputs: Sequence[InputSpec]
    ) -> tuple[Callable[..., Any], float]:
        examples = _examples(inputs, context.config, context.framework_device)
        began_s = context.clock.now_s()
        return build(call, examples), context.clock.now_s() - began_s

    program = torch_module.program(context, compile_)
    notes = (*program.notes, f"graph of one shape: {note}")
    return replace(program, takes_part_batches=False, notes=notes)


def _examples(inputs: Sequence[InputSpec], config: Config, device: str) -> tuple[torch.Tensor, ...]:
    """Inputs of a micro-batch that any model takes: zeros."""
    import torch

    items = config.batch_size // config.micro_batch_count
    return tuple(
        torch.zeros(spec.sizes(items), dtype=getattr(torch, spec.dtype), device=device)
        for spec in inputs
    )
