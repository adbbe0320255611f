"""ONNX Runtime: a user's `.onnx` file, or a torch model that was exported for it.

Inputs are bound to addresses once, and the copy that a call makes is into what is bound: one per
tensor, or with `batched_h2d` one for all of them (on an accelerator one transfer). Outputs come
back to the host.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import math
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autotune.core.errors import UnavailableError, UsageError
from autotune.core.records import Config, WorkloadSpec
from autotune.devices.cpu import is_out_of_memory
from autotune.devices.host_staging import Arrays, Bound, HostStaging
from autotune.workloads import exported
from autotune.workloads.base import Context, Limits, Program

PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "npu": "CANNExecutionProvider",
}
"""Execution providers by kind of device."""

PRECISIONS = ("float32", "float16")
EXECUTION_MODES = {"sequential": "ORT_SEQUENTIAL", "parallel": "ORT_PARALLEL"}
OPTIMIZATIONS = {
    "disabled": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
LOG_ERRORS_ONLY = 3
REASON_LIMIT = 300  # characters of the runtime's own words that are shown
_OWN_ERRORS = "onnxruntime.capi"
"""Where ONNX Runtime's exceptions are from; while it loads a model they are about the model."""
_WHERE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : |/\S+\.(?:h|cc):\d+ .*?\) (?=\S)")
_OTHER_SHAPE = "The output OrtValue provided"


# --- in the parent, without a framework --------------------------------------------------------


def check(spec: WorkloadSpec) -> None:
    """Find mistakes early; imports no framework.

    Raises:
        UsageError: The file is no ONNX model, its inputs cannot be fed, or what is to be exported
            is wrong.
        UnavailableError: A package is missing.
    """
    if spec.precision not in PRECISIONS:
        raise UsageError(
            f"workload.precision: ONNX Runtime runs a model in the precision it was exported in; "
            f"{spec.precision!r} is none of {', '.join(PRECISIONS)}"
        )
    if importlib.util.find_spec("onnxruntime") is None:
        raise UnavailableError(
            "workload.runtime: onnxruntime is not installed; "
            "install it with: pip install 'autotune-npu[onnx]'"
        )
    exported.check(spec)


def preload(spec: WorkloadSpec) -> tuple[str, ...]:
    """Modules that a zygote imports."""
    return ("onnxruntime",)


def limits(spec: WorkloadSpec) -> Limits:
    """What the file demands of a configuration."""
    return exported.limits(spec)


def prepare(spec: WorkloadSpec, seed: int) -> WorkloadSpec:
    """Export a torch model, once per version of it."""
    return exported.prepare(spec, seed)


# --- in the child ------------------------------------------------------------------------------


def program(context: Context) -> Program:
    """Load the model into a session of this instance, on its device and with its cores.

    Raises:
        UsageError: The runtime cannot load the model.
        UnavailableError: The provider for the device is not there; ONNX Runtime would fall back
            to the CPU without a word.
    """
    import onnxruntime as ort

    model = exported.model_of(context.workload)
    provider, device = _provider(context.framework_device, ort)
    options = session_options(ort, context.config)
    try:
        session = ort.InferenceSession(str(model.path), options, providers=[provider])
    except Exception as error:
        if not type(error).__module__.startswith(_OWN_ERRORS) or is_out_of_memory(error):
            raise
        reason = _WHERE.sub("", str(error))[:REASON_LIMIT]
        raise UsageError(
            f"workload.model: onnxruntime cannot load {model.path}: {reason}"
        ) from error
    inputs, is_host = model.inputs, device[0] == "cpu"
    stage = HostStaging if is_host else functools.partial(DeviceStaging, ort=ort, device=device)
    return Program(
        inputs=inputs,
        run=_Run(session),
        stage=lambda *requests: stage(*requests, bind=functools.partial(_bind, session, device)),
        takes_part_batches=is_host and model.takes_part_batches,
        precision=model.precision,
        outputs=_outputs,
        thread_count=options.intra_op_num_threads,
        versions={"onnxruntime": str(ort.__version__)},
        notes=(*model.notes, _where_it_runs(session, provider[0])),
    )


def _provider(
    framework_device: str, ort: Any
) -> tuple[tuple[str, dict[str, str]], tuple[str, int]]:
    """The provider for a device with its options, and what the runtime calls the device."""
    kind, _, index = framework_device.partition(":")
    name = PROVIDERS.get(kind)
    if name is None:
        raise UsageError(f"workload.runtime: onnxruntime has no provider for the device {kind}")
    if name not in ort.get_available_providers():
        raise UnavailableError(
            f"workload.runtime: this build of onnxruntime has no {name}; it has "
            f"{', '.join(ort.get_available_providers())}"
        )
    options = {} if kind == "cpu" else {"device_id": index or "0"}
    return (name, options), ("cann" if kind == "npu" else kind, int(index or 0))


def session_options(ort: Any, config: Config) -> Any:
    """Options of the session of one instance: threads as many as it has cores."""
    options = ort.SessionOptions()
    options.log_severity_level = LOG_ERRORS_ONLY
    # Counted, not left to the runtime, which would bind its threads to cores of the host's.
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    # Threads that wait by spinning take the cores of the other instances.
    spins = bool(config.get("onnxruntime.spinning", config.instance_count == 1))
    for pool in ("intra_op", "inter_op"):
        options.add_session_config_entry(f"session.{pool}.allow_spinning", str(int(spins)))
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    mode = str(config.get("onnxruntime.execution_mode", "sequential"))
    options.execution_mode = getattr(ort.ExecutionMode, EXECUTION_MODES[mode])
    options.inter_op_num_threads = int(config.get("onnxruntime.inter_op_threads", 1))
    level = str(config.get("onnxruntime.graph_optimization", "all"))
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, OPTIMIZATIONS[level])
    options.enable_cpu_mem_arena = bool(config.get("onnxruntime.arena", True))
    return options


