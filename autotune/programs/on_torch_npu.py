"""The model in PyTorch on an Ascend NPU, through torch_npu."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from autotune.programs.command import main
from autotune.programs.instance import bind
from autotune.programs.memory import Array, Layout, Settings
from autotune.programs.server import Server
from autotune.programs.torch_model import (
    SLOT_COUNT,
    TorchCopies,
    build_model,
    tensors_of,
    to_arrays,
)

SETTINGS: Settings = {}


class TorchOnNpu:
    """A module on its part of an NPU; the next micro-batch is copied while this one computes."""

    def __init__(self, settings: Settings, index: int, layout: Layout) -> None:
        bind(settings, index)
        import torch
        import torch_npu

        self._torch, self._npu = torch, torch.npu
        self._device = settings["device"]
        torch.npu.set_device(int(self._device.partition(":")[2] or 0))
        # Streams with a limit need tensors in the common formats.
        torch_npu.npu.config.allow_internal_format = False
        as_thread = settings["instance_mode"] == "thread" and settings["instance_count"] > 1
        self._stream = torch.npu.Stream() if as_thread else torch.npu.current_stream()
        torch.npu.set_stream(self._stream)
        self._limit_cores(settings["cores_per_instance"], as_thread)
        torch.npu.set_compile_mode(jit_compile=False)  # else weights may get private formats
        self._run = build_model(settings, self._device)
        self._layout, self._calls, self._pads = layout, 0, settings["pads"]
        self._copies = TorchCopies(layout, self._device, settings["copy_method"], non_blocking=True)
        count = settings["micro_batch_count"]
        self._copying = torch.npu.Stream() if count > 1 else self._stream
        self._copied = [torch.npu.Event() for _ in range(count)]
        self._computed = [torch.npu.Event() for _ in range(count)]
        self._host: dict[Any, Any] = {}
        self._stream.synchronize()

    def _limit_cores(self, split: Any, as_thread: bool) -> None:
        """Limit the stream of a thread, or the device of a process: once, before any operator."""
        if split == "all":
            return
        cube, vector = map(int, str(split).split("|"))
        if as_thread:
            self._npu.set_stream_limit(self._stream, cube_num=cube, vector_num=vector)
            found = self._npu.get_stream_limit(self._stream)
        else:
            index = self._npu.current_device()
            self._npu.set_device_limit(index, cube_num=cube, vector_num=vector)
            found = self._npu.get_device_limit(index)
        if (found["cube_core_num"], found["vector_core_num"]) != (cube, vector):
            raise RuntimeError(f"asked for {cube}|{vector} cores, the device reports {found}")

    def adopt(self, chunks: Sequence[Array], *, changes: bool) -> list[tuple[Any, Any, list[Any]]]:
        """Page-locked buffers beside those that requests are written to: copies need them."""
        adopted = []
        for chunk in chunks:
            flat = self._torch.from_numpy(chunk)
            pinned = flat.clone().pin_memory()
            came = flat if changes else None
            adopted.append((came, pinned, self._copies.views(pinned)))
        return adopted

    def call(self, adopted: Any, items: Sequence[int]) -> list[list[Any]]:
        """Copy, run and fetch all micro-batches, and wait for them."""
        used = [self._layout.items if self._pads else count for count in items]
        stream, last = self._stream, len(used) - 1
        outputs = []
        inputs = self._start(adopted, 0, used)
        for part in range(len(used)):
            present = inputs
            if part < last:
                inputs = self._start(adopted, part + 1, used)
            stream.wait_event(self._copied[part])
            output = self._run(*present)
            self._computed[part].record(stream)
            outputs.append(self._fetch(part, output))
        stream.synchronize()
        self._calls += len(used)
        return outputs

    def outputs(self, result: list[list[Any]]) -> list[list[Array]]:
        """The page-locked tensors they were brought to, as arrays."""
        return [to_arrays(tensors) for tensors in result]

    def _start(self, adopted: Any, part: int, used: Sequence[int]) -> list[Any]:
        """Begin to copy; a slot is free once the micro-batch before the last is computed."""
        came, pinned, views = adopted[part]
        if came is not None:
            pinned.copy_(came)
        slot = (self._calls + part) % SLOT_COUNT
        if self._copying is not self._stream and part >= SLOT_COUNT:
            self._copying.wait_event(self._computed[part - SLOT_COUNT])
        with self._npu.stream(self._copying):
            tensors = self._copies.load(slot, (pinned, views), used[part])
        self._copied[part].record(self._copying)
        return tensors

    def _fetch(self, part: int, output: Any) -> list[Any]:
        fetched = []
        for number, tensor in enumerate(tensors_of(output)):
            key = (part, number, tensor.shape, tensor.dtype)
            if key not in self._host:
                empty = self._torch.empty(tensor.shape, dtype=tensor.dtype)
                self._host[key] = empty.pin_memory()
            self._host[key].copy_(tensor.contiguous(), non_blocking=True)
            fetched.append(self._host[key])
        return fetched


def server() -> Server:
    """The server of this configuration, for use as a library."""
    return Server(TorchOnNpu, SETTINGS)


if __name__ == "__main__":
    sys.exit(main(TorchOnNpu, SETTINGS))
