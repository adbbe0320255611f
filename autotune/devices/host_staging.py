"""Copies between plain host buffers with numpy alone, for runtimes that bind to addresses.

The same layout and the same two ways of copying as `staging.TorchStaging`: every tensor of a
micro-batch on a 64-byte boundary of one flat buffer; copied one by one, or as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.core.records import Config, InputSpec
from autotune.devices.staging import ALIGN_BYTES, SLOT_COUNT, check_divides, slices

Bytes = npt.NDArray[np.uint8]
Arrays = tuple[npt.NDArray[Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A tensor that stays where it is.

    Attributes:
        address: Of its first element, on whichever device it is.
        array: The same on the host, or its counterpart there.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    address: int
    array: npt.NDArray[Any]


class HostStaging:
    """A ring of host requests and the host tensors they are copied into.

    Attributes:
        copies_per_call: Copy operations for all micro-batches of one call.
        method: "separate" (one copy per tensor) or "packed" (one flat copy).
    """

    def __init__(
        self,
        inputs: Sequence[InputSpec],
        requests: Sequence[Sequence[Any]],
        config: Config,
        *,
        bind: Callable[[Sequence[Bound]], Any],
        slot_count: int = SLOT_COUNT,
    ) -> None:
        """Fill the host ring and set up the tensors.

        Args:
            requests: Per request one numpy array per input, of whole batches.
            bind: Gets the tensors of a slot, once for every slot and number of items; what it
                returns is what `run` gets instead of tensors.
            slot_count: Micro-batches that may be in use at a time, the one being copied included.
        Raises:
            UsageError: The batch does not divide into the micro-batches.
        """
        check_divides(config)
        self._inputs, self._bind = tuple(inputs), bind
        self._micro_batch_count = config.micro_batch_count
        self._item_count = config.batch_size // config.micro_batch_count
        arrays = [
            slices(inputs, request, part, self._item_count)
            for request in requests
            for part in range(config.micro_batch_count)
        ]
        size_bytes = _place(arrays[0])[1]
        chunks = [_buffer(size_bytes) for _ in arrays]
        slots = [_buffer(size_bytes) for _ in range(slot_count)]
        sources = [views(chunk, part) for chunk, part in zip(chunks, arrays, strict=True)]
        for source, part in zip(sources, arrays, strict=True):
            for target, array in zip(source, part, strict=True):
                target[...] = array
        self._tensors = [views(slot, arrays[0]) for slot in slots]
        self.method = "packed" if config.batched_h2d else "separate"
        self._sources: list[Arrays] = [(c,) for c in chunks] if config.batched_h2d else sources
        self._targets: list[Arrays] = [(s,) for s in slots] if config.batched_h2d else self._tensors
        self.copies_per_call = config.micro_batch_count * len(self._targets[0])
        self._bound: dict[tuple[int, int], tuple[Any]] = {}

    def load(self, call: int, micro_batch: int, items: int | None = None) -> Sequence[Any]:
        """Copy one micro-batch of request `call` (modulo the ring) into the next slot.

        Args:
            items: Only this many of its items, the first ones; None: all.
        Returns:
            What `bind` made of the slot, as the only argument of `run`.
        """
        number = call * self._micro_batch_count + micro_batch
        slot = number % len(self._tensors)
        count = self._item_count if items is None else items
        self._copy(slot, self._sources[number % len(self._sources)], count)
        bound = self._bound.get((slot, count))
        if bound is None:
            bound = self._bound[slot, count] = (self._bind(self._bound_tensors(slot, count)),)
        return bound

    def _copy(self, slot: int, sources: Arrays, items: int) -> None:
        targets = self._targets[slot]
        if items < self._item_count and self.method == "separate":
            sources, targets = self._first(sources, items), self._first(targets, items)
        for target, source in zip(targets, sources, strict=True):
            np.copyto(target, source)

    def _bound_tensors(self, slot: int, items: int) -> list[Bound]:
        tensors = self._first(self._tensors[slot], items)
        return [
            Bound(shape=t.shape, dtype=t.dtype, address=t.ctypes.data, array=t) for t in tensors
        ]

    def _first(self, tensors: Arrays, items: int) -> Arrays:
        """The first items of tensors, as views."""
        if items == self._item_count:
            return tensors
        return tuple(
            tensor
            if spec.batch_axis is None
            else tensor[(slice(None),) * spec.batch_axis + (slice(items),)]
            for tensor, spec in zip(tensors, self._inputs, strict=True)
        )


def _place(arrays: Sequence[npt.NDArray[Any]]) -> tuple[list[int], int]:
    """Where each array starts in a flat buffer, and the buffer's size, bytes."""
    starts, end = [], 0
    for array in arrays:
        starts.append(-(-end // ALIGN_BYTES) * ALIGN_BYTES)
        end = starts[-1] + array.nbytes
    return starts, end


def views(flat: Bytes, like: Sequence[npt.NDArray[Any]]) -> Arrays:
    """The tensors inside `flat`, a buffer of bytes, with the shapes and types of `like`."""
    return tuple(
        flat[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        for start, array in zip(_place(like)[0], like, strict=True)
    )


def _buffer(size_bytes: int) -> Bytes:
    """Zeros that start on a 64-byte boundary."""
    raw = np.zeros(size_bytes + ALIGN_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGN_BYTES
    return raw[start : start + size_bytes]
