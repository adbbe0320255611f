"""From the inputs of a model's file to inputs that can be drawn: which axis counts items."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from autotune.core.errors import UsageError
from autotune.core.records import InputSpec
from autotune.workloads.data import DTYPES
from autotune.workloads.model_file import Dim, GraphInput, ModelFile

BATCH_NAMES = ("batch", "batch_size", "batchsize", "bs", "n", "b")
"""What exporters and people call the axis that counts items, in small letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInputs:
    """The inputs of a model, each with its batch axis.

    Attributes:
        fixed_batch: The only number of items the model takes at once; None: any.
        notes: What was taken for granted.
    """

    inputs: tuple[InputSpec, ...]
    fixed_batch: int | None = None
    notes: tuple[str, ...] = ()


def batch_inputs(file: ModelFile, given: Sequence[InputSpec]) -> BatchInputs:
    """Find the batch axis of every input; sizes that only the user knows come from `given`.

    The batch axis is the dynamic one that is called so; failing that the first axis, if it is
    dynamic; failing that the first axis with its fixed size.

    Args:
        given: The space file's `inputs`, matched by name.
    Raises:
        UsageError: An input cannot be fed, a size is missing, or `given` contradicts the file.
    """
    by_name = {spec.name: spec for spec in given}
    names = [item.name for item in file.inputs]
    if strangers := [name for name in by_name if name not in names]:
        raise UsageError(
            f"workload.inputs: {file.path.name} has no input {strangers[0]!r}; "
            f"it has {', '.join(names[:20]) or 'none'}"
        )
    if not file.inputs:
        raise UsageError(f"workload.model: {file.path.name} has no inputs: nothing can be batched")
    for item in file.inputs:
        _check(item)
    symbol, notes = _batch_symbol(file.inputs, by_name)
    fixed = None if symbol or _is_batched(given) else _fixed_batch(file.inputs)
    inputs = tuple(
        _agreed(item, by_name[item.name])
        if item.name in by_name
        else InputSpec(name=item.name, shape=_shape(item, symbol, fixed), dtype=item.dtype)
        for item in file.inputs
    )
    if not any(spec.batch_axis is not None for spec in inputs):
        raise UsageError(
            f"workload.inputs: no input of {file.path.name} has an axis that counts items; "
            "give the shapes, such as inputs: [{name: x, shape: [batch, 16]}]"
        )
    own_fixed = _given_fixed(file.inputs, by_name)
    return BatchInputs(inputs=inputs, fixed_batch=own_fixed or fixed, notes=notes)


def _check(item: GraphInput) -> None:
    if item.dtype not in DTYPES or item.dtype == "bfloat16":
        raise UsageError(
            f"workload.model: input {item.name} is of type {item.dtype}, which cannot be fed; "
            f"can be: {', '.join(name for name in DTYPES if name != 'bfloat16')}"
        )
    if item.dims and 0 in item.dims:
        raise UsageError(
            f"workload.inputs: input {item.name}: the model has a size of 0 in "
            f"{_shown(item.dims)}; export it with a dynamic axis"
        )


def _is_batched(given: Sequence[InputSpec]) -> bool:
    return any(spec.batch_axis is not None for spec in given)


def _dynamic(items: Iterable[GraphInput]) -> list[Dim]:
    """Names of the dynamic axes in order; None for those without one."""
    return [dim for item in items for dim in item.dims or () if not isinstance(dim, int)]


def _batch_symbol(
    items: Sequence[GraphInput], given: dict[str, InputSpec]
) -> tuple[str, tuple[str, ...]]:
    """What the batch axis is called, "" if it is not dynamic; "?" if it has no name."""
    left = [item for item in items if item.name not in given]
    for name in _dynamic(items):
        if isinstance(name, str) and _says_batch(name):
            return name, ()
    for item in left:
        if item.dims and not isinstance(item.dims[0], int):
            shown = "without a name" if item.dims[0] is None else f"called {item.dims[0]!r}"
            note = f"input {item.name}: its first axis, {shown}, is taken as the batch"
            return item.dims[0] or "?", (note,)
    return "", ()


def _says_batch(dim: Dim) -> bool:
    word = dim.lower() if isinstance(dim, str) else ""
    is_computed = any(sign in word for sign in "*+")  # as in 2*batch: no count of items
    return word in BATCH_NAMES or ("batch" in word and not is_computed)


def _fixed_batch(items: Sequence[GraphInput]) -> int | None:
    """The first axis of the first input that has several, else of the first that has one."""
    ranked = sorted((item.dims for item in items if item.dims), key=lambda dims: len(dims) < 2)
    return ranked[0][0] if ranked and isinstance(ranked[0][0], int) else None


def _shape(item: GraphInput, symbol: str, fixed: int | None) -> tuple[int | str, ...]:
    if item.dims is None:
        raise UsageError(
            f"workload.inputs: the model does not say how many axes {item.name} has; give its "
            f"shape: inputs: [{{name: {item.name}, shape: [batch, 16]}}]"
        )
    shape: list[int | str] = []
    for axis, dim in enumerate(item.dims):
        is_batch = dim == symbol or _says_batch(dim)
        if symbol == "?" or not symbol:
            is_batch = axis == 0 and dim == fixed
        if is_batch and "batch" not in shape:
            shape.append("batch")
        elif isinstance(dim, int):
            shape.append(dim)
        else:
            raise _size_missing(item, axis, symbol)
    return tuple(shape)


def _size_missing(item: GraphInput, axis: int, symbol: str) -> UsageError:
    assert item.dims is not None
    known = [
        str(dim)
        if isinstance(dim, int)
        else "batch"
        if dim == symbol or (index == 0 and (dim is None or axis == 0))
        else "128"
        for index, dim in enumerate(item.dims)
    ]
    name = item.dims[axis]
    what = f"dimension {name!r}" if name else f"dimension {axis}, which has no name,"
    meant = " (batch where items are counted, else a size)" if axis == 0 else ""
    return UsageError(
        f"workload.inputs: input {item.name}: {what} of the model is dynamic and its size is not "
        f"known; give it: inputs: [{{name: {item.name}, shape: [{', '.join(known)}]}}]{meant}"
    )


def _agreed(item: GraphInput, given: InputSpec) -> InputSpec:
    """The space file's input with the model's own type, after they were compared."""
    where = f"workload.inputs: {item.name}:"
    if given.dtype not in (item.dtype, InputSpec(name="", shape=()).dtype):
        raise UsageError(f"{where} {given.dtype} is given, but the model takes {item.dtype}")
    if item.dims is not None:
        if len(item.dims) != len(given.shape):
            raise UsageError(
                f"{where} {len(given.shape)} axes are given, but the model's input has "
                f"{len(item.dims)}: {_shown(item.dims)}"
            )
        for size, dim in zip(given.shape, item.dims, strict=True):
            if isinstance(dim, int) and size not in (dim, "batch"):
                raise UsageError(
                    f"{where} the size {size} is given where the model has {dim} fixed: "
                    f"{_shown(item.dims)}"
                )
    return replace(given, dtype=item.dtype)


def _given_fixed(items: Sequence[GraphInput], given: dict[str, InputSpec]) -> int | None:
    """The fixed size of an axis that the space file calls the batch."""
    for item in items:
        spec = given.get(item.name)
        if spec is not None and spec.batch_axis is not None and item.dims:
            dim = item.dims[spec.batch_axis]
            if isinstance(dim, int):
                return dim
    return None


def _shown(dims: tuple[Dim, ...]) -> str:
    return f"[{', '.join(str('?' if dim is None else dim) for dim in dims)}]"
