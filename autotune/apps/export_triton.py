"""A recommendation as a model of a Triton model repository."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from autotune.apps.export import Subject, copied, evidence_lines, onnx_model
from autotune.apps.store import write_whole
from autotune.core.errors import UsageError
from autotune.core.records import InputSpec
from autotune.core.text import clean
from autotune.results.triton import Tensor, triton_config
from autotune.workloads.exported import MODEL_NAME
from autotune.workloads.model_file import GraphInput
from autotune.workloads.onnx_file import read_onnx


def triton(subject: Subject) -> tuple[Path, ...]:
    """`NAME/config.pbtxt` and `NAME/1/model.onnx`, a repository's part of its own.

    Raises:
        UsageError: Triton's ONNX Runtime backend cannot run it.
    """
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", subject.space.study)
    device = subject.device.partition(":")
    if device[0] not in ("auto", "cpu", "cuda"):
        raise UsageError(f"Triton's ONNX Runtime backend does not run on {subject.device}")
    model, written = onnx_model(subject, f"{name}/1/{MODEL_NAME}")
    if not written:  # a file of the user's
        target = subject.directory / name / "1"
        names = read_onnx(model.path).external
        written = (
            copied(model.path, target / MODEL_NAME),
            *(copied(model.path.parent / other, target / other) for other in names),
        )
    file = read_onnx(written[0])
    inputs = [_input(item) for item in model.inputs]
    text = triton_config(
        name,
        subject.config,
        inputs,
        [_output(item, inputs) for item in file.outputs],
        cores=subject.cores,
        gpu=int(device[2] or 0) if device[0] == "cuda" else None,
        comments=map(clean, evidence_lines(subject)),
    )
    path = subject.directory / name / "config.pbtxt"
    write_whole(path, text.encode())
    return (path, *written)


def _input(spec: InputSpec) -> Tensor:
    dims = tuple(-1 if isinstance(size, str) else size for size in spec.shape)
    return Tensor(name=spec.name, dtype=spec.dtype, dims=dims, batch_axis=spec.batch_axis)


def _output(item: GraphInput, inputs: Sequence[Tensor]) -> Tensor:
    """An output counts items in front if it is dynamic there, as the inputs are.

    Raises:
        UsageError: The file does not say how many axes it has.
    """
    if item.dims is None:
        raise UsageError(f"the model does not say how many axes its output {item.name} has")
    dims = tuple(dim if isinstance(dim, int) else -1 for dim in item.dims)
    is_first = bool(dims) and dims[0] == -1 and all(t.batch_axis == 0 for t in inputs)
    return Tensor(name=item.name, dtype=item.dtype, dims=dims, batch_axis=0 if is_first else None)
