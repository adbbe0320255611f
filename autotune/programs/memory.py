"""How requests lie in memory: every input of a micro-batch in one flat buffer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

ALIGN_BYTES = 64

Array = np.ndarray[Any, Any]
Settings = dict[str, Any]


@dataclass(frozen=True)
class Field:
    """One input of a micro-batch: where it lies in the flat buffer that holds them all."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    axis: int | None
    start: int

    @property
    def numpy_type(self) -> np.dtype[Any]:
        """numpy has no bfloat16: its bits are kept as whole numbers."""
        return np.dtype("uint16" if self.dtype == "bfloat16" else self.dtype)

    @property
    def end(self) -> int:
        """Where the input ends in the buffer."""
        return self.start + math.prod(self.shape) * self.numpy_type.itemsize

    def part(self, array: Array, start: int, end: int) -> Array:
        """Some items of the input, as a view."""
        if self.axis is None:
            return array
        return array[(slice(None),) * self.axis + (slice(start, end),)]


@dataclass(frozen=True)
class Layout:
    """All inputs of a micro-batch in one flat buffer of `size` bytes, for `items` items."""

    fields: tuple[Field, ...]
    items: int
    size: int

    @classmethod
    def of(cls, settings: Settings) -> Layout:
        """The layout of a configuration's micro-batches."""
        items = settings["batch_size"] // settings["micro_batch_count"]
        fields: list[Field] = []
        for spec in settings["inputs"]:
            start = -(-fields[-1].end // ALIGN_BYTES) * ALIGN_BYTES if fields else 0
            shape = tuple(items if size == "batch" else size for size in spec["shape"])
            axis = spec["shape"].index("batch") if "batch" in spec["shape"] else None
            fields.append(Field(spec["name"], shape, spec["dtype"], axis, start))
        return cls(tuple(fields), items, fields[-1].end)

    def views(self, flat: Array) -> list[Array]:
        """The inputs inside a buffer of bytes."""
        return [flat[f.start : f.end].view(f.numpy_type).reshape(f.shape) for f in self.fields]

    def chunks(self, flat: Array, count: int) -> list[Array]:
        """Buffers of `count` micro-batches, one after the other in `flat`."""
        stride = -(-self.size // ALIGN_BYTES) * ALIGN_BYTES
        return [flat[i * stride : i * stride + self.size] for i in range(count)]

    def bytes_for(self, count: int) -> int:
        """Size of what `chunks` needs."""
        return count * (-(-self.size // ALIGN_BYTES) * ALIGN_BYTES)


def aligned(size: int) -> Array:
    """Zeros that start on a 64-byte boundary, as bytes."""
    raw = np.zeros(size + ALIGN_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGN_BYTES
    return raw[start : start + size]


def as_type(array: Array, field: Field) -> Array:
    """The array as the model takes it; floats become bfloat16 by rounding to nearest even.

    Raises:
        ValueError: It holds no numbers, or some that are none of a whole type.
    """
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{field.name} holds no numbers")
    if field.dtype != "bfloat16":
        with np.errstate(invalid="ignore", over="ignore"):
            cast = array.astype(field.numpy_type, copy=False)
        if cast.dtype.kind != "f" and not (cast is array or np.array_equal(cast, array)):
            raise ValueError(f"{field.name} holds values that are none of {field.dtype}")
        return cast
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class HostCopies:
    """The memory that a model on the CPU reads, in slots used in turn, and the copies into it.

    Args:
        packed: One copy of the whole buffer instead of one per input.
    """

    def __init__(self, layout: Layout, slot_count: int, packed: bool) -> None:
        self._layout, self._packed = layout, packed
        self._flat = [aligned(layout.size) for _ in range(slot_count)]
        self.views = [layout.views(flat) for flat in self._flat]

    def adopt(self, chunks: Sequence[Array], *, changes: bool) -> list[tuple[Array, list[Array]]]:
        """Buffers with the views into them, made once."""
        return [(chunk, self._layout.views(chunk)) for chunk in chunks]

    def load(self, slot: int, source: tuple[Array, list[Array]], items: int) -> None:
        """Copy a micro-batch into a slot."""
        if self._packed:
            np.copyto(self._flat[slot], source[0])
        elif items == self._layout.items:
            for target, array in zip(self.views[slot], source[1], strict=True):
                np.copyto(target, array)
        else:
            pairs = zip(self.first(slot, items), source[1], self._layout.fields, strict=True)
            for target, array, field in pairs:
                np.copyto(target, field.part(array, 0, items))

    def first(self, slot: int, items: int) -> list[Array]:
        """The first items of a slot's inputs, as views."""
        fields = self._layout.fields
        return [f.part(v, 0, items) for f, v in zip(fields, self.views[slot], strict=True)]
