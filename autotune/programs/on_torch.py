"""The model in PyTorch on the CPU."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from autotune.programs.command import main
from autotune.programs.instance import bind
from autotune.programs.memory import Array, Layout, Settings
from autotune.programs.server import Server
from autotune.programs.torch_model import SLOT_COUNT, TorchCopies, build_model, to_arrays

SETTINGS: Settings = {}


class TorchOnCpu:
    """A module with as many threads as its instance has cores."""

    def __init__(self, settings: Settings, index: int, layout: Layout) -> None:
        thread_count = bind(settings, index)
        os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
        import torch

        with contextlib.suppress(RuntimeError):  # once per process: another instance was first
            torch.set_num_interop_threads(1)
        torch.set_num_threads(thread_count)
        self._run = build_model(settings, "cpu")
        self._torch, self._layout, self._calls = torch, layout, 0
        self._pads = settings["pads"]
        method = "packed" if settings["batched_h2d"] else "separate"
        self._copies = TorchCopies(layout, "cpu", method, non_blocking=False)

    def adopt(self, chunks: Sequence[Array], *, changes: bool) -> list[tuple[Any, list[Any]]]:
        """The buffers as tensors, with the views into them."""
        flats = [self._torch.from_numpy(chunk) for chunk in chunks]
        return [(flat, self._copies.views(flat)) for flat in flats]

    def call(self, adopted: Any, items: Sequence[int]) -> list[Any]:
        """Copy and run, micro-batch after micro-batch."""
        outputs = []
        for part, count in enumerate(items):
            slot = (self._calls + part) % SLOT_COUNT
            used = self._layout.items if self._pads else count
            outputs.append(self._run(*self._copies.load(slot, adopted[part], used)))
        self._calls += len(items)
        return outputs

    def outputs(self, result: list[Any]) -> list[list[Array]]:
        """The outputs' tensors as arrays."""
        return [to_arrays(output) for output in result]


def server() -> Server:
    """The server of this configuration, for use as a library."""
    return Server(TorchOnCpu, SETTINGS)


if __name__ == "__main__":
    sys.exit(main(TorchOnCpu, SETTINGS))
