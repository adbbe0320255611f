"""A device that does not exist: it declares its size, and simulated workloads move its clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.core.errors import UsageError
from autotune.core.records import Config, InputSpec
from autotune.devices.base import Device, DeviceInfo, Discovery, Mark, Seat, Staging
from autotune.devices.splits import split_ladder

CUBE_COUNT = 24
VECTOR_COUNT = 48
MEMORY_BYTES = 64 * 2**30
DEVICE_COUNT = 64
"""Of the machine that is simulated, for trials with `device_count`."""


class SimulatedKind:
    """An accelerator with 24 matrix and 48 vector units and 64 GiB, all of it declared."""

    collectives = ""
    is_exclusive = False

    def discover(self) -> Discovery:
        """The one simulated device, which is there on every machine."""
        info = DeviceInfo(
            name="simulated",
            kind="simulated",
            description="a declared cost model on a virtual clock; no measurement",
            core_count=CUBE_COUNT,
            memory_total_bytes=MEMORY_BYTES,
            facts={
                "core_count": CUBE_COUNT,
                "cube_count": CUBE_COUNT,
                "vector_count": VECTOR_COUNT,
            },
            core_ladder=split_ladder(CUBE_COUNT, VECTOR_COUNT),
            splits=("count", "cube|vector"),
        )
        peers = tuple(replace(info, name=f"simulated:{i}") for i in range(1, DEVICE_COUNT))
        return Discovery(kind="simulated", devices=(replace(info, peers=peers),))

    def assign_cores(self, config: Config, info: DeviceInfo) -> tuple[tuple[int, ...], ...]:
        """No host cores for any instance: nothing runs on the host."""
        return ((),) * config.instance_count

    def environment(self, config: Config, info: DeviceInfo) -> dict[str, str]:
        """Only what the configuration itself asks for."""
        return config.environment()

    def framework_device(self, name: str) -> str:
        """No framework is involved; its name is handed through."""
        return name

    def open(self, name: str, seat: Seat | None = None) -> Device:
        """The child's side; its memory and threads are unknown, its time is the clock's."""
        return SimulatedDevice()


class SimulatedDevice:
    """The child's side of the simulated device: nothing to bind, to wait for or to release."""

    def bind(self, cores: tuple[int, ...]) -> None:
        """Nothing runs on host cores."""

    def thread_count(self) -> int | None:
        """There are no threads to count."""
        return None

    def stage(
        self, inputs: Sequence[InputSpec], requests: Sequence[Sequence[Any]], config: Config
    ) -> Staging:
        """Raise UsageError: a simulated program does its whole call by itself."""
        raise UsageError("device simulated runs simulated workloads only; set device: cpu")

    def synchronize(self) -> None:
        """Simulated work is done when its call returns."""

    def reset_memory_peak(self) -> None:
        """A simulated program declares its memory itself."""

    def memory_peak_bytes(self) -> int | None:
        """Unknown: a simulated program declares its memory itself."""
        return None

    def is_out_of_memory(self, error: BaseException) -> bool:
        """True for a MemoryError; declared limits raise the tool's own OutOfMemory."""
        return isinstance(error, MemoryError)

    def explain(self, error: BaseException) -> str:
        """Errors speak for themselves."""
        return ""

    def facts(self) -> Mapping[str, str]:
        """Nothing is there to be had."""
        return {}

    def profile(self, folder: Path) -> AbstractContextManager[Mark] | None:
        """Nothing runs; its cost model says where the time goes."""
        return None

    def wait_for_memory(self, limit_s: float) -> str:
        """The system takes memory back when a process ends."""
        return ""

    def close(self) -> None:
        """Nothing is held."""
