"""What an ONNX file says of its inputs, read from its bytes: no framework, no weights loaded.

An ONNX file is one protocol buffer. Only the fields that are needed are followed and everything
else is skipped, so that a file of gigabytes is read in milliseconds. Field numbers are those of
`onnx.proto`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from autotune.core.errors import UsageError
from autotune.workloads.model_file import Dim, GraphInput, ModelFile, complete

MAX_FIELDS = 5_000_000
MAX_INPUTS = 10_000
MAX_TEXT_BYTES = 4096
MAX_VARINT_BYTES = 10

TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    8: "string", 9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64",
    14: "complex64", 15: "complex128", 16: "bfloat16", 17: "float8e4m3fn", 18: "float8e4m3fnuz",
    19: "float8e5m2", 20: "float8e5m2fnuz", 21: "uint4", 22: "int4", 23: "float4e2m1",
    24: "float8e8m0", 25: "uint2", 26: "int2",
}  # fmt: skip
"""Names of `TensorProto.DataType`."""

_NO_WEIGHTS = {"string", "bool", "int32", "int64", "uint32", "uint64"}
"""Types of constants that are no weights: shapes, axes, indices."""

_MODEL_GRAPH = 7
_GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT = 5, 11, 12
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_onnx(path: Path) -> ModelFile:
    """Read the inputs of a model.

    Raises:
        UsageError: The file cannot be read, is no ONNX model, or lacks its external weights.
    """
    try:
        with path.open("rb") as stream:
            found = _Reader(stream).model(path)
    except OSError as error:
        raise UsageError(f"workload.model: {path} cannot be read ({error.strerror})") from None
    except _MalformedError as error:
        raise UsageError(f"workload.model: {path} is not an ONNX model ({error})") from None
    return complete(found)


class _MalformedError(ValueError):
    """These bytes are no ONNX model."""


Field = tuple[int, int, int]
"""Number of a field, and where its content starts and ends; of a number, the value and -1."""


class _Reader:
    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._size = stream.seek(0, 2)
        self._fields_left = MAX_FIELDS
        self._weights: Counter[str] = Counter()
        self._initializers: set[str] = set()
        self._external: dict[str, None] = {}

    def model(self, path: Path) -> ModelFile:
        graphs = [f for f in self._fields(0, self._size) if f[0] == _MODEL_GRAPH and f[2] >= 0]
        if len(graphs) != 1:
            raise _MalformedError("it has no graph")
        places: list[Field] = []
        outputs: list[Field] = []
        for field in self._fields(*graphs[0][1:]):
            if field[0] == _GRAPH_INITIALIZER:
                self._initializer(field)
            elif field[0] == _GRAPH_INPUT:
                places.append(field)
            elif field[0] == _GRAPH_OUTPUT:
                outputs.append(field)
            if len(places) + len(outputs) > MAX_INPUTS:
                raise _MalformedError(f"more than {MAX_INPUTS} inputs and outputs")
        inputs = [self._input(place) for place in places]
        floats = (i.dtype for i in inputs if "float" in i.dtype)  # what a model of no weights has
        precision = next(
            (name for name, _ in self._weights.most_common(1)), next(floats, "float32")
        )
        return ModelFile(
            path=path,
            # Old exporters list every weight among the inputs.
            inputs=tuple(i for i in inputs if i.name not in self._initializers),
            precision=precision,
            external=tuple(self._external),
            outputs=tuple(map(self._input, outputs)),
        )

    def _initializer(self, field: Field) -> None:
        """TensorProto: dims = 1, data_type = 2, name = 8, external_data = 13."""
        count, dtype = 1, 0
        for number, start, end in self._fields(*field[1:]):
            if number == 1 and end < 0:
                count *= start
            elif number == 1:
                count *= math.prod(self._packed(start, end))
            elif number == 2:
                dtype = start
            elif number == 8:
                self._initializers.add(self._text(start, end))
            elif number == 13:
                key, value = self._pair(start, end)
                if key == "location":
                    self._external[value] = None
        name = TYPES.get(dtype, f"type {dtype}")
        if name not in _NO_WEIGHTS:
            self._weights[name] += count

    def _input(self, field: Field) -> GraphInput:
        """ValueInfoProto: name = 1, type = 2. TypeProto: tensor_type = 1."""
        name, dtype, dims = "", "unknown", None
        kinds = {4: "sequence", 5: "map", 8: "sparse tensor", 9: "optional"}
        for number, start, end in self._fields(*field[1:]):
            if number == 1:
                name = self._text(start, end)
            elif number == 2:
                for kind, inner_start, inner_end in self._fields(start, end):
                    if kind == 1:
                        dtype, dims = self._tensor_type(inner_start, inner_end)
                    else:
                        dtype = kinds.get(kind, dtype)
        return GraphInput(name=name, dtype=dtype, dims=dims)

    def _tensor_type(self, start: int, end: int) -> tuple[str, tuple[Dim, ...] | None]:
        """TypeProto.Tensor: elem_type = 1, shape = 2. TensorShapeProto: dim = 1."""
        dtype, dims = 0, None
        for number, inner_start, inner_end in self._fields(start, end):
            if number == 1:
                dtype = inner_start
            elif number == 2:
                dims = tuple(
                    self._dim(*place[1:])
                    for place in self._fields(inner_start, inner_end)
                    if place[0] == 1
                )
        return TYPES.get(dtype, f"type {dtype}"), dims

    def _dim(self, start: int, end: int) -> Dim:
        """TensorShapeProto.Dimension: dim_value = 1, dim_param = 2."""
        for number, inner_start, inner_end in self._fields(start, end):
            if number == 1 and inner_start < 2**62:
                return inner_start  # a negative size is a way to say unknown
            if number == 2:
                return self._text(inner_start, inner_end) or None
        return None

    def _pair(self, start: int, end: int) -> tuple[str, str]:
        """StringStringEntryProto: key = 1, value = 2."""
        fields = {f[0]: self._text(*f[1:]) for f in self._fields(start, end)}
        return fields.get(1, ""), fields.get(2, "")

    # --- the wire format -----------------------------------------------------------------------

    def _fields(self, start: int, end: int) -> Iterator[Field]:
        """The fields of the message at [start, end), their content not looked at."""
        at = start
        while at < end:
            self._fields_left -= 1
            if self._fields_left < 0:
                raise _MalformedError(f"more than {MAX_FIELDS} fields")
            key, at = self._varint(at, end)
            number, wire = key >> 3, key & 7
            if wire == _VARINT:
                value, at = self._varint(at, end)
                yield number, value, -1
            elif wire == _BYTES:
                length, at = self._varint(at, end)
                if at + length > end:
                    raise _MalformedError("it is cut short")
                yield number, at, at + length
                at += length
            elif wire in (_FIXED32, _FIXED64):
                at += 4 if wire == _FIXED32 else 8
            else:
                raise _MalformedError("it is no protocol buffer")

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """The number at `at`, and where it ends."""
        self._stream.seek(at)
        data = self._stream.read(min(MAX_VARINT_BYTES, max(0, end - at)))
        value = 0
        for index, byte in enumerate(data):
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value, at + index + 1
        raise _MalformedError("it is cut short" if len(data) < MAX_VARINT_BYTES else "a bad number")

    def _packed(self, start: int, end: int) -> Iterator[int]:
        while start < end:
            value, start = self._varint(start, end)
            yield value

    def _text(self, start: int, end: int) -> str:
        if end < 0 or end - start > MAX_TEXT_BYTES:
            raise _MalformedError("a name that is none")
        self._stream.seek(start)
        return self._stream.read(end - start).decode("utf-8", errors="replace")
