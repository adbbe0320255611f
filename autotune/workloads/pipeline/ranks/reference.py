"""The same model without a pipeline: what loss and gradients must be, and what each layer takes."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from autotune.core.clock import Clock
from autotune.core.errors import UsageError
from autotune.core.pipeline import Pass
from autotune.workloads.pipeline.ranks.stages import arguments, handed_on, kept_whole

if TYPE_CHECKING:
    from autotune.workloads.pipeline.chain import Chain

_End = tuple[torch.Tensor, torch.Tensor | None]  # an output, and its target

NOT_THE_MEAN = 0.02  # relative: beyond what any precision's rounding makes
TIMED = 3  # passes of one micro-batch whose median is a layer's time, after one that is not


class Unpipelined:
    """The whole model on one device, run layer by layer.

    Args:
        wait: Waits for the device.
    """

    def __init__(
        self, chain: Chain, layers: Sequence[nn.Module], clock: Clock, wait: Callable[[], None]
    ) -> None:
        self._chain, self._layers, self._clock, self._wait = chain, layers, clock, wait
        self._forward_s: list[list[float]] = [[] for _ in layers]
        self._backward_s: list[list[float]] = [[] for _ in layers]
        self._kept = [0] * len(layers)
        self._ends: list[_End] = []  # of the first two slices

    def run(
        self,
        batch: Sequence[torch.Tensor],
        target: torch.Tensor | None,
        *,
        items: int,
        trains: bool,
    ) -> Pass:
        """Loss and gradients of the global batch.

        It goes through in slices of `items`, so that it takes no more memory for activations
        than one micro-batch does.

        Args:
            batch: The model's inputs.
        Raises:
            UsageError: The loss is no mean over items.
        """
        total = batch[0].shape[0]
        begins = list(range(0, total, items))
        loss = 0.0
        # Some slices more than once if there are few: for the clock alone, with no weight.
        for number in range(max(len(begins), TIMED + 1)):
            part = slice(begins[number % len(begins)], begins[number % len(begins)] + items)
            share = items / total if number < len(begins) else 0.0
            values = tuple(tensor[part] for tensor in batch)
            loss += self._slice(values, None if target is None else target[part], share, trains)
        slices = max(len(begins), TIMED + 1)
        check_mean(self._chain.mean_loss, self._ends[: len(begins)])
        return Pass(
            loss=loss,
            gradient_norms=norms(self._layers, 0) if trains else {},
            forward_s=tuple(statistics.median(times[1:]) for times in self._forward_s),
            backward_s=tuple(
                statistics.median(times[1:]) if times else 0.0 for times in self._backward_s
            ),
            parameter_bytes=tuple(sum(p.nbytes for p in own) for own in self._parameters()),
            trained_bytes=tuple(
                sum(p.nbytes for p in own if p.requires_grad) for own in self._parameters()
            ),
            activation_bytes=tuple(size / slices / items for size in self._kept),
        )

    def _slice(self, values: Any, target: torch.Tensor | None, share: float, trains: bool) -> float:
        """One slice forward and backward; its loss times its share."""
        ins: list[tuple[torch.Tensor, ...]] = []
        outs: list[tuple[torch.Tensor, ...]] = []
        out: Any = None
        seen: set[int] = set()  # by the slice: what two layers keep is there once
        with torch.enable_grad() if trains else torch.no_grad():
            for index, layer in enumerate(self._layers):
                values = tuple(_leaf(value, trains and index > 0) for value in values)
                ins.append(values)
                given = kept_whole(layer, arguments(layer, values))
                with _counted_saves(self._kept, index, layer, seen):
                    out = self._timed(functools.partial(layer, *given), self._forward_s[index])
                if index < len(self._layers) - 1:  # the last one may return whatever the loss takes
                    values = handed_on(layer, out)
                    outs.append(values)
            first = out[0] if isinstance(out, (tuple, list)) else out
            if len(self._ends) < 2 and isinstance(first, torch.Tensor):
                self._ends.append((first.detach(), target))
            loss = share * self._chain.mean_loss(out, target)
        heads: Any = (loss,)
        grads: Any = (torch.ones_like(loss),)
        for index in reversed(range(len(self._layers) if trains else 0)):
            self._timed(functools.partial(_backward, heads, grads), self._backward_s[index])
            if index:
                heads, grads = outs[index - 1], tuple(value.grad for value in ins[index])
        return float(loss.detach())

    def _parameters(self) -> list[list[nn.Parameter]]:
        """By layer; one that several layers share is the first one's."""
        owners: dict[nn.Parameter, int] = {}
        for index, layer in enumerate(self._layers):
            for parameter in layer.parameters():
                owners.setdefault(parameter, index)
        return [[p for p, owner in owners.items() if owner == i] for i in range(len(self._layers))]

    def _timed(self, action: Callable[[], Any], into: list[float]) -> Any:
        self._wait()
        began_s = self._clock.now_s()
        result = action()
        self._wait()
        into.append(self._clock.now_s() - began_s)
        return result


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is not checked
def check_mean(loss: Callable[..., torch.Tensor], ends: Sequence[_End]) -> None:
    """Hold the loss of two parts together against the mean of their losses.

    Args:
        ends: Outputs and targets of two slices, or of one that is parted then if it can be.
    Raises:
        UsageError: They differ.
    """
    parts = list(ends)
    if len(parts) == 1 and parts[0][0].ndim and len(parts[0][0]) > 1:
        ((out, target),) = parts
        parts = [(out[i : i + 1], None if target is None else target[i : i + 1]) for i in (0, 1)]
    if len(parts) < 2 or not all(out.ndim for out, _ in parts):
        return  # there is one item, or the model itself returns its loss
    (out, target), (further, further_target) = parts
    both = None if target is None else torch.cat([target, further_target])
    together = float(loss(torch.cat([out, further]), both))
    mean = (float(loss(out, target)) + float(loss(further, further_target))) / 2
    if abs(together - mean) > NOT_THE_MEAN * max(abs(together), abs(mean)):
        raise UsageError(
            f"workload.model: the loss of {len(out) + len(further)} items together is "
            f"{together:.6g}, and that of two halves of them {mean:.6g} in the mean: in a pipeline "
            "it has to be a mean over the items, neither a sum nor one with weights; options: "
            "{compare: false} runs it as it is, holding nothing against the model's own gradients"
        )


