"""The gradients of single micro-batches, as the steps in which the sum of all of them grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from autotune.workloads.pipeline.ranks.stages import parameters_of


class Increments:
    """The squared norms of one step's micro-batches, and of their sum, of one rank's stages.

    Args:
        parts: The layers of every stage.
        micro_batches: Of one round; the loss of each is scaled by that and by the rounds.
    """

    def __init__(self, parts: Mapping[int, Sequence[nn.Module]], micro_batches: int) -> None:
        self._parameters = {stage: parameters_of(layers) for stage, layers in parts.items()}
        self._before: dict[int, list[torch.Tensor | None]] = {
            stage: [None] * len(own) for stage, own in self._parameters.items()
        }
        self._micro_batches = micro_batches
        self._small = self._big = 0.0

    def take(self, stage: int) -> None:
        """A micro-batch's backward pass through a stage has ended."""
        before = self._before[stage]
        for index, parameter in enumerate(self._parameters[stage]):
            if parameter.grad is None:
                continue
            grad, last = parameter.grad.detach(), before[index]
            self._small += _square(grad if last is None else grad - last)
            before[index] = grad.clone()

    def squares(self, rounds: int) -> tuple[float, float]:
        """Mean square of a micro-batch's gradient, and square of that of the whole batch."""
        pieces = self._micro_batches * rounds
        big = sum(
            _square(p.grad) for own in self._parameters.values() for p in own if p.grad is not None
        )
        return self._small * pieces, big  # each piece had a weight of 1 / pieces


def _square(tensor: torch.Tensor) -> float:
    return float(torch.sum(tensor.double() ** 2) if tensor.device.type == "cpu" else
                 torch.sum(tensor.float() ** 2))  # fmt: skip
