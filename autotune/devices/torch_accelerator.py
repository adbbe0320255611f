"""What accelerators that torch drives have in common: NPU, CUDA and MLU differ in their own files.

The parent's side looks at a device through a short-lived child; an instance's side has the
device, a stream, and the host's cores for its launches.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

from autotune.core.errors import UnavailableError
from autotune.core.records import Config, InputSpec
from autotune.core.text import describe
from autotune.core.units import format_size
from autotune.devices import topology
from autotune.devices.base import Device, DeviceInfo, Discovery, Mark, Seat, Staging
from autotune.devices.cpu import CpuDevice, effective_environment
from autotune.devices.pipeline import StreamStaging
from autotune.devices.probe import probe
from autotune.devices.staging import CopyMethod
from autotune.devices.torch_profile import torch_trace

NATIVE = "native"
"""Value of the trait `batch_copy` where one call really is one operation of the runtime."""

MEMORY_TOLERANCE_BYTES = 64 * 2**20  # the runtime's own, which differs from process to process
MEMORY_TOLERANCE = 0.01
MEMORY_POLL_S = 0.05


class AcceleratorKind(ABC):
    """The parent's side. Its module has a function `survey`, which a child calls: see `surveyed`.

    Attributes:
        device: The child's side.
        install: How a user gets the package that brings it to torch.
        node_pattern: Device nodes the driver makes, relative to the root of the file system.
    """

    is_exclusive = True

    device: ClassVar[type[TorchAccelerator]]
    install: ClassVar[str]
    collectives: ClassVar[str]
    node_pattern: ClassVar[str]

    def __init__(self, root: Path = topology.ROOT) -> None:
        self._root = root
        self.kind, self.package = self.device.kind, self.device.package

    def discover(self) -> Discovery:
        """The devices, or the first obstacle met on the way to one."""
        obstacle = self._obstacle()
        if obstacle:
            return Discovery(kind=self.kind, why_not=obstacle)
        found = probe(f"{type(self).__module__}:survey")
        if found.failure:
            return Discovery(kind=self.kind, why_not=self._unusable(found.failure))
        devices = found.answer["devices"]
        if not devices:
            return Discovery(
                kind=self.kind, why_not=f"{self.package} sees no device{self._nodes()}"
            )
        return Discovery(
            kind=self.kind,
            devices=tuple(
                self._info(index, device, found.answer) for index, device in enumerate(devices)
            ),
        )

    def _obstacle(self) -> str:
        """Why there can be no device, as far as can be seen without a child."""
        if importlib.util.find_spec(self.package) is None:
            return f"the package {self.package} is not installed ({self.install})"
        return ""

    def _unusable(self, failure: str) -> str:
        return f"{self.package} is installed but cannot be used: {failure}{self._nodes()}"

    def _nodes(self) -> str:
        """What the driver has to say: its device nodes are there or not."""
        if next(self._root.glob(self.node_pattern), None) is None:
            return f"; there is no device node /{self.node_pattern.replace('[0-9]', '')}"
        return ""

    def _info(self, index: int, device: Mapping[str, Any], survey: Mapping[str, Any]) -> DeviceInfo:
        """A device of the survey as a `DeviceInfo`."""
        total, split = device["memory_total_bytes"], self._split(device)
        return DeviceInfo(
            name=f"{self.kind}:{index}",
            kind=self.kind,
            description=f"{device['name']}, {device['units']}, {format_size(total)}",
            cores=topology.read_topology(self._root).cores,
            memory_total_bytes=total,
            preload=(self.package,),
            versions=dict(survey["versions"]),
            traits={
                "memory_free_bytes": str(device["memory_free_bytes"]),
                "batch_copy": survey["batch_copy"],
                "uuid": device.get("uuid", ""),
                "core_count": str(split["core_count"]),
            },
            **split,
        )

    @abstractmethod
    def _split(self, device: Mapping[str, Any]) -> dict[str, Any]:
        """How instances share a device of the survey: those fields of its `DeviceInfo`."""

    def assign_cores(self, config: Config, info: DeviceInfo) -> tuple[tuple[int, ...], ...]:
        """All host cores for every instance: what is split is the device."""
        return topology.assign_cores(info.cores, config.instance_count, "all")

    def environment(self, config: Config, info: DeviceInfo) -> dict[str, str]:
        """Those of the host side; what the user's shell or the configuration sets wins."""
        return effective_environment(config, os.environ)

    def framework_device(self, name: str) -> str:
        """torch's name for it, which is ours.

        Raises:
            UnavailableError: There is no such device.
        """
        self._check(name)
        return name if ":" in name else f"{name}:0"

    def open(self, name: str, seat: Seat | None = None) -> Device:
        """The child's side; the device is taken here.

        Raises:
            UnavailableError: There is no such device.
        """
        self._check(name)
        return self.device(int(name.partition(":")[2] or 0), seat or Seat())

    def _check(self, name: str) -> None:
        # In a child the device was found before: its package is there, and the rest will show.
        obstacle = self._obstacle()
        if obstacle:
            raise UnavailableError(f"device {name} is not available: {obstacle}")


