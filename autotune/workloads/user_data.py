"""A user's own requests from a file, for timing, and the answers that go with them.

The file is an `.npz` (`numpy.savez`): an array per input under its name, with the items along the
input's batch axis, and perhaps the wanted outputs as `expected`, or `expected_0`, `expected_1`, ...
"""

from __future__ import annotations

import functools
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

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
MAX_QUOTED = 200  # characters of what numpy says
_DAMAGE = (OSError, ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile, zlib.error,
           RuntimeError)  # fmt: skip
"""What reading a file of another form ends in; encrypted ones are runtime errors."""


Array = npt.NDArray[Any]
Header = tuple[tuple[int, ...], np.dtype[Any]]
T = TypeVar("T")
_NUMERIC = "biuf"  # kinds of numpy's types
_HEADERS: dict[tuple[int, int], Callable[[IO[bytes]], tuple[Any, ...]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def check(data: DataSpec, base_dir: str) -> None:
    """Find what is wrong with the file or the function without loading or running them.

    Raises:
        UsageError: No such file or function, no `.npz`, or it is too large.
    """
    path = Path(data.file)
    if not zipfile.is_zipfile(path):
        raise UsageError(f"workload.data: {path} is no .npz file; write one with numpy.savez")
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
    except _DAMAGE as error:
        why = str(error)[:MAX_QUOTED]
        raise UsageError(f"workload.data: {path} cannot be read ({why})") from None
    if size > MAX_BYTES:
        raise UsageError(f"workload.data: {path} holds {size} bytes; at most {MAX_BYTES}")
    if data.evaluate:
        user_code.check(_function(data, base_dir))


class UserData:
    """The arrays of a file, checked against a model's inputs; read when they are needed.

    Attributes:
        item_count: How many items it holds, `MAX_ITEMS` at most.
    """

    def __init__(self, data: DataSpec, inputs: Sequence[InputSpec]) -> None:
        """Look at the file.

        Raises:
            UsageError: It lacks an input, or an array has another shape or type than the model
                takes, or expected outputs are of other items.
        """
        if any(spec.length_axis is not None for spec in inputs):
            raise UsageError("workload.data: items of different lengths cannot be read from a file")
        self._file, self._inputs = data.file, tuple(inputs)
        self._place = f"workload.data: {data.file}"
        headers = self._reading(_headers)
        count = 0
        for spec in inputs:
            count = self._check(headers, spec, count)
        if not count:
            raise UsageError(f"{self._place}: it holds no items")
        self._expected = [EXPECTED] if EXPECTED in headers else _numbered(headers)
        for name in self._expected:
            shape, _ = headers[name]
            if shape[:1] != (count,):
                raise UsageError(
                    f"{self._place}: {name} has the shape {list(shape)}; its first axis must be "
                    f"the {count} items"
                )
        self.item_count = min(count, MAX_ITEMS)

    def _check(self, headers: Mapping[str, Header], spec: InputSpec, count: int) -> int:
        """The number of items, known so far or from this input."""
        if spec.name not in headers:
            have = ", ".join(sorted(headers)[:20]) or "none"
            raise UsageError(f"{self._place}: no array {spec.name!r}; it has {have}")
        (shape, dtype), axis = headers[spec.name], spec.batch_axis
        own = shape[axis] if axis is not None and len(shape) > axis else 1
        if shape != spec.sizes(own):
            raise UsageError(
                f"{self._place}: {spec.name} has the shape {list(shape)}; the model takes "
                f"{list(spec.shape)}"
            )
        if dtype.kind not in _NUMERIC:
            raise self._other_type(spec, dtype)
        if axis is None:
            return count
        if count not in (0, own):
            raise UsageError(f"{self._place}: {spec.name} has {own} items, another array {count}")
        return own

    @functools.cached_property
    def _arrays(self) -> list[Array]:
        return [self._fitting(spec) for spec in self._inputs]

    def _fitting(self, spec: InputSpec) -> Array:
        """An input's array in the type that the model takes."""
        array = self._reading(_array, spec.name)
        with np.errstate(invalid="ignore", over="ignore"):
            cast = array.astype(numpy_type(spec), copy=False)
        if cast.dtype.kind != "f" and not np.array_equal(cast, array):
            raise self._other_type(spec, array.dtype)
        return cast

    def _other_type(self, spec: InputSpec, dtype: np.dtype[Any]) -> UsageError:
        return UsageError(
            f"{self._place}: {spec.name} is {dtype}, and its values are none of {spec.dtype}, "
            "which the model takes"
        )

    def _reading(self, read: Callable[..., T], *args: str) -> T:
        try:
            return read(self._file, *args)
        except (*_DAMAGE, MemoryError) as error:
            why = str(error)[:MAX_QUOTED]
            raise UsageError(f"{self._place} cannot be read ({why})") from None

    @property
    def expected(self) -> tuple[Array, ...]:
        """The wanted outputs of the items, as many as there are."""
        arrays = (self._reading(_array, name) for name in self._expected)
        return tuple(array[: self.item_count] for array in arrays)

    @property
    def has_expected(self) -> bool:
        """True if the file holds wanted outputs."""
        return bool(self._expected)

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


def _headers(file: str) -> dict[str, Header]:
    """Shape and type of every array of a file, their numbers not read."""
    found: dict[str, Header] = {}
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            with archive.open(name) as stream:
                read = _HEADERS.get(np.lib.format.read_magic(stream))
                if read is None:
                    raise ValueError(f"{name} is of a version that is not known")
                shape, _, dtype = read(stream)
                found[name.removesuffix(".npy")] = (shape, dtype)
    return found


def _array(file: str, name: str) -> Array:
    with np.load(file, allow_pickle=False) as arrays:
        found: Array = arrays[name]
    return found


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


def _numbered(found: Mapping[str, Header]) -> list[str]:
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
