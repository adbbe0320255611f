"""Host-to-device copies of one instance, with nothing allocated per call: one per tensor, one of
a packed buffer, or one call for many tensors.

The producer of requests is taken to write straight into the host ring: per request and
micro-batch one flat buffer that holds every input tensor, each starting on a 64-byte boundary.
The device side has the same layout twice, in slots used in turn, so that the next copy need
not wait for the present compute.

A batch that is not full takes the first items of every tensor. Separate copies then move only
those; the packed copy still moves the whole buffer, as it is one copy of a fixed layout, and the
model gets views of the items that count. One call for many tensors moves contiguous memory only:
of an input whose batch axis is not the first it moves the whole tensor.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from autotune.core.errors import UsageError
from autotune.core.records import Config, InputSpec

if TYPE_CHECKING:
    import torch

ALIGN_BYTES = 64  # a cache line, and the widest vector load
SLOT_COUNT = 2
MAX_FOREACH = 4096
"""Tensors of one `_foreach_copy_`: the most that a batch copy of the Ascend runtime takes."""

CopyMethod = Literal["separate", "packed", "foreach"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where one input tensor lies in a flat buffer."""

    start: int
    end: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        """The tensor inside `flat`, a buffer of bytes."""
        return flat[self.start : self.end].view(self.dtype).view(self.shape)


