"""A model's outputs for a user's own items, in the batches of a configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autotune.core.errors import UsageError
from autotune.core.records import Config, WorkloadSpec
from autotune.devices.base import Device, Staging
from autotune.workloads.base import Program
from autotune.workloads.outputs import arrays_of, item_axis
from autotune.workloads.user_data import UserData, accuracy

RING = 8  # requests that are held in buffers at a time


def evaluate(
    program: Program,
    stage: Callable[..., Staging],
    device: Device,
    config: Config,
    workload: WorkloadSpec,
) -> dict[str, float]:
    """Run all items of the user's file once and hold the outputs against what is expected.

    Returns:
        Figures of the user's function, or of the differences; `items` is how many there were.
    Raises:
        UsageError: The file does not fit the model, or there is nothing to compare with.
    """
    assert workload.data is not None and program.run is not None
    data = UserData(workload.data, program.inputs)
    if not data.has_expected and not workload.data.evaluate:
        return {"items": float(data.item_count)}
    batches = data.requests(config.batch_size, data.ring(config.batch_size))
    parts: list[list[np.ndarray[Any, Any]]] = []
    for first in range(0, len(batches), RING):
        held = batches[first : first + RING]
        staging = stage(program.inputs, held, config)
        for call in range(len(held)):
            parts += _call(program, staging, device, config, call)
    size = config.batch_size // config.micro_batch_count
    outputs = [_joined(tensors, size, program, data.item_count) for tensors in zip(*parts)]  # noqa: B905
    figures = accuracy(workload.data, workload.base_dir, outputs, data.expected)
    return {"items": float(data.item_count), **figures}


def _call(
    program: Program, staging: Staging, device: Device, config: Config, call: int
) -> list[list[np.ndarray[Any, Any]]]:
    assert program.run is not None
    runs = []
    for micro_batch in range(config.micro_batch_count):
        output = program.run(*staging.load(call, micro_batch))
        (program.wait or device.synchronize)()
        if program.outputs is not None:
            output = program.outputs(output)
        runs.append([array.copy() for array in arrays_of(output)])
    return runs


def _joined(
    tensors: tuple[np.ndarray[Any, Any], ...], size: int, program: Program, items: int
) -> np.ndarray[Any, Any]:
    """One output of all items, the items first."""
    axis = item_axis(tensors[0].shape, size, program.inputs[0].batch_axis)
    if axis is None:
        raise UsageError(
            f"workload.data: no axis of the output {list(tensors[0].shape)} has the {size} items "
            "that went in"
        )
    return np.concatenate([np.moveaxis(tensor, axis, 0) for tensor in tensors])[:items]