def _backward(heads: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None]) -> None:
    """Through a layer, as far as its outputs have a gradient and come from one that needs it."""
    pairs = [(h, g) for h, g in zip(heads, grads, strict=True) if h.requires_grad and g is not None]
    if pairs:
        torch.autograd.backward(*zip(*pairs, strict=True))


def norms(layers: Sequence[nn.Module], first: int) -> dict[str, float]:
    """Norm of the gradients of every layer that has some, by the layer's number."""

    found: dict[str, float] = {}
    for index, layer in enumerate(layers, first):
        grads = [p.grad for p in layer.parameters() if p.grad is not None]
        if grads:
            squares = sum(float(torch.sum(g.double() ** 2)) for g in grads)
            found[str(index)] = squares**0.5
    return found


def _leaf(value: torch.Tensor, needs_gradient: bool) -> torch.Tensor:
    value = value.detach()
    return value.requires_grad_() if needs_gradient and value.is_floating_point() else value


def _counted_saves(kept: list[int], index: int, layer: nn.Module, seen: set[int]) -> Any:
    """Adds up the bytes that autograd keeps of a layer's pass, its parameters left out.

    Args:
        seen: Addresses of what is kept already.
    """

    own = {p.data_ptr() for p in layer.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.data_ptr()
        if place not in own and place not in seen:
            seen.add(place)
            # An expanded tensor has more numbers than memory.
            kept[index] += min(tensor.nbytes, tensor.untyped_storage().nbytes())
        return tensor

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
