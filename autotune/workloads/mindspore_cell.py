"""MindSpore: a user's `path.py:factory` that returns an `nn.Cell`.

The runtime makes tensors of its own from host memory, so that a call's copy is the making of them:
one per input. On the CPU an instance's kernels share the threads of its cores.
"""

from __future__ import annotations

import importlib.util
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from autotune.core.errors import UnavailableError, UsageError
from autotune.core.records import Config, InputSpec, WorkloadSpec
from autotune.devices.base import Staging
from autotune.devices.host_staging import Bound, HostStaging
from autotune.devices.staging import parts_of
from autotune.workloads import user_code
from autotune.workloads.base import Context, Program
from autotune.workloads.calling import caller
from autotune.workloads.data import DTYPES
from autotune.workloads.lengths import with_lengths

DEVICES = {"cpu": "CPU", "npu": "Ascend"}
"""What MindSpore calls the kinds of devices."""

MODES = ("graph", "pynative")


# --- in the parent, without a framework --------------------------------------------------------


def check(spec: WorkloadSpec) -> None:
    """Find mistakes early; imports neither MindSpore nor the user's file.

    Raises:
        UsageError: The model is no factory, or its precision or inputs cannot be.
        UnavailableError: MindSpore is missing.
    """
    factory = user_code.FactoryPath.parse(spec.model, spec.base_dir)
    if factory is None:
        raise UsageError(
            f"workload.runtime: mindspore runs what a factory (path.py:function) returns, not "
            f"{spec.model}"
        )
    if spec.precision != "float32":
        raise UsageError(
            f"workload.precision: mindspore runs a cell in the precision its factory gives it; "
            f"leave {spec.precision} out"
        )
    for item in spec.inputs:
        if item.dtype not in DTYPES or item.dtype == "bfloat16":
            raise UsageError(f"workload.inputs: {item.name}: {item.dtype} cannot be fed")
    user_code.check(factory)
    if importlib.util.find_spec("mindspore") is None:
        raise UnavailableError(
            "workload.runtime: mindspore is not installed; "
            "install it with: pip install 'autotune-npu[mindspore]'"
        )


def preload(spec: WorkloadSpec) -> tuple[str, ...]:
    """Modules that a zygote imports."""
    return ("mindspore",)


# --- in the child ------------------------------------------------------------------------------


def program(context: Context) -> Program:
    """Build the cell on the instance's device, ready for inference.

    Raises:
        UsageError: The factory, its result or its inputs are wrong; MindSpore has no such device.
    """
    import mindspore as ms

    spec, config = context.workload, context.config
    kind, _, index = context.framework_device.partition(":")
    if kind not in DEVICES:
        raise UsageError(f"workload.runtime: mindspore has no device {kind}")
    ms.set_device(DEVICES[kind], int(index or 0))
    mode = str(config.get("mindspore.mode", MODES[0]))
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    threads = len(os.sched_getaffinity(0))
    ms.runtime.dispatch_threads_num(threads)
    _seed_everything(ms, context.seed)
    cell, inputs = _built(ms, spec, config)
    call = caller(cell, [item.name for item in inputs], spec.call)
    return Program(
        inputs=inputs,
        run=lambda tensors: call(*tensors),
        stage=_stage(ms),
        wait=ms.runtime.synchronize,
        outputs=lambda output: list(_arrays(ms, output)),
        takes_part_batches=mode == "pynative",  # a graph is compiled for one shape
        thread_count=threads,
        precision=_precision(cell) or "float32",
        versions={"mindspore": str(ms.__version__)},
    )


def _built(ms: Any, spec: WorkloadSpec, config: Config) -> tuple[Any, tuple[InputSpec, ...]]:
    factory = user_code.FactoryPath.parse(spec.model, spec.base_dir)
    assert factory is not None, "checked before"
    made = user_code.call(user_code.load(factory), str(factory), spec.options, config)
    cell, declared = user_code.split(made)
    if not callable(cell):
        raise user_code.no_model(cell, str(factory))
    inputs = spec.inputs or user_code.input_specs(declared, str(factory))
    if not inputs:
        raise UsageError(
            "workload.inputs: the inputs of a cell are not inferred; give them, such as "
            "inputs: [{name: x, shape: [batch, 16]}]"
        )
    if isinstance(cell, ms.nn.Cell):
        cell.set_train(False)
    return cell, with_lengths(inputs, spec.lengths)


def _precision(cell: Any) -> str:
    """The type of most of a cell's numbers, empty if it has none."""
    counts: Counter[str] = Counter()
    for parameter in getattr(cell, "get_parameters", tuple)():
        counts[str(parameter.dtype).lower()] += parameter.size
    return counts.most_common(1)[0][0] if counts else ""


def _seed_everything(ms: Any, seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    ms.set_seed(seed % 2**31)


def _stage(ms: Any) -> Callable[..., Staging]:
    """Copies into host memory that the runtime's tensors are views of."""

    def stage(
        inputs: Sequence[InputSpec], requests: Sequence[Sequence[Any]], config: Config
    ) -> Staging:
        return HostStaging(inputs, requests, config, bind=bind)

    def bind(tensors: Sequence[Bound]) -> Any:
        return [ms.Tensor.from_numpy(tensor.array) for tensor in tensors]

    return stage


def _arrays(ms: Any, output: Any) -> Iterator[Any]:
    if isinstance(output, ms.Tensor):
        yield output.asnumpy()
    else:
        for part in parts_of(output):
            yield from _arrays(ms, part)
