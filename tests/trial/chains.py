"""Chains of layers that a pipeline is cut from, right ones and wrong ones."""

from __future__ import annotations

import os
import time

import torch
from torch import nn

INPUTS = [{"name": "x", "shape": ["batch", 8]}, {"name": "target", "shape": ["batch", 8]}]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x))


class Failing(Layer):
    """Raises on one rank, after some calls."""

    def __init__(self, where: int, how: str) -> None:
        super().__init__()
        self.where, self.how, self.calls = where, how, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls > 40 and torch.distributed.get_rank() == self.where:
            print("last words of the failing rank", flush=True)
            if self.how == "raise":
                raise ValueError("this layer gives up")
            if self.how == "hang":
                wait_for_ever()
            torch.empty(2**50)
        return super().forward(x)


def wait_for_ever() -> None:
    time.sleep(1e6)


def right() -> tuple[nn.Sequential, list]:
    return nn.Sequential(*(Layer() for _ in range(4))), INPUTS


def shifted() -> tuple[nn.Sequential, list]:
    """As if rank 1 had cut the model one layer too early."""
    layers = list(right()[0])
    if torch.distributed.get_rank() == 1:
        layers = [layers[0], *layers[:-1]]
    return nn.Sequential(*layers), INPUTS


def failing(how: str) -> tuple[nn.Sequential, list]:
    return nn.Sequential(*(Failing(1, how) for _ in range(4))), INPUTS


class Masked(Layer):
    """Takes a mask of whole numbers beside its input, and hands both on, each by itself."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(x) * mask.unsqueeze(-1), mask


class Packed(Layer):
    """The same with one parameter for both, as in an nn.Sequential."""

    def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> list[torch.Tensor]:
        x, mask = pair
        return [super().forward(x) * mask.unsqueeze(-1), mask]


class Last(Layer):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * mask.unsqueeze(-1)


def odd() -> tuple[nn.Sequential, list]:
    """No parameters in the first layer, a frozen one, one that writes into what it gets."""
    layers = (Cut(), Masked().requires_grad_(False), Masked(), Packed(), Relu(), Last())
    mask = {"name": "mask", "shape": ["batch"], "dtype": "int64", "low": 0, "high": 2}
    return nn.Sequential(*layers), [{"name": "x", "shape": ["batch", 2, 4]}, mask, INPUTS[1]]


class Cut(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.flatten(1), mask


class Relu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.relu(x), mask


def tied() -> tuple[nn.Sequential, list]:
    layers = right()[0]
    layers[3].linear.weight = layers[0].linear.weight
    return layers, INPUTS


def summed() -> tuple[nn.Sequential, list]:
    layers = right()[0]
    layers.loss = lambda output, target: (output - target).square().sum()
    return layers, INPUTS


def turned() -> tuple[nn.Sequential, list]:
    return right()[0], [{**item, "shape": [3, "batch", 8]} for item in INPUTS]


def slow() -> tuple[nn.Sequential, list]:
    class Slow(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            time.sleep(float(os.environ.get("SLOW_S", "0.02")))
            return super().forward(x)

    return nn.Sequential(*(Slow() for _ in range(4))), INPUTS
