"""The exporting process: a torch model to ONNX with a dynamic batch, checked against itself."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autotune.core.codec import from_json_dict, to_json_dict
from autotune.core.errors import AutotuneError, UsageError
from autotune.core.records import Config, InputSpec
from autotune.devices.staging import tensors_of
from autotune.workloads.calling import way
from autotune.workloads.data import make_requests
from autotune.workloads.exported import INPUTS_NAME, MODEL_NAME, Declared, Request
from autotune.workloads.torch_module import Built, build

EXAMPLE_BATCH = 2  # one item would let the exporter take the batch for a constant
CHECKED_BATCHES = (3, 5)
MAX_DIFFERENCE = {"float32": 1e-3, "float16": 2e-2}
"""Between the outputs, relative to the largest value of the tensor (or to 1 if that is less)."""


def main() -> int:
    """Read a request from standard input; 0, or the reason as the last line of standard error."""
    request = from_json_dict(Request, json.load(sys.stdin))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            export(request)
    except AutotuneError as error:
        sys.stderr.write(f"\n{str(error).splitlines()[0]}\n")
        return 1
    except Exception as error:  # the exporter's errors have pages; their first line says most
        words = next(iter(str(error).strip().splitlines()), "")
        sys.stderr.write(f"\n{type(error).__name__}: {words}\n")
        return 1
    return 0


def export(request: Request) -> None:
    """Write the model and its inputs, or the inputs alone, into the request's directory.

    Raises:
        UsageError: It computes something else than the original for other batch sizes.
    """
    spec, target = request.workload, Path(request.directory)
    built = build(spec, seed=request.seed, config=Config(), device="cpu")
    names = [item.name for item in built.inputs]
    declared = Declared(inputs=built.inputs, call=way(built.model, names, spec.call))
    text = json.dumps(to_json_dict(declared))
    if request.inputs_only:
        (target / INPUTS_NAME).write_text(text, encoding="utf-8")
        return
    write_onnx(built, target / MODEL_NAME)
    _compare(built, target / MODEL_NAME, spec.precision, request.seed)
    (target / INPUTS_NAME).write_text(text, encoding="utf-8")  # last: it says all is there


def write_onnx(built: Built, path: Path) -> None:
    """Export a module whose inputs have a dynamic batch; constants stay inside the file."""
    import torch

    model, inputs = built.model, built.inputs
    if not isinstance(model, torch.nn.Module):
        raise UsageError("only an nn.Module can be exported, not a function")
    batch = torch.export.Dim("batch")
    longest = max((i.lengths.longest for i in inputs if i.lengths), default=2)
    length = torch.export.Dim("length", max=longest)  # models have a limit of their own
    shapes = tuple(
        {
            axis: size
            for axis, size in ((item.batch_axis, batch), (item.length_axis, length))
            if axis is not None
        }
        for item in inputs
    )
    tensors = _tensors(inputs, EXAMPLE_BATCH, 0)
    with torch.no_grad():
        traced = torch.export.export(_together(built), (tensors,), dynamic_shapes=(shapes,))
        made = torch.onnx.export(
            traced, dynamo=True, input_names=[item.name for item in inputs], verbose=False
        )
    # Weights of 2 GiB and more do not fit into one protocol buffer; they go beside it then.
    made.save(str(path), external_data=_weights_bytes(model) > 2**31 - 2**20)


def _together(built: Built) -> Any:
    """The model as a module of one tuple of inputs and one list of outputs.

    However its own signature is: `*ids`, and dictionaries or classes of outputs.
    """
    import torch

    class Together(torch.nn.Module):  # type: ignore[misc]  # torch is not checked
        def __init__(self) -> None:
            super().__init__()
            self.model = built.model  # its weights are found by this

        def forward(self, tensors: tuple[Any, ...]) -> list[Any]:
            return list(tensors_of(built.call(*tensors)))

    return Together()


def _weights_bytes(model: Any) -> int:
    return sum(p.numel() * p.element_size() for p in (*model.parameters(), *model.buffers()))


def _tensors(inputs: Sequence[InputSpec], batch_size: int, seed: int) -> tuple[Any, ...]:
    import torch

    (request,) = make_requests(inputs, batch_size, 1, seed)
    return tuple(
        torch.as_tensor(array).to(getattr(torch, item.dtype))
        for array, item in zip(request, inputs, strict=True)
    )


def _compare(built: Built, path: Path, precision: str, seed: int) -> None:
    """Raise UsageError if the file computes something else, at batches it was not made with."""
    import onnxruntime
    import torch

    inputs = built.inputs
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for batch_size in CHECKED_BATCHES:
        tensors = _tensors(inputs, batch_size, seed)
        with torch.no_grad():
            wanted = [tensor.float().numpy() for tensor in tensors_of(built.call(*tensors))]
        feeds = {item.name: tensor.numpy() for item, tensor in zip(inputs, tensors, strict=True)}
        known = {item.name for item in session.get_inputs()}
        found = session.run(None, {k: v for k, v in feeds.items() if k in known})
        if len(found) != len(wanted):
            raise UsageError(f"the export has {len(found)} outputs, the model {len(wanted)}")
        for index, (one, other) in enumerate(zip(wanted, found, strict=True)):
            difference = _difference(one, np.asarray(other, dtype=np.float32))
            if not difference <= MAX_DIFFERENCE[precision]:
                raise UsageError(
                    f"the export computes something else: output {index} at batch {batch_size} "
                    f"differs by {difference:.2g} of its largest value"
                )


def _difference(one: Any, other: Any) -> float:
    if one.shape != other.shape:
        return float("inf")
    if one.size == 0:
        return 0.0
    return float(np.abs(one - other).max() / max(1.0, float(np.abs(one).max())))
