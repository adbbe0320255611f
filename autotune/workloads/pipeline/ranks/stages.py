"""Layers joined to stages, and the schedules of the installed torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autotune.core.errors import UnavailableError


class Joined(nn.Module):  # type: ignore[misc]  # torch is not checked
    """Layers one after the other, each with what the one before it returned.

    Args:
        recomputes: Keep no layer's activations, run its forward pass again when they are needed.
    """

    def __init__(self, layers: Sequence[nn.Module], *, recomputes: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self._recomputes = recomputes

    def forward(self, *values: Any) -> Any:
        result: Any = values
        for layer in self.layers:
            given = result if isinstance(result, tuple) else (result,)
            if self._recomputes and torch.is_grad_enabled():
                result = checkpoint(layer, *given, use_reentrant=False)
            else:
                result = layer(*given)
        return result


def schedule_class(name: str) -> Callable[..., Any]:
    """The schedule of torch.distributed.pipelining.

    Raises:
        UnavailableError: The installed torch has none of that name.
    """
    from torch.distributed.pipelining import schedules

    found: Callable[..., Any] | None = getattr(schedules, f"Schedule{name}", None)
    if found is None:
        raise UnavailableError(
            f"params.schedule: torch {torch.__version__} has no schedule {name}; leave it out, or "
            "install a newer torch"
        )
    return found


def event_maker(device: str) -> Callable[[], Any] | None:
    """Makes events of the device's own clock; None where the host's clock tells all."""
    kind = device.partition(":")[0]
    module = getattr(torch, kind, None)
    if kind == "cpu" or not hasattr(module, "Event"):
        return None
    return lambda: module.Event(enable_timing=True)  # type: ignore[union-attr]


def parameters_of(layers: Sequence[nn.Module]) -> list[nn.Parameter]:
    """The parameters of all layers, those that are shared once."""
    return list(dict.fromkeys(p for layer in layers for p in layer.parameters()))
