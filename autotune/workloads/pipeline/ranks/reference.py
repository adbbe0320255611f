"""The same model without a pipeline: what loss and gradients must be, and what each layer takes."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from autotune.core.clock import Clock
from autotune.core.pipeline import Pass

if TYPE_CHECKING:
    from autotune.workloads.pipeline.chain import Chain

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
        return Pass(
            loss=loss,
            gradient_norms=norms(self._layers, 0) if trains else {},
            forward_s=tuple(statistics.median(times[1:]) for times in self._forward_s),
            backward_s=tuple(
                statistics.median(times[1:]) if times else 0.0 for times in self._backward_s
            ),
            parameter_bytes=tuple(
                sum(p.nbytes for p in layer.parameters()) for layer in self._layers
            ),
            activation_bytes=tuple(size / slices / items for size in self._kept),
        )

    def _slice(self, values: Any, target: torch.Tensor | None, share: float, trains: bool) -> float:
        """One slice forward and backward; its loss times its share."""
        ins, outs = [], []
        with torch.enable_grad() if trains else torch.no_grad():
            for index, layer in enumerate(self._layers):
                values = tuple(_leaf(value, trains and index > 0) for value in values)
                ins.append(values)
                with _counted_saves(self._kept, index, layer):
                    out = self._timed(functools.partial(layer, *values), self._forward_s[index])
                outs.append(out if isinstance(out, tuple) else (out,))
                values = outs[-1]
            targets = () if target is None else (target,)
            loss = share * self._chain.loss(values[0], *targets)
        heads: Any = (loss,)
        grads: Any = None
        for index in reversed(range(len(self._layers) if trains else 0)):
            back = functools.partial(torch.autograd.backward, heads, grads)
            self._timed(back, self._backward_s[index])
            heads = outs[index - 1]
            grads = tuple(value.grad for value in ins[index])
        return float(loss.detach())

    def _timed(self, action: Callable[[], Any], into: list[float]) -> Any:
        self._wait()
        began_s = self._clock.now_s()
        result = action()
        self._wait()
        into.append(self._clock.now_s() - began_s)
        return result


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


def _counted_saves(kept: list[int], index: int, layer: nn.Module) -> Any:
    """Adds up the bytes that autograd keeps of a layer's pass, its parameters left out."""

    own = {p.data_ptr() for p in layer.parameters()}
    seen: set[int] = set()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.data_ptr()
        if place not in own and place not in seen:
            seen.add(place)
            kept[index] += tensor.nbytes
        return tensor

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
