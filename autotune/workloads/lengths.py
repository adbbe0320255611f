"""Items of different lengths: drawn, padded to the longest of their batch, counted in tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.core.errors import UsageError
from autotune.core.records import Config, InputSpec, Ints, Lengths
from autotune.devices.base import Staging

LENGTH_SEED = 3_000_017  # apart from the seeds of the values

Stage = Callable[[Sequence[InputSpec], Sequence[Sequence[Any]], Config], Staging]


def lengths_of(inputs: Sequence[InputSpec]) -> Lengths | None:
    """The distribution that the inputs with an axis of lengths share, None if there is none."""
    return next((spec.lengths for spec in inputs if spec.lengths is not None), None)


def with_lengths(inputs: Sequence[InputSpec], lengths: Lengths | None) -> tuple[InputSpec, ...]:
    """The inputs, those with an axis called "length" with the distribution.

    Raises:
        UsageError: One of the two is there without the other.
    """
    named = [spec.name for spec in inputs if "length" in spec.shape]
    if named and lengths is None:
        raise UsageError(
            f"workload.lengths: input {named[0]} has an axis 'length', but no lengths are given; "
            "write lengths: {low: 8, high: 128}"
        )
    if lengths is not None and not named:
        raise UsageError(
            "workload.lengths: no input has an axis 'length'; write it into their shapes, such as "
            "inputs: [{name: ids, shape: [batch, length]}]"
        )
    return tuple(replace(spec, lengths=lengths) if spec.name in named else spec for spec in inputs)


def draw_lengths(lengths: Lengths, batch_size: int, seed: int, number: int) -> Ints:
    """Lengths of the items of request `number`; those of a smaller batch are the first ones."""
    rng = np.random.default_rng((seed, LENGTH_SEED, number))
    if lengths.values:
        return np.asarray(lengths.values)[rng.integers(0, len(lengths.values), batch_size)]
    return rng.integers(lengths.low, lengths.high, batch_size, endpoint=True)


def padded(spec: InputSpec, array: npt.NDArray[Any], lengths: Ints) -> npt.NDArray[Any]:
    """Cut a batch to the longest of its items, with zeros beyond the length of each.

    Args:
        array: Drawn at the longest length there is.
        lengths: Of the items, shape (batch,).
    """
    axis, batch_axis = spec.length_axis, spec.batch_axis
    if axis is None or spec.lengths is None:
        return array
    longest = spec.lengths.padded(int(lengths.max()))
    cut = array.take(np.arange(longest), axis=axis)
    if batch_axis is None:
        return cut
    inside = np.arange(longest)[None, :] < lengths[:, None]  # shape (batch, length)
    shape = [1] * cut.ndim
    shape[batch_axis], shape[axis] = inside.shape
    mask = (inside if batch_axis < axis else inside.T).reshape(shape)
    return np.where(mask, cut, np.zeros((), cut.dtype))


def tokens_per_item(inputs: Sequence[InputSpec], batch_size: int, ring: int, seed: int) -> float:
    """The mean length of all items of the ring, padding not counted; 0 without lengths."""
    lengths = lengths_of(inputs)
    if lengths is None:
        return 0.0
    drawn = [draw_lengths(lengths, batch_size, seed, number) for number in range(ring)]
    return float(np.concatenate(drawn).mean())


class LengthStaging:
    """Copies of requests that differ in length: one staging for the requests of each length.

    Attributes:
        copies_per_call: Copy operations of one call, the same for every length.
        method: What is done for each of them.
    """

    def __init__(
        self,
        stage: Stage,
        inputs: Sequence[InputSpec],
        requests: Sequence[Sequence[npt.NDArray[Any]]],
        config: Config,
    ) -> None:
        """Set up the copies.

        Args:
            stage: Makes the staging of requests of one shape.
            requests: The ring, each request padded to a length of its own.
        """
        index, axis = next(
            (index, spec.length_axis)
            for index, spec in enumerate(inputs)
            if spec.length_axis is not None
        )
        groups: dict[int, list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(request[index].shape[axis], []).append(number)
        self._places: dict[int, tuple[Staging, int]] = {}
        for length, numbers in groups.items():
            own = [spec.at_length(length) for spec in inputs]
            staging = stage(own, [requests[number] for number in numbers], config)
            for place, number in enumerate(numbers):
                self._places[number] = (staging, place)
        self.copies_per_call, self.method = staging.copies_per_call, staging.method

    def load(self, call: int, micro_batch: int, items: int | None = None) -> Sequence[Any]:
        """As `devices.base.Staging` says, the request's own length included."""
        staging, place = self._places[call % len(self._places)]
        return staging.load(place, micro_batch, items)


def staged(
    stage: Stage,
    inputs: Sequence[InputSpec],
    requests: Sequence[Sequence[npt.NDArray[Any]]],
    config: Config,
) -> Staging:
    """The staging of requests of one shape, or of several lengths."""
    if lengths_of(inputs) is None:
        return stage(inputs, requests, config)
    return LengthStaging(stage, inputs, requests, config)
