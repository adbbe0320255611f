"""Layers that sleep for a declared time instead of computing: a pipeline without real cores.

Forward, gradient of the input and gradient of the weights take the same time each, so that
schedules that part the two can be told from those that do not.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from autotune.core.records import InputSpec
from autotune.workloads.pipeline.chain import TARGET, Chain, mean_squares, seeded

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Slow(torch.autograd.Function):  # type: ignore[misc]
    """Hands on what it gets, and takes its time for it in either direction."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float, seconds_back: float) -> torch.Tensor:
        ctx.seconds_back = seconds_back
        if x.device.type != "meta":
            time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        time.sleep(ctx.seconds_back)
        return grads[0], None, None


class Sleeper(nn.Module):  # type: ignore[misc]  # torch is not checked
    """Multiplies by weights, and sleeps for as long as is declared."""

    def __init__(self, width: int, seconds_per_item: float, seconds_per_call: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(1.0 + 0.1 * torch.randn(width))
        self.seconds_per_item, self.seconds_per_call = seconds_per_item, seconds_per_call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seconds = self.seconds_per_call + self.seconds_per_item * x.shape[0]
        # The first layer's input has no gradient: it is to take as long as any other one.
        weight_s = seconds if x.requires_grad else 2 * seconds
        weight = _Slow.apply(self.weight, 0.0, weight_s)
        out: torch.Tensor = _Slow.apply(x, seconds, seconds) * weight
        return out


def chain(
    *, seed: int, layers: int, width: int, seconds_per_item: float, seconds_per_call: float
) -> Chain:
    """A chain of sleepers."""

    def make(begin: int, end: int) -> Sequence[nn.Module]:
        made: list[nn.Module] = []
        for index in range(begin, end):
            seeded(seed, index)
            made.append(Sleeper(width, seconds_per_item, seconds_per_call))
        return made

    shape: tuple[int | str, ...] = ("batch", width)
    return Chain(
        count=layers,
        make=make,
        inputs=(InputSpec(name="x", shape=shape), InputSpec(name=TARGET, shape=shape)),
        loss=mean_squares,
    )
