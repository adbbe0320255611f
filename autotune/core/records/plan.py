"""What crosses into the processes of a trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from autotune.core.records.config import Config
from autotune.core.records.workload import Load, WorkloadSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """A group of instances that runs one configuration.

    Attributes:
        devices: Device names such as "cpu" or "npu:0", `config.device_count` of them; instances
            fill one after the other.
        cores: Host cores of each instance, `config.total_instances` tuples of core ids.
        environment: Variables set before any framework is imported.
        seed: Seed of weights and of random inputs.
        preload: Modules that the devices' side in a trial imports.
        traits: What was found out about the devices that their side in a trial needs to know.
    """

    config: Config
    workload: WorkloadSpec
    devices: tuple[str, ...]
    cores: tuple[tuple[int, ...], ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    preload: tuple[str, ...] = ()
    traits: Mapping[str, str] = field(default_factory=dict)

    def device_of(self, instance: int) -> str:
        """The device that an instance runs on."""
        return self.devices[instance // self.config.instance_count]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of time that is measured; exactly one of `duration_s`, `iterations` is set.

    Attributes:
        start_s: Start on the machine's monotonic clock; None: as soon as all instances are warm.
        iterations: Calls of the whole group, shared out evenly over the instances; where there is
            a queue, the number of requests.
        item_count: Items of each call without a queue; None: the configuration's batch size.
    """

    start_s: float | None = None
    duration_s: float | None = None
    iterations: int | None = None
    item_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a session is to measure.

    Attributes:
        windows: Measured one after the other.
        arrival_seed: Seed of an open load's arrivals.
        deadline_s: Seconds from now after which the group is killed.
    """

    windows: tuple[Window, ...]
    load: Load = Load()
    arrival_seed: int = 0
    kind: Literal["time", "profile"] = "time"
    deadline_s: float = 60.0