def layout(inputs: Sequence[InputSpec], item_count: int) -> tuple[tuple[Placement, ...], int]:
    """Place all inputs of a micro-batch of `item_count` items in one flat buffer.

    Returns:
        A placement per input, and the size of the buffer in bytes.
    """
    import torch

    placements, end = [], 0
    for spec in inputs:
        dtype: torch.dtype = getattr(torch, spec.dtype)
        shape = spec.sizes(item_count)
        start = -(-end // ALIGN_BYTES) * ALIGN_BYTES
        end = start + math.prod(shape) * dtype.itemsize
        placements.append(Placement(start=start, end=end, shape=shape, dtype=dtype))
    return tuple(placements), end


class TorchStaging:
    """A ring of host requests and the device tensors they are copied into.

    Attributes:
        copies_per_call: Copy operations for all micro-batches of one call.
        method: "separate" (one copy per tensor), "packed" (one flat copy) or "foreach" (one call
            for all tensors of a type).
    """

    def __init__(
        self,
        inputs: Sequence[InputSpec],
        requests: Sequence[Sequence[Any]],
        config: Config,
        *,
        device: str,
        method: CopyMethod | None = None,
        pinned: bool = False,
    ) -> None:
        """Fill the host ring and set up the device tensors.

        Args:
            requests: Per request one numpy array per input, of whole batches.
            device: What torch calls the device.
            method: None: packed copies if the configuration wants batched ones.
            pinned: Keep the ring in page-locked memory, from which copies return before they
                are done.
        Raises:
            UsageError: The batch does not divide into the micro-batches.
        """
        check_divides(config)
        self._inputs = tuple(inputs)
        self._micro_batch_count = config.micro_batch_count
        self._pinned = pinned
        item_count = config.batch_size // config.micro_batch_count
        placements, size_bytes = layout(inputs, item_count)
        chunks = [
            _packed(
                slices(inputs, request, part, item_count), placements, size_bytes, pinned=pinned
            )
            for request in requests
            for part in range(config.micro_batch_count)
        ]
        slots = [_buffer(size_bytes, device) for _ in range(SLOT_COUNT)]
        self._tensors = [tuple(p.view(slot) for p in placements) for slot in slots]
        self._item_count = item_count
        self._parts: dict[tuple[int, int], tuple[torch.Tensor, ...]] = {}
        chosen: CopyMethod = method or ("packed" if config.batched_h2d else "separate")
        self.method: str = chosen
        self._copies_whole = chosen == "packed"
        if self._copies_whole:
            self._sources = [(chunk,) for chunk in chunks]
            self._targets = [(slot,) for slot in slots]
        else:
            self._sources = [tuple(p.view(chunk) for p in placements) for chunk in chunks]
            self._targets = self._tensors
        self._groups = _foreach_groups(placements) if chosen == "foreach" else ()
        if self._groups:
            _check_foreach(self._targets[0], self._sources[0], pinned=pinned)
        self.copies_per_call = config.micro_batch_count * (
            len(self._groups) or len(self._targets[0])
        )

    def load(self, call: int, micro_batch: int, items: int | None = None) -> Sequence[torch.Tensor]:
        """Copy one micro-batch of request `call` (modulo the ring) into the next slot.

        Args:
            items: Only this many of its items, the first ones; None: all.
        Returns:
            The input tensors in the order of the specs, overwritten two loads later.
        """
        number = call * self._micro_batch_count + micro_batch
        slot = number % SLOT_COUNT
        sources = self._sources[number % len(self._sources)]
        tensors, targets = self._tensors[slot], self._targets[slot]
        if items is not None and items < self._item_count:
            tensors = self._part(slot, tensors, items)
            if not self._copies_whole:
                targets, sources = self._moved(targets, items), self._moved(sources, items)
        self._copy(targets, sources)
        return tensors

    def _copy(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        non_blocking = self._pinned
        if self._groups:
            import torch

            for group in self._groups:
                torch._foreach_copy_(
                    [targets[i] for i in group],
                    [sources[i] for i in group],
                    non_blocking=non_blocking,
                )
            return
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source, non_blocking=non_blocking)

    def _moved(self, tensors: Sequence[torch.Tensor], items: int) -> tuple[torch.Tensor, ...]:
        """What is copied for the first items: contiguous memory, if one call copies many."""
        parts = self._first_items(tensors, items)
        if not self._groups:
            return parts
        return tuple(
            part if part.is_contiguous() else tensor
            for part, tensor in zip(parts, tensors, strict=True)
        )

    def _part(
        self, slot: int, tensors: tuple[torch.Tensor, ...], items: int
    ) -> tuple[torch.Tensor, ...]:
        """Views of a slot's first items, made once per size: 28 views take some 30 us."""
        if (slot, items) not in self._parts:
            self._parts[slot, items] = self._first_items(tensors, items)
        return self._parts[slot, items]

    def _first_items(self, tensors: Sequence[torch.Tensor], items: int) -> tuple[torch.Tensor, ...]:
        return tuple(
            tensor if spec.batch_axis is None else tensor.narrow(spec.batch_axis, 0, items)
            for tensor, spec in zip(tensors, self._inputs, strict=True)
        )


def check_divides(config: Config) -> None:
    """Raise UsageError if the batch is not a whole number of micro-batches."""
    if config.batch_size % config.micro_batch_count:
        raise UsageError(
            f"batch_size={config.batch_size} does not divide into "
            f"micro_batch_count={config.micro_batch_count} equal parts"
        )


def slices(
    inputs: Sequence[InputSpec], request: Sequence[Any], part: int, item_count: int
) -> list[Any]:
    """One micro-batch of a request; an input without a batch axis goes whole into each."""
    parts = []
    for spec, array in zip(inputs, request, strict=True):
        items: list[Any] = [slice(None)] * array.ndim
        if spec.batch_axis is not None:
            items[spec.batch_axis] = slice(part * item_count, (part + 1) * item_count)
        parts.append(array[tuple(items)])
    return parts


def _foreach_groups(placements: Sequence[Placement]) -> tuple[tuple[int, ...], ...]:
    """Indices of inputs that one `_foreach_copy_` may copy: of one type, at most `MAX_FOREACH`.

    Mixed types in one call are copied as raw bytes, or fail, on an NPU.
    """
    by_type: dict[torch.dtype, list[int]] = {}
    for index, placement in enumerate(placements):
        by_type.setdefault(placement.dtype, []).append(index)
    return tuple(
        tuple(indices[start : start + MAX_FOREACH])
        for indices in by_type.values()
        for start in range(0, len(indices), MAX_FOREACH)
    )


def _check_foreach(
    targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], *, pinned: bool
) -> None:
    """Refuse what one call for many tensors would copy slowly or wrongly without a word."""
    for target, source in zip(targets, sources, strict=True):
        if target.dtype != source.dtype or target.shape != source.shape:
            raise AssertionError(f"a batched copy of {source.dtype} to {target.dtype}")
        if not (target.is_contiguous() and source.is_contiguous()):
            raise AssertionError("a batched copy of memory that is not contiguous")
        if pinned and source.numel() and not source.is_pinned():
            raise AssertionError("a batched copy of memory that is not page-locked")


def tensors_of(output: Any) -> Iterator[torch.Tensor]:
    """The tensors of an output in any nesting, in order."""
    import torch

    if isinstance(output, torch.Tensor):
        yield output
    else:
        for part in parts_of(output):
            yield from tensors_of(part)


def parts_of(output: Any) -> Iterable[Any]:
    """What a container of outputs holds, in order: a mapping, a sequence, an object of a dataclass.

    Anything else holds nothing.
    """
    if isinstance(output, Mapping):
        return output.values()
    if isinstance(output, (list, tuple)):
        return output
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return [getattr(output, field.name, None) for field in dataclasses.fields(output)]
    return ()


def _packed(
    arrays: Sequence[Any], placements: Sequence[Placement], size_bytes: int, *, pinned: bool
) -> torch.Tensor:
    """A host buffer with the arrays in their places, converted to the inputs' types."""
    import torch

    flat = _buffer(size_bytes, "cpu")
    if pinned:
        flat = flat.pin_memory()
    for array, placement in zip(arrays, placements, strict=True):
        placement.view(flat).copy_(torch.as_tensor(array))
    return flat


def _buffer(size_bytes: int, device: str) -> torch.Tensor:
    import torch

    return torch.zeros(size_bytes, dtype=torch.uint8, device=device)
