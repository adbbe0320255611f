"""The torch model of an exported program: built, called as it wants, its inputs in slots."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import random
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from autotune.programs.instance import find_file
from autotune.programs.memory import Array, Layout, Settings

SLOT_COUNT = 2


def build_model(settings: Settings, device: str) -> Callable[..., Any]:
    """Build the model in evaluation mode, with the weights that its seed gives."""
    import torch

    seed = settings["seed"]
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    make = factory(settings["model"])
    options = dict(settings["options"])
    if "config" in inspect.signature(make).parameters:
        options["config"] = types.SimpleNamespace(**settings["config"])
    built = make(**options)
    model = built[0] if isinstance(built, tuple) and len(built) == 2 else built
    if isinstance(model, torch.nn.Module):
        model.eval().requires_grad_(False)
        model.to(device=device)
        if settings["precision"] != "float32":
            model.to(dtype=getattr(torch, settings["precision"]))
        if settings["runtime"]["memory_format"] == "channels_last":
            model.to(memory_format=torch.channels_last)
    call = calling(model, [spec["name"] for spec in settings["inputs"]], settings["call"])
    if settings["runtime"]["compile"]:
        torch._inductor.config.compile_threads = 1
        call = torch.compile(call, dynamic=False)
    return inference(call)


def factory(place: str) -> Callable[..., Any]:
    """The function that makes the model: of "path.py:name", or of "package.module:name"."""
    where, _, name = place.rpartition(":")
    if not where.endswith(".py"):
        found: Callable[..., Any] = getattr(importlib.import_module(where), name)
        return found
    path = find_file(where).resolve()
    spec = importlib.util.spec_from_file_location("served_model", path)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules["served_model"] = module
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    made: Callable[..., Any] = getattr(module, name)
    return made


def calling(model: Callable[..., Any], names: Sequence[str], how: str) -> Callable[..., Any]:
    """A function of the inputs in their order that hands them on as the model wants them."""
    if how == "keywords":
        return lambda *tensors: model(**dict(zip(names, tensors, strict=True)))
    if how == "dict":
        return lambda *tensors: model(dict(zip(names, tensors, strict=True)))
    if how == "tuple":
        return lambda *tensors: model(tensors)
    return model


def inference(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call without recording for gradients."""
    import torch

    inference_mode = torch.inference_mode

    def run(*tensors: Any) -> Any:
        with inference_mode():
            return call(*tensors)

    return run


def tensors_of(output: Any) -> Iterator[Any]:
    """The tensors of an output in any nesting, in order."""
    import torch

    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from tensors_of(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from tensors_of(value)


def to_arrays(output: Any) -> list[Array]:
    """The tensors of an output as arrays; numpy has no bfloat16, which becomes float32."""
    import torch

    found = []
    for tensor in tensors_of(output):
        tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        found.append(tensor.cpu().numpy())
    return found


class TorchCopies:
    """The device's memory that the model reads, in slots used in turn, and the copies into it.

    Args:
        method: "separate" (a copy per input), "packed" (one of all), "foreach" (one call for all
            inputs of a type, which is one operation where the device's runtime has it).
        non_blocking: Copies return before they are done; the memory they come from is pinned.
    """

    def __init__(self, layout: Layout, device: str, method: str, non_blocking: bool) -> None:
        import torch

        self._torch, self._layout, self._method = torch, layout, method
        self._non_blocking = non_blocking
        flat = [torch.zeros(layout.size, dtype=torch.uint8, device=device) for _ in range(2)]
        self._flat = flat
        self._views = [self.views(buffer) for buffer in flat]
        self._groups: dict[str, list[int]] = {}
        for index, field in enumerate(layout.fields):
            self._groups.setdefault(field.dtype, []).append(index)
        self._parts: dict[tuple[int, int], list[Any]] = {}

    def views(self, flat: Any) -> list[Any]:
        """The inputs inside a buffer of bytes."""
        torch = self._torch
        return [
            flat[f.start : f.end].view(getattr(torch, f.dtype)).view(f.shape)
            for f in self._layout.fields
        ]

    def load(self, slot: int, source: tuple[Any, list[Any]], items: int) -> list[Any]:
        """Copy a micro-batch into a slot; the model's inputs for so many items."""
        whole = items == self._layout.items
        targets = self._views[slot] if whole else self._first(slot, items)
        sources = source[1] if whole else self._narrowed(source[1], items)
        if self._method == "packed":
            self._flat[slot].copy_(source[0], non_blocking=self._non_blocking)
        elif self._method == "foreach":
            self._copy_together(
                self._views[slot], source[1], targets, sources, non_blocking=self._non_blocking
            )
        else:
            for target, tensor in zip(targets, sources, strict=True):
                target.copy_(tensor, non_blocking=self._non_blocking)
        return targets

    def _copy_together(
        self, all_to: Any, all_from: Any, to: Any, from_: Any, *, non_blocking: bool
    ) -> None:
        """One call per type: mixed types are copied as raw bytes on an NPU, without an error."""
        for indices in self._groups.values():
            fits = {i: to[i].is_contiguous() and from_[i].is_contiguous() for i in indices}
            self._torch._foreach_copy_(
                [to[i] if fits[i] else all_to[i] for i in indices],
                [from_[i] if fits[i] else all_from[i] for i in indices],
                non_blocking=non_blocking,
            )

    def _first(self, slot: int, items: int) -> list[Any]:
        if (slot, items) not in self._parts:
            self._parts[slot, items] = self._narrowed(self._views[slot], items)
        return self._parts[slot, items]

    def _narrowed(self, tensors: Sequence[Any], items: int) -> list[Any]:
        return [
            tensor if field.axis is None else tensor.narrow(field.axis, 0, items)
            for tensor, field in zip(tensors, self._layout.fields, strict=True)
        ]
