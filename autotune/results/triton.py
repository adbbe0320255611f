"""A configuration as Triton Inference Server's `config.pbtxt`.

Text format of `inference.ModelConfig` (model_config.proto); for the ONNX Runtime backend.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from autotune.core.errors import UsageError
from autotune.core.records import Config

BACKEND = "onnxruntime"
TYPES = {
    "bool": "TYPE_BOOL", "uint8": "TYPE_UINT8", "uint16": "TYPE_UINT16", "uint32": "TYPE_UINT32",
    "uint64": "TYPE_UINT64", "int8": "TYPE_INT8", "int16": "TYPE_INT16", "int32": "TYPE_INT32",
    "int64": "TYPE_INT64", "float16": "TYPE_FP16", "float32": "TYPE_FP32",
    "float64": "TYPE_FP64", "bfloat16": "TYPE_BF16", "string": "TYPE_STRING",
}  # fmt: skip
_LEVELS = {"basic": -1, "extended": 1, "disabled": 2}
"""Of the backend's graph optimisation; all is the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """An input or output of the model.

    Attributes:
        dims: All axes, -1 for a dynamic one.
        batch_axis: The axis that counts items, None: it has none.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    batch_axis: int | None


def triton_config(
    name: str,
    config: Config,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    *,
    cores: Sequence[Sequence[int]],
    gpu: int | None = None,
    comments: Iterable[str] = (),
) -> str:
    """The text of `config.pbtxt`.

    Args:
        cores: Of each instance; empty: whatever the server has.
        gpu: The index of the GPU that it runs on, None: the CPU.
        comments: Lines for the head of the file.
    Raises:
        UsageError: A tensor's type is none of Triton's, or a model that has no batch axis in front
            of every tensor has one without any axis.
    """
    batches = all(tensor.batch_axis == 0 for tensor in (*inputs, *outputs))
    lines = [*(f"# {line}".rstrip() for line in (*comments, *_remarks(config, cores, batches)))]
    lines += [f"name: {json.dumps(name)}", f'backend: "{BACKEND}"']
    lines += [f"max_batch_size: {config.batch_size if batches else 0}"]
    for key, tensors in (("input", inputs), ("output", outputs)):
        for tensor in tensors:
            lines += _tensor(key, tensor, batches)
    lines += _instances(config, cores if gpu is None else (), gpu)
    if batches and config.batch_size > 1:
        delay_us = round(float(config.get("max_queue_delay", 0.0)) * 1e6)
        lines += [
            "dynamic_batching {",
            f"  preferred_batch_size: [ {config.batch_size} ]",
            f"  max_queue_delay_microseconds: {delay_us}",
            "}",
        ]
    lines += _parameters(config, cores)
    return "\n".join(lines) + "\n"


def host_policies(cores: Sequence[Sequence[int]]) -> list[str]:
    """Options of `tritonserver` that bind each instance to its cores."""
    return [
        f"--host-policy={_policy(index)},cpu-cores={min(own)}-{max(own)}"
        for index, own in enumerate(cores)
        if own and max(own) - min(own) + 1 == len(own)
    ]


def _remarks(config: Config, cores: Sequence[Sequence[int]], batches: bool) -> Iterator[str]:
    policies = host_policies(cores)
    yield ""
    yield "Start: tritonserver --model-repository=DIRECTORY_ABOVE_THIS_ONE"
    if policies:
        yield f"       {' '.join(policies)}"
        yield "The host policies give each instance the cores that it was measured on."
    if config.micro_batch_count > 1:
        yield f"Triton has no micro-batches; {config.micro_batch_count} were measured with."
    if config.get("onnxruntime.spinning", config.instance_count == 1) is False:
        yield "Measured with threads that sleep while they wait, which Triton cannot be told."
    if not batches:
        yield "A tensor has no batch axis in front: requests are not put together."


def _tensor(key: str, tensor: Tensor, batches: bool) -> list[str]:
    if tensor.dtype not in TYPES:
        raise UsageError(f"{key} {tensor.name} is of type {tensor.dtype}, which Triton lacks")
    if not tensor.dims:
        raise UsageError(
            f"{key} {tensor.name} is a single number, and Triton wants an axis; build the model "
            "with that number fixed, or with one per item, shape [batch, 1]"
        )
    dims = list(tensor.dims)
    if batches:
        dims = dims[1:] or [1]
    shape = [] if tensor.dims[1:] or not batches else ["  reshape { shape: [ ] }"]
    return [
        f"{key} {{",
        f"  name: {json.dumps(tensor.name)}",
        f"  data_type: {TYPES[tensor.dtype]}",
        f"  dims: [ {', '.join(map(str, dims))} ]",
        *shape,
        "}",
    ]


def _instances(config: Config, cores: Sequence[Sequence[int]], gpu: int | None) -> Iterator[str]:
    if not host_policies(cores):
        kind = "KIND_CPU" if gpu is None else f"KIND_GPU gpus: [ {gpu} ]"
        yield f"instance_group {{ count: {config.instance_count} kind: {kind} }}"
        return
    for index in range(config.instance_count):
        policy = f'host_policy: "{_policy(index)}"'
        yield f"instance_group {{ count: 1 kind: KIND_CPU {policy} }}"


def _parameters(config: Config, cores: Sequence[Sequence[int]]) -> Iterator[str]:
    level = _LEVELS.get(str(config.get("onnxruntime.graph_optimization", "all")))
    if level is not None:
        yield f"optimization {{ graph {{ level: {level} }} }}"
    parallel = config.get("onnxruntime.execution_mode", "sequential") == "parallel"
    values = {
        "intra_op_thread_count": len(cores[0]) if cores else 0,
        "inter_op_thread_count": int(config.get("onnxruntime.inter_op_threads", 1)),
        "execution_mode": int(parallel),
        "enable_mem_arena": int(bool(config.get("onnxruntime.arena", True))),
    }
    for key, value in values.items():
        yield f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


def _policy(index: int) -> str:
    return f"instance_{index}"