def _where_it_runs(session: Any, wanted: str) -> str:
    """The provider that runs the model, read back, as a note.

    Raises:
        UnavailableError: It is another than the wanted one.
    """
    running = session.get_providers()
    if not running or running[0] != wanted:
        raise UnavailableError(
            f"workload.runtime: onnxruntime runs the model on {', '.join(running)}, since "
            f"{wanted} could not be loaded; its libraries may be missing"
        )
    read = getattr(session, "get_provider_graph_assignment_info", None)
    nodes = Counter(part.ep_name for part in read() for _ in part.get_nodes()) if read else {}
    if nodes and wanted not in nodes:
        raise UnavailableError(
            f"workload.runtime: {wanted} takes none of the model's {sum(nodes.values())} nodes; "
            f"all run on {', '.join(nodes)}"
        )
    elsewhere = [f"{count} of {sum(nodes.values())} nodes on {name}" for name, count in
                 nodes.items() if name != wanted]  # fmt: skip
    return f"provider: {', '.join([wanted, *elsewhere])}"


class _Run:
    """Calls with what is bound; outputs stay in the same memory while their shapes do.

    Where they change from call to call (the boxes that a detector finds), the runtime refuses
    that memory, and every call gets memory of its own from then on. So does a model with
    sequences among its outputs from the first call on: the runtime would lengthen the last ones.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self._run_with_iobinding = session.run_with_iobinding
        kinds = [output.type for output in session.get_outputs()]
        self._is_rebinding = not all(kind.startswith("tensor(") for kind in kinds)

    def __call__(self, binding: Any) -> Any:
        if self._is_rebinding:
            return self._rebound(binding)
        try:
            self._run_with_iobinding(binding)
        except RuntimeError as error:
            if _OTHER_SHAPE not in str(error):
                raise
            self._is_rebinding = True
            return self._rebound(binding)
        return binding

    def _rebound(self, binding: Any) -> Any:
        binding.clear_binding_outputs()
        _bind_outputs(self._session, binding)
        self._run_with_iobinding(binding)
        return binding


def _bind(session: Any, device: tuple[str, int], tensors: Sequence[Bound]) -> Any:
    """Inputs at addresses of the device; outputs come back to the host, wherever it runs."""
    binding = session.io_binding()
    for item, tensor in zip(session.get_inputs(), tensors, strict=True):
        binding.bind_input(item.name, *device, tensor.dtype.type, tensor.shape, tensor.address)
    _bind_outputs(session, binding)
    return binding


def _bind_outputs(session: Any, binding: Any) -> None:
    for output in session.get_outputs():
        binding.bind_output(output.name, "cpu")


def _outputs(binding: Any) -> list[Any]:
    """What a call has made, as arrays; the maps of a classifier as a table of their values."""
    values = binding.get_outputs()
    kinds = [value.data_type() for value in values]
    if all(value.is_tensor() for value in values) or "tensor(string)" in kinds:
        # Text has no numbers, and beside it the runtime cannot hand out what is no tensor.
        return [_array(value) for value in values if value.is_tensor()]
    return [
        np.array([list(row.values()) for row in value])
        if isinstance(value, list) and value and isinstance(value[0], dict)
        else value
        for value in binding.copy_outputs_to_cpu()
    ]


def _array(value: Any) -> Any:
    return _widened(value) if value.data_type() == "tensor(bfloat16)" else value.numpy()


def _widened(value: Any) -> np.ndarray[Any, Any]:
    """bfloat16 as float32, of which it is the upper half; numpy has no such type."""
    shape = value.shape()
    halves = (ctypes.c_uint16 * math.prod(shape)).from_address(value.data_ptr())
    wide = np.frombuffer(halves, np.uint16).astype(np.uint32) << 16
    found: np.ndarray[Any, Any] = wide.view(np.float32).reshape(shape)
    return found


class DeviceStaging(HostStaging):
    """Request copies into memory of a device, which the runtime itself allocates.

    The host side is that of `HostStaging`. A slot is one value of the runtime's per tensor, or a
    flat one; a call copies whole micro-batches.
    """

    def __init__(self, *args: Any, ort: Any, device: tuple[str, int], **how: Any) -> None:
        super().__init__(*args, **how)
        self._values = [
            [ort.OrtValue.ortvalue_from_numpy(target, *device) for target in targets]
            for targets in self._targets
        ]

    def _copy(self, slot: int, sources: Arrays, items: int) -> None:
        for value, source in zip(self._values[slot], sources, strict=True):
            value.update_inplace(source)

    def _bound_tensors(self, slot: int, items: int) -> list[Bound]:
        on_host = super()._bound_tensors(slot, items)
        values = self._values[slot]
        if self.method == "packed":
            moved = values[0].data_ptr() - self._targets[slot][0].ctypes.data
            return [replace(tensor, address=tensor.address + moved) for tensor in on_host]
        pairs = zip(on_host, values, strict=True)
        return [replace(tensor, address=value.data_ptr()) for tensor, value in pairs]
