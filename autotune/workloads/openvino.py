"""OpenVINO on the CPU: the same ONNX files and exports as ONNX Runtime, and its own IR.

The precision is always said, since the runtime takes bfloat16 by itself where the processor is
faster with it, and what really ran is read back. A call's micro-batches are as many infer
requests in flight, which the streams of the instance share; the call ends when all have.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autotune.core.errors import CompileError, UnavailableError, UsageError
from autotune.core.records import Config, InputSpec, WorkloadSpec
from autotune.devices.base import Staging
from autotune.devices.cpu import is_out_of_memory
from autotune.devices.host_staging import Bound, HostStaging
from autotune.devices.staging import SLOT_COUNT
from autotune.workloads import exported
from autotune.workloads.base import Context, Limits, Program
from autotune.workloads.lengths import lengths_of

PRECISIONS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
HINTS = ("none", "latency", "throughput")
_COMPUTING = ("Convolution", "FullyConnected", "MatMul", "Deconvolution", "RNNSeq", "MHA")
"""Kinds of layers in the compiled graph that do the work; others only move or convert data."""


# --- in the parent, without a framework --------------------------------------------------------


def check(spec: WorkloadSpec) -> None:
    """Find mistakes early; imports no framework.

    Raises:
        UsageError: The file is no model, its inputs cannot be fed, or what is to be exported is
            wrong.
        UnavailableError: A package is missing.
    """
    if spec.precision not in PRECISIONS:
        raise UsageError(
            f"workload.precision: {spec.precision!r} is none of {', '.join(PRECISIONS)}"
        )
    if importlib.util.find_spec("openvino") is None:
        raise UnavailableError(
            "workload.runtime: openvino is not installed; "
            "install it with: pip install 'autotune-npu[openvino]'"
        )
    exported.check(_as_float32(spec))


def preload(spec: WorkloadSpec) -> tuple[str, ...]:
    """Modules that a zygote imports."""
    return ("openvino",)


def limits(spec: WorkloadSpec) -> Limits:
    """What the file demands of a configuration."""
    return exported.limits(spec)


def prepare(spec: WorkloadSpec, seed: int) -> WorkloadSpec:
    """Export a torch model in float32, once per version of it; the runtime lowers the precision."""
    prepared = exported.prepare(_as_float32(spec), seed)
    return replace(prepared, precision=spec.precision)


def _as_float32(spec: WorkloadSpec) -> WorkloadSpec:
    return replace(spec, precision="float32")


# --- in the child ------------------------------------------------------------------------------


def program(context: Context) -> Program:
    """Compile the model for this instance's cores.

    Raises:
        UsageError: The runtime cannot read the model.
        CompileError: It cannot run it with this batch size.
        UnavailableError: The device or the precision is not to be had here.
    """
    import openvino as ov

    spec, config = context.workload, context.config
    if context.framework_device != "cpu":
        raise UnavailableError(
            f"workload.runtime: openvino is run on the CPU only, not on {context.framework_device}"
        )
    model = exported.model_of(_as_float32(spec))
    is_dynamic = bool(config.get("openvino.dynamic_shape", False)) or lengths_of(model.inputs)
    is_static = model.fixed_batch is not None or not is_dynamic
    size = config.batch_size // config.micro_batch_count
    began_s = context.clock.now_s()
    graph, places = _read(ov, model)
    shapes = [item.sizes(size if is_static else -1, -1) for item in model.inputs]
    chosen = settings(config, spec.precision)
    compiled = _compiled(ov, graph, list(zip(places, shapes, strict=True)), chosen)
    compile_s = context.clock.now_s() - began_s
    precision = _precision(compiled, spec.precision)
    requests = _Requests(ov, compiled, places, is_async=config.micro_batch_count > 1)
    return Program(
        inputs=model.inputs,
        run=requests.run,
        wait=requests.wait,
        stage=requests.stage,
        takes_part_batches=not is_static and model.takes_part_batches,
        precision=precision,
        compile_s=compile_s,
        outputs=lambda request: [tensor.data for tensor in request.output_tensors],
        thread_count=int(compiled.get_property("INFERENCE_NUM_THREADS")),
        versions={"openvino": str(ov.__version__)},
        notes=(*model.notes, f"streams: {compiled.get_property('NUM_STREAMS')}"),
    )


def settings(config: Config, precision: str) -> dict[str, Any]:
    """What one instance is compiled with: its cores, and its streams or a hint instead."""
    chosen: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": PRECISIONS[precision],
        # Its cores are bound already; the runtime would bind its threads to others.
        "INFERENCE_NUM_THREADS": len(os.sched_getaffinity(0)),
        "ENABLE_CPU_PINNING": False,
    }
    hint = str(config.get("openvino.hint", "none"))
    if hint == "none":
        chosen["NUM_STREAMS"] = int(config.get("openvino.streams", 1))
    else:
        chosen["PERFORMANCE_HINT"] = hint.upper()
    return chosen


def _read(ov: Any, model: exported.Model) -> tuple[Any, list[int]]:
    """The graph, and where in it each of the model's inputs is."""
    try:
        graph = ov.Core().read_model(str(model.path))
        places = [_place(graph, item.name) for item in model.inputs]
    except RuntimeError as error:
        raise UsageError(
            f"workload.model: openvino cannot read {model.path}: {_last_line(error)}"
        ) from error
    return graph, places


