"""Models with a planted bottleneck: each spends nearly all of its time in one part of a call.

`factory(part=…, size=…)` is what a space file names; `size` scales what is planted.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from autotune.core.records import InputSpec

FEATURES = 8
WIDTH = 512
MEBI = 2**20


class Copies(nn.Module):
    """Many small inputs, of which next to nothing is made."""

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return inputs[0] + inputs[-1]


class Gaps(nn.Module):
    """Operators on next to nothing, one after the other."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.count):
            x = x + 1.0
        return x


class Compute(nn.Module):
    """Products of matrices that fit into caches."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Memory(nn.Module):
    """A table that is gone through once per call, as weights are that fit into no cache."""

    table: torch.Tensor
    spare: torch.Tensor

    def __init__(self, mebibytes: int) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(mebibytes * MEBI // 4))
        self.register_buffer("spare", torch.empty(mebibytes * MEBI // 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.mul(self.table, 2.0, out=self.spare)[0]


class Host(nn.Module):
    """Waits for something that no operator does."""

    def __init__(self, wait_s: float, *, busy: bool) -> None:
        super().__init__()
        self.wait_s, self.busy = wait_s, busy

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        until_s = time.perf_counter() + self.wait_s
        if not self.busy:
            time.sleep(self.wait_s)
        while time.perf_counter() < until_s:
            pass
        return x + 1.0


def factory(part: str, size: float = 1.0) -> tuple[nn.Module, list[Any]]:
    """A model that spends its time in `part`."""
    x = InputSpec(name="x", shape=("batch", FEATURES))
    if part == "h2d":
        names = [f"x{i}" for i in range(max(8, round(64 * size)))]
        return Copies(), [InputSpec(name=name, shape=("batch", FEATURES)) for name in names]
    if part == "gaps":
        return Gaps(round(200 * size)), [x]
    if part == "compute":
        return Compute(max(1, round(4 * size))), [InputSpec(name="x", shape=("batch", WIDTH))]
    if part == "memory":
        return Memory(max(16, round(64 * size))), [x]
    if part in ("host", "queue"):
        return Host(2e-3 * size, busy=part == "queue"), [x]
    raise ValueError(part)
