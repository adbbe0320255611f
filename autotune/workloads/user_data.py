"""A user's own requests from a file, for timing, and the answers that go with them.

The file is an `.npz` (`numpy.savez`): an array per input under its name, with the items along the
input's batch axis, and perhaps the wanted outputs as `expected`, or `expected_0`, `expected_1`, ...
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.core.errors import UsageError
from autotune.core.records import DataSpec, InputSpec
from autotune.workloads import user_code
from autotune.workloads.data import numpy_type

MAX_BYTES = 4 * 2**30
MAX_ITEMS = 100_000
"""Items that are evaluated at most."""

EXPECTED = "expected"
TINY = 1e-12

Array = npt.NDArray[Any]


def check(data: DataSpec, base_dir: str) -> None:
    """Find what is wrong with the file or the function without loading or running them.

    Raises:
        UsageError: No such file or function, no `.npz`, or it is too large.
    """
    path = Path(data.file)
    if not zipfile.is_zipfile(path):
        raise UsageError(f"workload.data: {path} is no .npz file; write one with numpy.savez")
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > MAX_BYTES:
        raise UsageError(f"workload.data: {path} holds {size} bytes; at most {MAX_BYTES}")
    if data.evaluate:
        user_code.check(_function(data, base_dir))


class UserData:
    """The arrays of a file, checked against a model's inputs."""

    def __init__(self, data: DataSpec, inputs: Sequence[InputSpec]) -> None:
        """Load the file.

        Raises:
            UsageError: It lacks an input, or an array has another shape than the model takes.
        """
        if any(spec.length_axis is not None for spec in inputs):
            raise UsageError("workload.data: items of different lengths cannot be read from a file")
        try:
            with np.load(data.file, allow_pickle=False) as arrays:
                found = {name: arrays[name] for name in arrays.files}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise UsageError(f"workload.data: {data.file} cannot be read ({error})") from None
        self._inputs, self._place = tuple(inputs), f"workload.data: {data.file}"
        self.item_count = 0
        self._arrays = [self._fitting(found, spec) for spec in inputs]
        if not self.item_count:
            raise UsageError(f"{self._place}: it holds no items")
        self.item_count = min(self.item_count, MAX_ITEMS)
        names = [EXPECTED] if EXPECTED in found else _numbered(found)
        self.expected = tuple(found[name] for name in names)

    def _fitting(self, found: Mapping[str, Array], spec: InputSpec) -> Array:
        if spec.name not in found:
            have = ", ".join(sorted(found)[:20]) or "none"
            raise UsageError(f"{self._place}: no array {spec.name!r}; it has {have}")
        array, axis = found[spec.name], spec.batch_axis
        count = array.shape[axis] if axis is not None and array.ndim > axis else 1
        if array.shape != spec.sizes(count):
            raise UsageError(
                f"{self._place}: {spec.name} has the shape {list(array.shape)}; the model takes "
                f"{list(spec.shape)}"
            )
        if axis is not None:
            if self.item_count not in (0, count):
                raise UsageError(
                    f"{self._place}: {spec.name} has {count} items, another array {self.item_count}"
                )
            self.item_count = count
        return array.astype(numpy_type(spec), copy=False)

    def requests(self, batch_size: int, ring: int) -> list[list[Array]]:
        """Batches of the items in their order, from the first again after the last."""
        return [self._batch(number * batch_size, batch_size) for number in range(ring)]

    def _batch(self, first: int, batch_size: int) -> list[Array]:
        rows = np.arange(first, first + batch_size) % self.item_count
        return [
            array if spec.batch_axis is None else array.take(rows, axis=spec.batch_axis)
            for spec, array in zip(self._inputs, self._arrays, strict=True)
        ]

    def ring(self, batch_size: int) -> int:
        """Batches after which every item has been had."""
        return math.ceil(self.item_count / batch_size)


def accuracy(
    data: DataSpec, base_dir: str, outputs: Sequence[Array], expected: Sequence[Array]
) -> dict[str, float]:
    """What the outputs of all items are worth.

    Without a function of the user's: how far they are from the expected ones, relative to the mean
    size of these, and in how many items the largest value along the last axis is at the same place.

    Raises:
        UsageError: Outputs and expectations do not fit, or the function gives no numbers.
    """
    if data.evaluate:
        function = user_code.load(_function(data, base_dir))
        first = outputs[0] if len(outputs) == 1 else list(outputs)
        wanted = expected[0] if len(expected) == 1 else list(expected)
        return _numbers(function(first, wanted) if expected else function(first), data.evaluate)
    return dict(_differences(outputs, expected))


def _differences(
    outputs: Sequence[Array], expected: Sequence[Array]
) -> Iterator[tuple[str, float]]:
    if len(outputs) < len(expected):
        raise UsageError(
            f"workload.data: {len(expected)} expected outputs, but the model gives {len(outputs)}"
        )
    worst = 0.0
    means: list[float] = []
    same: list[float] = []
    for index, (found, wanted) in enumerate(zip(outputs, expected)):  # noqa: B905 (some may lack)
        if found.shape != wanted.shape:
            raise UsageError(
                f"workload.data: output {index} has the shape {list(found.shape)}, expected is "
                f"{list(wanted.shape)}"
            )
        size = float(np.abs(wanted.astype(np.float64)).mean()) + TINY
        off = np.abs(found.astype(np.float64) - wanted.astype(np.float64)) / size
        worst = max(worst, float(off.max(initial=0.0)))
        means.append(float(off.mean()))
        if wanted.ndim > 1 and wanted.shape[-1] > 1 and wanted.dtype.kind == "f":
            same.append(float((found.argmax(-1) == wanted.argmax(-1)).mean()))
    yield "largest_difference", worst
    yield "mean_difference", float(np.mean(means))
    if same:
        yield "same_largest_ratio", float(np.mean(same))


def _numbers(value: Any, name: str) -> dict[str, float]:
    named = value if isinstance(value, Mapping) else {"accuracy": value}
    try:
        numbers = {str(key): float(number) for key, number in named.items()}
    except (TypeError, ValueError):
        numbers = {}
    if not numbers or not all(map(math.isfinite, numbers.values())):
        raise UsageError(
            f"workload.data.evaluate: {name} returned {str(value)[:80]!r}; expected a number, or "
            "numbers by name"
        )
    return numbers


def _numbered(found: Mapping[str, Array]) -> list[str]:
    names: list[str] = []
    while (name := f"{EXPECTED}_{len(names)}") in found:
        names.append(name)
    return names


def _function(data: DataSpec, base_dir: str) -> user_code.FactoryPath:
    path = user_code.FactoryPath.parse(data.evaluate, base_dir)
    if path is None:
        raise UsageError(
            f"workload.data.evaluate: {data.evaluate!r} is not of the form path.py:function"
        )
    return path