def _compiled(
    ov: Any, graph: Any, shapes: Sequence[tuple[int, Sequence[int]]], chosen: dict[str, Any]
) -> Any:
    """The graph compiled for the shapes of its inputs."""
    try:
        graph.reshape({graph.input(place): ov.PartialShape(list(s)) for place, s in shapes})
        return ov.Core().compile_model(graph, "CPU", chosen)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise CompileError(f"openvino cannot compile the model: {_last_line(error)}") from error


def _last_line(error: BaseException) -> str:
    """What went wrong; the lines before say where in the runtime."""
    words = str(error).strip().splitlines()
    return words[-1] if words else type(error).__name__


def _place(graph: Any, name: str) -> int:
    """The number of an input, by the name of its tensor, else of its layer."""
    for place, port in enumerate(graph.inputs):
        if name in port.get_names() or name == port.get_node().get_friendly_name():
            return place
    raise UsageError(f"workload.model: openvino finds no input {name!r} in the model")


def _precision(compiled: Any, wanted: str) -> str:
    """The precision in which the layers that compute really run.

    Raises:
        UnavailableError: It is another than the wanted one.
    """
    ran = {
        str(info["runtimePrecision"].astype(str))
        for info in (node.get_rt_info() for node in compiled.get_runtime_model().get_ops())
        if str(info["layerType"].astype(str)) in _COMPUTING
    }
    names = {short: name for name, short in PRECISIONS.items()}
    lowered = sorted(ran & {"bf16", "f16"})
    real = names[lowered[0]] if lowered else "float32"
    if ran & set(names) and real != wanted:
        raise UnavailableError(
            f"workload.precision: openvino runs this model in {real} here, not in {wanted}"
        )
    return real if ran & set(names) else wanted


class _Requests:
    """One infer request per slot; what was started is waited for at the end of a call."""

    def __init__(self, ov: Any, compiled: Any, places: Sequence[int], *, is_async: bool) -> None:
        self._ov, self._compiled, self._places = ov, compiled, places
        self._started: list[Any] = []
        self.run = self._start if is_async else self._infer
        self.wait = self._wait if is_async else _nothing

    def stage(
        self, inputs: Sequence[InputSpec], requests: Sequence[Sequence[Any]], config: Config
    ) -> Staging:
        slots = max(SLOT_COUNT, config.micro_batch_count)
        return HostStaging(inputs, requests, config, bind=self._bind, slot_count=slots)

    def _bind(self, tensors: Sequence[Bound]) -> Any:
        request = self._compiled.create_infer_request()
        for place, tensor in zip(self._places, tensors, strict=True):
            request.set_input_tensor(place, self._ov.Tensor(tensor.array, shared_memory=True))
        return request

    @staticmethod
    def _infer(request: Any) -> Any:
        request.infer()
        return request

    def _start(self, request: Any) -> Any:
        request.start_async()
        self._started.append(request)
        return request

    def _wait(self) -> None:
        for request in self._started:
            request.wait()
        self._started.clear()


def _nothing() -> None:
    """Calls have ended when they return."""
