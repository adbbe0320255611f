"""Counts what a torch model does: arithmetic by torch's own formulas, bytes by its operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from autotune.core.diagnosis import OpWork
from autotune.core.records import InputSpec

if TYPE_CHECKING:
    import torch

MAX_OPERATORS = 100_000
_EMPTY = ("aten.empty", "aten.new_empty")  # and those that begin so: nothing is moved
_LOOKUPS = ("aten.embedding", "aten.index", "aten.gather", "aten._embedding_bag")
"""And those that begin so: of what they look up in, only what they return is read."""


def count_work(run: Callable[..., Any], tensors: Sequence[Any]) -> tuple[OpWork, ...]:
    """Run a model once and count every operator that moves or computes anything.

    Args:
        run: As of `Program`. `tensors`: what it takes; () is returned unless they are torch's.
    """
    import torch

    if not tensors or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        return ()
    with _counter() as counter:
        run(*tensors)
    return tuple(counter.work)


def doubled(tensors: Sequence[torch.Tensor], inputs: Sequence[InputSpec]) -> list[torch.Tensor]:
    """Inputs with each item twice."""
    import torch

    return [
        tensor if spec.batch_axis is None else torch.cat([tensor, tensor], dim=spec.batch_axis)
        for tensor, spec in zip(tensors, inputs, strict=True)
    ]


def _counter() -> Any:
    """A dispatch mode whose `work` holds the operators it saw."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    class Counter(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.work: list[OpWork] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            formula = flop_registry.get(func._overloadpacket)
            if formula is None:  # what is made of others counts by those
                with self:
                    result = func.decompose(*args, **kwargs)
                if result is not NotImplemented:
                    return result
            result = func(*args, **kwargs)
            name = str(func._overloadpacket)
            if not _is_view(func) and not name.startswith(_EMPTY):
                flops = float(formula(*args, **kwargs, out_val=result)) if formula else 0.0
                given = () if name.startswith(_LOOKUPS) else _tensors((args, kwargs))
                returned = [_bytes(tensor) for tensor in _tensors(result)]
                moved = sum(map(_bytes, given)) or sum(returned)
                if len(self.work) < MAX_OPERATORS:
                    self.work.append(OpWork(name, flops, float(moved + sum(returned))))
            return result

    return Counter()


def _bytes(tensor: torch.Tensor) -> int:
    """What a tensor holds; one that repeats itself holds no more than its memory."""
    return min(int(tensor.nbytes), int(tensor.untyped_storage().nbytes()))


def _is_view(func: Any) -> bool:
    """True for operators that return what they were given, seen otherwise."""
    returns = func._schema.returns
    aliases = [value.alias_info for value in returns if value.alias_info is not None]
    return bool(aliases) and not any(alias.is_write for alias in aliases)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))
    elif isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        for part in value:
            yield from _tensors(part)