class TorchAccelerator:
    """The child's side of a device that torch drives through streams.

    Attributes:
        kind: Its name in space files, in torch's names of devices, and as a module of torch.
        package: What has to be imported for torch to know it.
        runtime: That module: torch.npu, torch.cuda, torch.mlu.
    """

    kind: ClassVar[str]
    package: ClassVar[str] = "torch"

    def __init__(self, index: int, seat: Seat) -> None:
        importlib.import_module(self.package)
        self.runtime: Any = getattr(importlib.import_module("torch"), self.kind)
        self._name, self._seat = f"{self.kind}:{index}", seat
        self._host = CpuDevice()
        self.runtime.set_device(index)
        if seat.shares_process:  # the default stream is the whole process's
            self._stream = self.runtime.Stream()
            self.runtime.set_stream(self._stream)
        else:
            self._stream = self.runtime.current_stream()
        self._facts: dict[str, str] = {}

    def bind(self, cores: tuple[int, ...]) -> None:
        """Bind the host side; an instance's part of the device was set when it was opened."""
        self._host.bind(cores)

    def thread_count(self) -> int | None:
        """Threads of the host side."""
        return self._host.thread_count()

    def stage(
        self, inputs: Sequence[InputSpec], requests: Sequence[Sequence[Any]], config: Config
    ) -> Staging:
        """Copies from page-locked memory on streams, see `StreamStaging`."""
        method, note = self._copy_method(config)
        return StreamStaging(
            inputs,
            requests,
            config,
            device=self._name,
            runtime=self.runtime,
            stream=self._stream,
            method=method,
            is_native=self._batch_copy == NATIVE,
            note=note,
        )

    @property
    def _batch_copy(self) -> str:
        return self._seat.traits.get("batch_copy", "not probed")

    def _copy_method(self, config: Config) -> tuple[CopyMethod, str]:
        """How to copy, and what to say about it: what was asked for is never quietly replaced."""
        if not config.batched_h2d:
            return "separate", ""
        found = self._batch_copy
        is_native = found == NATIVE
        wanted = str(config.get("batched_h2d_method", "auto"))
        if wanted == "foreach" or (wanted == "auto" and is_native):
            return "foreach", "native batch copy" if is_native else f"no native batch copy: {found}"
        return "packed", "" if is_native else f"no native batch copy: {found}"

    def synchronize(self) -> None:
        """Wait for the instance's own stream: others of the process have theirs."""
        self._stream.synchronize()

    def reset_memory_peak(self) -> None:
        """Let the allocator's high-water mark start again from the present size."""
        self.runtime.reset_peak_memory_stats()

    def memory_peak_bytes(self) -> int | None:
        """Peak of what this process's allocator took from the device, since the reset."""
        return int(self.runtime.max_memory_reserved())

    def is_out_of_memory(self, error: BaseException) -> bool:
        """True for a failed allocation, on the device or the host."""
        import torch

        return isinstance(error, torch.OutOfMemoryError) or self._host.is_out_of_memory(error)

    def explain(self, error: BaseException) -> str:
        """Errors speak for themselves."""
        return ""

    def facts(self) -> Mapping[str, str]:
        """The device's part that the instance has, as it was asked for and read back."""
        return self._facts

    def profile(self, folder: Path) -> AbstractContextManager[Mark] | None:
        """By torch's own profiler."""
        return torch_trace(folder, self.kind)

    def wait_for_memory(self, limit_s: float) -> str:
        """Wait until as much is free as when the device was found."""
        wanted = int(self._seat.traits.get("memory_free_bytes", 0))
        least = wanted * (1 - MEMORY_TOLERANCE) - MEMORY_TOLERANCE_BYTES
        until_s = time.monotonic() + limit_s
        while True:
            free = int(self.runtime.mem_get_info()[0])
            if free >= least:
                return ""
            if time.monotonic() >= until_s:
                missing = format_size(wanted - free)
                return (
                    f"{missing} less memory was free on {self._name} than when the study began: "
                    "another process has it, or an earlier trial has not given it back"
                )
            time.sleep(MEMORY_POLL_S)

    def close(self) -> None:
        """Wait for what is under way; the device itself is given back when the process ends."""
        self.synchronize()


_ERROR_CODE = re.compile(r"error code is (\d+)")


def error_code(error: BaseException) -> int | None:
    """The runtime's own code in an error's text, None if it names none."""
    match = _ERROR_CODE.search(describe(error))
    return None if match is None else int(match[1])


def surveyed(
    runtime: Any, own: Callable[[Any], Mapping[str, Any]], **beside: Any
) -> dict[str, Any]:
    """The answer of a survey: plain data about the devices that torch sees.

    Args:
        runtime: torch.npu, torch.cuda, torch.mlu.
        own: From a device's properties, while it is the current one: `units`, what is in it in
            words, and what `AcceleratorKind._split` wants to know.
        beside: `versions` by name; `batch_copy`, NATIVE or why a call for many tensors is not one
            operation.
    """
    devices = []
    for index in range(runtime.device_count()):
        runtime.set_device(index)
        free, total = runtime.mem_get_info()
        devices.append(
            {
                "name": str(runtime.get_device_name(index)),
                "memory_free_bytes": int(free),
                "memory_total_bytes": int(total),
                **own(runtime.get_device_properties(index)),
            }
        )
    return {"devices": devices, **beside}
