"""What an OpenVINO IR file says of its inputs, read from its XML: no framework, no weights loaded.

An IR is two files: `model.xml` lists the layers, and `model.bin` beside it holds their constants.
The graph's inputs are its layers of the type Parameter; those inside the body of a loop are not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from xml.etree import ElementTree

from autotune.core.errors import UsageError
from autotune.workloads.model_file import Dim, GraphInput, ModelFile, complete

FILE_BYTES_LIMIT = 512 * 2**20

TYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64",
    "i32": "int32", "i16": "int16", "i8": "int8", "u64": "uint64", "u32": "uint32",
    "u16": "uint16", "u8": "uint8", "boolean": "bool", "string": "string",
}  # fmt: skip
"""Names of element types."""

_COMMA = re.compile(r"(?<!\\),")  # between names; one inside a name stands behind a backslash


def read_ir(path: Path) -> ModelFile:
    """Read the inputs of a model. In which precision it runs is the runtime's to decide.

    Raises:
        UsageError: The file cannot be read, is no IR, or lacks its weights.
    """
    inputs: list[GraphInput] = []
    has_weights = False
    try:
        with path.open("rb") as stream:
            if stream.seek(0, 2) > FILE_BYTES_LIMIT:
                raise _MalformedError(f"larger than {FILE_BYTES_LIMIT} bytes")
            stream.seek(0)
            for layer in _layers(stream):
                if layer.get("type") == "Parameter":
                    inputs.append(_input(layer))
                has_weights = has_weights or layer.get("type") == "Const"
    except OSError as error:
        raise UsageError(f"workload.model: {path} cannot be read ({error.strerror})") from None
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        raise UsageError(f"workload.model: {path} is not an OpenVINO IR ({error})") from None
    weights = (path.with_suffix(".bin").name,) if has_weights else ()
    return complete(ModelFile(path=path, inputs=tuple(inputs), external=weights))


class _MalformedError(ValueError):
    """This is no IR."""


def _layers(stream: BinaryIO) -> Iterator[ElementTree.Element]:
    """The layers of the outermost graph; those of the bodies in it are dropped."""
    depth = 0
    root: ElementTree.Element | None = None
    for event, element in ElementTree.iterparse(stream, ("start", "end")):
        if root is None:
            root = element
            if root.tag != "net":
                raise _MalformedError(f"it begins with <{root.tag[:40]}>")
        if element.tag != "layer":
            continue
        depth += 1 if event == "start" else -1
        if event == "end":
            if depth == 0:
                yield element
            element.clear()
    if root is None or root.find("layers") is None:
        raise _MalformedError("it has no layers")


def _input(layer: ElementTree.Element) -> GraphInput:
    data, port = layer.find("data"), layer.find("output/port")
    if data is None:
        raise _MalformedError(f"the input {layer.get('name')} has no data")
    dtype = data.get("element_type", "")
    written = "" if port is None else port.get("names", "")
    first = _COMMA.split(written)[0].replace("\\,", ",")
    return GraphInput(
        name=first or layer.get("name", ""),
        dtype=TYPES.get(dtype, f"type {dtype}"),
        dims=_dims(data.get("shape", "")),
    )


def _dims(text: str) -> tuple[Dim, ...] | None:
    """Sizes as "?,3,224,224"; a range such as 1..8 is dynamic, "..." is any number of axes."""
    written = text.replace(" ", "")
    if written == "...":
        return None
    return tuple(int(size) if size.isdigit() else None for size in filter(None, written.split(",")))
