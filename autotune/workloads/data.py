"""Random requests for a model's inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.core.errors import UsageError
from autotune.core.records import InputSpec
from autotune.workloads.lengths import draw_lengths, lengths_of, padded

MIN_RING = 2  # a model must not be able to answer from the last call's values
MAX_RING = 8
MAX_LENGTHS_RING = 64
RING_BYTES = 64 * 2**20

_INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
_FLOATS = ("float16", "float32", "float64")
# numpy has no bfloat16: those values are drawn as float32, and staging rounds them.
_NUMPY_TYPES = {**{name: name for name in (*_INTEGERS, *_FLOATS, "bool")}, "bfloat16": "float32"}

DTYPES = tuple(_NUMPY_TYPES)
"""Names an input's dtype may have."""


def ring_size(inputs: Sequence[InputSpec], batch_size: int) -> int:
    """How many different requests to take turns with: 2 to 8, within about 64 MiB.

    Of items that differ in length up to 64, as a few batches do not stand for all lengths.
    """
    most = MAX_RING if lengths_of(inputs) is None else MAX_LENGTHS_RING
    request_bytes = sum(
        math.prod(spec.sizes(batch_size)) * np.dtype(numpy_type(spec)).itemsize for spec in inputs
    )
    return max(MIN_RING, min(most, RING_BYTES // max(1, request_bytes)))


def make_requests(
    inputs: Sequence[InputSpec], batch_size: int, ring: int, seed: int
) -> list[list[npt.NDArray[Any]]]:
    """Draw the requests of one instance.

    The items of a smaller batch are the first ones of a larger, so that the same item can be
    compared over batch sizes.

    Returns:
        `ring` requests, each with one array per input.
    Raises:
        UsageError: An input's dtype is not known.
    """
    requests = [
        [
            _draw(spec, batch_size, np.random.default_rng((seed, number, index)))
            for index, spec in enumerate(inputs)
        ]
        for number in range(ring)
    ]
    lengths = lengths_of(inputs)
    if lengths is None:
        return requests
    return [
        [
            padded(spec, array, draw_lengths(lengths, batch_size, seed, number))
            for spec, array in zip(inputs, request, strict=True)
        ]
        for number, request in enumerate(requests)
    ]


def _draw(spec: InputSpec, batch_size: int, rng: np.random.Generator) -> npt.NDArray[Any]:
    dtype = np.dtype(numpy_type(spec))
    shape, axis = spec.sizes(batch_size), spec.batch_axis
    if axis is not None:  # drawn item by item, then the batch is put where it belongs
        shape = (shape[axis], *shape[:axis], *shape[axis + 1 :])
    values = _values(spec, dtype, shape, rng)
    return values if axis is None else np.moveaxis(values, 0, axis)


def _values(
    spec: InputSpec, dtype: np.dtype[Any], shape: tuple[int, ...], rng: np.random.Generator
) -> npt.NDArray[Any]:
    if dtype.kind == "f":
        draw_type = np.float64 if dtype == np.float64 else np.float32
        if spec.low is None and spec.high is None:
            drawn = rng.standard_normal(shape, dtype=draw_type)
        else:
            low = 0.0 if spec.low is None else spec.low
            high = low + 1.0 if spec.high is None else spec.high
            drawn = rng.random(shape, dtype=draw_type) * (high - low) + low
        return np.asarray(drawn, dtype=dtype)
    low = 0 if spec.low is None else math.ceil(spec.low)
    high = low + 2 if spec.high is None else math.ceil(spec.high)
    # int64 draws whatever the type: narrow draws share words, which would make an item's
    # values depend on the batch size.
    return np.asarray(rng.integers(low, high, size=shape, dtype=np.int64)).astype(dtype)


def numpy_type(spec: InputSpec) -> str:
    """The type in which an input is drawn.

    Raises:
        UsageError: There is no such dtype.
    """
    if spec.dtype not in _NUMPY_TYPES:
        raise UsageError(
            f"workload.inputs: {spec.name}: unknown dtype {spec.dtype!r}; "
            f"known: {', '.join(DTYPES)}"
        )
    return _NUMPY_TYPES[spec.dtype]
