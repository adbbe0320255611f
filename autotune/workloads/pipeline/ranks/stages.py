"""Layers joined to stages, and the schedules of the installed torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autotune.core.errors import UnavailableError, UsageError


class Joined(nn.Module):  # type: ignore[misc]  # torch is not checked
    """Layers one after the other, each with what the one before it returned.

    Args:
        recomputes: Keep no layer's activations, run its forward pass again when they are needed.
        is_parted: Gradients of inputs and of weights are taken one after the other. The weights'
            are found from the inputs then, so that all of these must have one, and torch
            detaches what a stage returns in place, which no view allows.
    """

    def __init__(
        self, layers: Sequence[nn.Module], *, recomputes: bool = False, is_parted: bool = False
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self._recomputes, self._is_parted = recomputes, is_parted

    def forward(self, *values: Any) -> Any:
        values = _with_plain_gradients(values)
        result: Any = values
        for index, layer in enumerate(self.layers):
            if index:
                values = handed_on(self.layers[index - 1], result)
            given = arguments(layer, values)
            if index == 0:
                given = kept_whole(layer, given)
            if self._recomputes and torch.is_grad_enabled():
                result = checkpoint(layer, *given, use_reentrant=False)
            else:
                result = layer(*given)
        return _sent(result, is_parted=self._is_parted and torch.is_grad_enabled())


def _sent(result: Any, *, is_parted: bool) -> Any:
    """What a stage returns, in one piece of memory each, as only such tensors can be sent."""
    if isinstance(result, (tuple, list)):
        return tuple(_sent(value, is_parted=is_parted) for value in result)
    if not isinstance(result, torch.Tensor):
        return result  # the last stage's, for a loss that takes it
    result = result.contiguous()
    if is_parted and result._is_view():
        result = result.clone()
    if is_parted and result.is_floating_point() and not result.requires_grad:
        result = result.detach().requires_grad_()
    return result


class _PlainGradient(torch.autograd.Function):  # type: ignore[misc]
    """Hands on what it gets; a gradient comes back in one piece of memory."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0].contiguous()


def _with_plain_gradients(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        _PlainGradient.apply(value)
        if isinstance(value, torch.Tensor) and value.requires_grad
        else value
        for value in values
    )


def handed_on(layer: nn.Module, result: Any) -> tuple[torch.Tensor, ...]:
    """What a layer returned, as the tensors that go on to the next.

    Raises:
        UsageError: It is something else.
    """
    values = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    for value in values:
        if not isinstance(value, torch.Tensor):
            inside = "" if value is result else f"a {type(result).__name__} with "
            raise UsageError(
                f"workload.model: a {type(layer).__name__} layer hands on {inside}a "
                f"{type(value).__name__}; between layers there may be a tensor, or a tuple of them"
            )
    return values


def arguments(layer: nn.Module, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """How a layer takes several tensors: one by one, or as a tuple if it has one parameter only."""
    if len(values) == 1:
        return values
    try:
        parameters = inspect.signature(layer.forward).parameters.values()
    except (TypeError, ValueError):  # some compiled modules tell nothing
        return values
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return values
    taken = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return (values,) if len(taken) == 1 else values


def kept_whole(layer: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a layer, copied if it writes into what it gets.

    A stage's first layer gets the items themselves, or a tensor whose gradient is wanted.
    """
    if not any(getattr(module, "inplace", False) for module in layer.modules()):
        return given
    return tuple(v.clone() if isinstance(v, torch.Tensor) else v for v in given)


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
