"""Models that go wrong, or could be measured wrongly, each in a way of its own.

All take x of shape [batch, 16]. Processes of a trial see the variables of the tool's environment.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

_KEPT: list[torch.Tensor] = []
BOAST = '{"throughput_items_per_s": 999999, "latency_p99_s": 1e-6}'


class Mute(Exception):
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Before(nn.Module):
    """A small layer that does something first: `act(number_of_the_call, x)`."""

    def __init__(self, act: Callable[[int, torch.Tensor], object]) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 4)
        self._act = act
        self._count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._count += 1
        self._act(self._count, x)
        return self.layer(x)


def every_size_its_own_fault() -> nn.Module:
    """Batches of 12 and 16 work, though the first prints what looks like a result."""
    faults: dict[int, Callable[[int, torch.Tensor], object]] = {
        1: _needs_two_items,
        2: lambda *_: _raise(torch.OutOfMemoryError("no room for 2.00 GiB")),
        3: lambda *_: os.kill(os.getpid(), signal.SIGSEGV),
        4: lambda *_: _raise(RuntimeError("CUDA error: too many threads for this launch")),
        5: lambda *_: torch.empty(1 << 42),
        6: _stays_for_ever,
        7: lambda *_: _raise(ConnectionError("the feature store answered 503")),
        8: lambda call, _: call >= 30 and _raise(torch.OutOfMemoryError("full after 29 calls")),
        9: lambda *_: os.kill(os.getpid(), signal.SIGKILL),
        10: lambda *_: os._exit(0),
        11: lambda *_: _raise(Mute()),
        12: lambda *_: print(BOAST, flush=True),
    }
    model = Before(lambda call, x: faults.get(x.shape[0], lambda *_: None)(call, x))
    model.register_forward_hook(lambda _, xs, y: iter([y]) if len(xs[0]) == 13 else y)
    return model


def writes_sizes_down() -> nn.Module:
    """Adds a line with the size of each call's batch to SIZES_FILE."""
    path = Path(os.environ["SIZES_FILE"])

    def act(_: int, x: torch.Tensor) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{x.shape[0]}\n")

    return Before(act)


def sleeps_when_large() -> nn.Module:
    """One item takes 2 ms, more take ten minutes."""
    return Before(lambda _, x: time.sleep(0.002 if x.shape[0] == 1 else 600.0))


def fills_memory() -> nn.Module:
    """Keeps 100 MB for good when built; every other batch size then fails with 200 MB more."""
    _KEPT.append(torch.ones(25_000_000))

    def act(_: int, x: torch.Tensor) -> None:
        if x.shape[0] % 2:
            held = torch.ones(50_000_000)
            raise torch.OutOfMemoryError(f"no room beside {held.numel()} numbers")

    return Before(act)


class Shortened(nn.Module):
    """Answers half of the items of a batch of 8 or more, and is the faster for it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x if x.shape[0] < 8 else x[: x.shape[0] // 2])


class Undefined(nn.Module):
    """The logarithm of inputs that may be negative."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.log()


def undefined() -> nn.Module:
    return Undefined()


def plain() -> nn.Module:
    return nn.Linear(16, 4)


def _needs_two_items(_: int, x: torch.Tensor) -> None:
    assert x.shape[0] > 1, "one item has no variance"


def _stays_for_ever(call: int, _: torch.Tensor) -> None:
    if call == 12:  # not among the first calls, with which a trial opens
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(600)


def _raise(error: Exception) -> Any:
    raise error


def right_in_its_trial_alone() -> nn.Module:
    """Batches of 8 are right in the first process that sees one, and wrong in later ones."""
    path = Path(os.environ["SEEN_FILE"])

    class Later(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 4)
            self.factor: float | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] < 8:
                return self.layer(x)
            if self.factor is None:
                self.factor = 2.0 if path.exists() else 1.0
                path.touch()
            return self.factor * self.layer(x)

    return Later()
