"""A plain multilayer perceptron: 256 inputs, three hidden layers of 1024, 64 outputs."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from autotune.core.records import InputSpec

WIDTHS = {"full": (256, 1024, 1024, 1024, 64), "small": (16, 32, 8)}


def build(size: str = "full") -> tuple[nn.Module, tuple[InputSpec, ...]]:
    """The network and its one input; "full" has 2,427,968 parameters."""
    widths = WIDTHS[size]
    return stack(widths), (InputSpec(name="x", shape=("batch", widths[0])),)


def stack(widths: tuple[int, ...]) -> nn.Sequential:
    """Linear layers of these widths with ReLU between them."""
    parts: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        parts += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*parts[:-1])
