"""A model's output, item by item, as a few figures each: what configurations are compared by."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autotune.core.errors import UsageError
from autotune.core.records import Floats
from autotune.devices.staging import parts_of

ELEMENTS = 6  # spread over an item's part of a tensor
MAX_TENSORS = 8
CHUNK_ELEMENTS = 1 << 20  # worked on at a time: an output may be larger than what is left of memory


class TensorFigures(NamedTuple):
    """One output tensor.

    Attributes:
        figures: Per item its mean, its mean absolute value and a few elements, shape
            (items, figures); None if no axis of the tensor counts the items.
    """

    figures: Floats | None
    shape: tuple[int, ...]
    is_discrete: bool


def figures_of(output: Any, items: int, batch_axis: int | None) -> tuple[TensorFigures, ...]:
    """Figures of an output in any nesting, in the order of its tensors, the first `MAX_TENSORS`.

    Args:
        items: How many the model was given.
        batch_axis: The axis that counts items in the model's inputs, tried first.
    """
    found: list[TensorFigures] = []
    for array in arrays_of(output):
        axis = item_axis(array.shape, items, batch_axis)
        figures = None
        if axis is not None and array.size:
            figures = _by_item(np.moveaxis(array, axis, 0))
        found.append(TensorFigures(figures, array.shape, array.dtype.kind in "biu"))
        if len(found) == MAX_TENSORS:
            break
    return tuple(found)


def item_axis(shape: tuple[int, ...], items: int, batch_axis: int | None) -> int | None:
    """The axis of an output that counts its items, None if there is none."""
    if batch_axis is not None and batch_axis < len(shape) and shape[batch_axis] == items:
        return batch_axis
    return next((axis for axis, size in enumerate(shape) if size == items), None)


def _by_item(array: npt.NDArray[Any]) -> Floats:
    elements = math.prod(array.shape[1:])
    step = max(1, elements // ELEMENTS)
    rows = max(1, CHUNK_ELEMENTS // elements)
    parts = []
    for first in range(0, len(array), rows):
        flat = array[first : first + rows].reshape(-1, elements).astype(np.float64)
        means = flat.mean(axis=1, keepdims=True)
        sizes = np.abs(flat).mean(axis=1, keepdims=True)
        parts.append(np.hstack([means, sizes, flat[:, ::step][:, :ELEMENTS]]))
    return np.concatenate(parts)


def arrays_of(output: Any) -> Iterator[npt.NDArray[Any]]:
    """The arrays of an output; what is neither array nor tensor does not count."""
    if isinstance(output, np.ndarray):
        yield from _plain(output)
    elif hasattr(output, "detach"):  # a tensor of torch, which need not be imported here
        yield from _from_tensor(output)
    else:
        for part in parts_of(output):
            yield from arrays_of(part)


def check_computed(output: Any) -> None:
    """Refuse an output that is only promised: its work would be measured by nobody.

    Raises:
        UsageError: It is a generator, another iterator, or a coroutine.
    """
    if isinstance(output, (Iterator, Awaitable, AsyncIterator)):
        raise UsageError(
            f"workload.model: the model returns a {type(output).__name__}, which computes nothing "
            "until it is read; return the tensors themselves"
        )
    for part in parts_of(output):
        check_computed(part)


def _from_tensor(tensor: Any) -> Iterator[npt.NDArray[Any]]:
    if tensor.is_nested or str(tensor.layout) != "torch.strided":
        return  # sparse ones and the like have no array
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    tensor = tensor.detach().cpu()
    if tensor.is_complex():
        tensor = tensor.resolve_conj().resolve_neg()
    # numpy has no bfloat16.
    yield from _plain((tensor.float() if tensor.is_floating_point() else tensor).numpy())


def _plain(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """An array of numbers; complex ones as pairs of real ones."""
    if array.dtype.kind == "c":
        yield np.stack([array.real, array.imag], axis=-1)
    elif array.dtype.kind in "biuf":
        yield array
