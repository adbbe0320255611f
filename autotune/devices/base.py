"""What a device is to the rest of the tool. One file per kind; its quirks stay in that file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Union, runtime_checkable

from autotune.core.records import Config, InputSpec, StageTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """A device as seen from outside, without touching it.

    Attributes:
        name: As a space file names it: "cpu", "npu:0".
        cores: Host cores an instance may be bound to, grouped by NUMA node.
        core_count: Units that `cores_per_instance` splits: CPU cores, SMs, AI Cores.
        facts: Names that rules may use, such as cube_count and vector_count.
        core_ladder: Values that `cores_per_instance: auto` stands for.
        splits: How `cores_per_instance` can be written beside "all": "count", "cube|vector";
            empty where the device cannot be split.
        why_whole: Why it cannot be split, for a message.
        rules: Rules that every configuration on this device must meet.
        preload: Modules that its side in a trial imports, safe to import before a fork.
        traits: What was found out about it that its side in a trial needs to know.
        peers: Further devices of its kind on this machine, in the order in which a trial with
            `device_count` takes them.
    """

    name: str
    kind: str
    description: str
    core_count: int
    cores: tuple[tuple[int, ...], ...] = ()
    memory_total_bytes: int | None = None
    facts: Mapping[str, int] = field(default_factory=dict)
    core_ladder: tuple[int | str, ...] = ("all",)
    splits: tuple[str, ...] = ("count",)
    why_whole: str = ""
    rules: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    traits: Mapping[str, str] = field(default_factory=dict)
    peers: tuple[DeviceInfo, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What an instance is to have of its device.

    Attributes:
        shares_process: True if the instance is one of several threads of a process.
        traits: Those of the device, see `DeviceInfo`.
    """

    config: Config = Config()
    shares_process: bool = False
    traits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """The devices of one kind on this machine, or why there is none."""

    kind: str
    devices: tuple[DeviceInfo, ...] = ()
    why_not: str = ""


class Staging(Protocol):
    """Host-to-device copies of one instance: a ring of host requests, persistent device tensors.

    Attributes:
        copies_per_call: Copy operations for all micro-batches of one call.
        method: What is really done, for the record: "separate", "packed", ...
    """

    copies_per_call: int
    method: str

    def load(self, call: int, micro_batch: int, items: int | None = None) -> Sequence[Any]:
        """Copy one micro-batch of request `call` (modulo the ring) to the device.

        Args:
            items: Only this many of its items, the first ones; None: all.
        Returns:
            The model's input tensors in the order of the input specs, of `items` items. They
            are overwritten two loads later.
        """
        ...


Mark = Callable[[str], AbstractContextManager[Any]]
"""Names a stretch of a recording."""

Part = tuple[int, Union[int, None]]
"""A micro-batch of a call: its number, and how many of its items count; None: all."""


@runtime_checkable
class Pipeline(Staging, Protocol):
    """Staging of a device that copies and computes at the same time."""

    def run_call(self, call: int, parts: Sequence[Part], run: Callable[..., Any]) -> StageTimes:
        """Copy the micro-batches, run each, bring the outputs to the host, wait for all of it.

        The next micro-batch is copied while the present one is computed.

        Returns:
            The stages as the device clocked them; where they overlap, their sum is more than
            the call took.
        """
        ...


class DeviceKind(Protocol):
    """The parent's side of a device: nothing here imports a framework or touches the device.

    Attributes:
        collectives: torch's backend for several of them that work together; empty: there is none.
        is_exclusive: One measurement at a time, so that whoever measures reserves the device.
    """

    collectives: str
    is_exclusive: bool

    def discover(self) -> Discovery: ...

    def assign_cores(self, config: Config, info: DeviceInfo) -> tuple[tuple[int, ...], ...]:
        """Host cores of each instance.

        Raises:
            UsageError: The instances need more cores than there are.
        """
        ...

    def environment(self, config: Config, info: DeviceInfo) -> dict[str, str]:
        """Variables that a child needs before it imports a framework."""
        ...

    def framework_device(self, name: str) -> str:
        """What the framework calls the device `name`."""
        ...

    def open(self, name: str, seat: Seat | None = None) -> Device:
        """The child's side of the device `name`."""
        ...


class Device(Protocol):
    """The child's side of a device: one object per instance, made after the fork."""

    def bind(self, cores: tuple[int, ...]) -> None:
        """Limit this instance to its cores and read back that it is; may be called again."""
        ...

    def thread_count(self) -> int | None:
        """Threads the framework really uses now."""
        ...

    def stage(
        self, inputs: Sequence[InputSpec], requests: Sequence[Sequence[Any]], config: Config
    ) -> Staging:
        """Set up the copies for `config`.

        Args:
            requests: The ring: per request one numpy array per input, of whole batches.
        """
        ...

    def synchronize(self) -> None:
        """Wait until all launched work is done."""
        ...

    def reset_memory_peak(self) -> None: ...

    def memory_peak_bytes(self) -> int | None:
        """Peak of this instance's own memory since the last reset, None if unknown."""
        ...

    def is_out_of_memory(self, error: BaseException) -> bool: ...

    def explain(self, error: BaseException) -> str:
        """An error of the device's runtime in one sentence, empty if there is nothing to add."""
        ...

    def facts(self) -> Mapping[str, str]:
        """What the instance really has of the device, for the record."""
        ...

    def profile(self, folder: Path) -> AbstractContextManager[Mark] | None:
        """Record what runs meanwhile into files in `folder`.

        The context gives what names a stretch of it. None: nothing here can be recorded.
        """
        ...

    def wait_for_memory(self, limit_s: float) -> str:
        """Wait until what earlier trials held is free again.

        Returns:
            What the user should know if it is not within the limit, else nothing.
        """
        ...

    def close(self) -> None: ...
