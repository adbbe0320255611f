"""`autotune rank`: this process as one rank of a pipeline that somebody else starts.

torchrun starts such processes on one machine or on several and tells each by variables who it is
(RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT). As an outside program
(`workload.command`) it lets a study tune a pipeline over several machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.apps.resolve import only_config
from autotune.core.clock import MonotonicClock
from autotune.core.errors import UsageError
from autotune.core.records import GroupSpec, Measurement, Samples
from autotune.devices import find_device
from autotune.devices.collectives import leave
from autotune.devices.topology import assign_cores
from autotune.measure.engine import merge, warmup_cap_s
from autotune.measure.pipeline_guard import compare_passes
from autotune.measure.summary import summarise
from autotune.space.search_space import SearchSpace
from autotune.trial import messages
from autotune.trial.group import trial_plan
from autotune.trial.ranks import RankProcess
from autotune.workloads import WORKLOADS, check_workload
from autotune.workloads.pipeline.layout import Layout

AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
REPORTED = ("throughput_items_per_s", "latency_mean_s", "latency_p50_s", "latency_p99_s",
            "memory_peak_bytes")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Who this process is among the ranks, as torchrun's variables say."""

    rank: int
    count: int
    local_rank: int
    local_count: int
    host: str
    port: int
    has_agent: bool

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Place:
        """Read the variables.

        Raises:
            UsageError: One is missing or no number.
        """
        try:
            rank, count = int(environment["RANK"]), int(environment["WORLD_SIZE"])
            return cls(
                rank=rank,
                count=count,
                local_rank=int(environment.get("LOCAL_RANK", rank)),
                local_count=int(environment.get("LOCAL_WORLD_SIZE", count)),
                host=environment["MASTER_ADDR"],
                port=int(environment["MASTER_PORT"]),
                has_agent=environment.get(AGENT_STORE) == "True",
            )
        except (KeyError, ValueError) as error:
            raise UsageError(
                f"autotune rank: {error}; torchrun --nproc-per-node N -m autotune rank … sets "
                "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
            ) from None


def run_rank(space: SearchSpace, environment: Mapping[str, str]) -> Measurement | None:
    """Be one rank of a space's one configuration: the first step compared, a window measured.

    Returns:
        The measurement on rank 0, None on the others.
    Raises:
        UsageError: It is no pipeline, has several configurations, or not as many ranks.
        WrongOutput: Loss or gradients are not those of the model without a pipeline.
    """
    place = Place.of(environment)
    spec, kind = _group(space, place)
    plan = trial_plan(space)
    meeting = messages.Meeting(
        place.host, place.port, space.trial.timeout_s, has_agent=place.has_agent
    )
    process = RankProcess(
        messages.Open(spec, kind, (place.rank,), meeting=meeting), MonotonicClock(), -1
    )
    process.open()
    process.warm_up(warmup_cap_s(plan), ())
    samples = process.measure(plan, MonotonicClock().now_s())
    parts: list[tuple[Samples, Any]] = process.gathered((samples, process.first))
    leave()
    if place.rank:
        return None
    assert process.reference is not None
    compare_passes([first for _, first in parts], process.reference, spec.workload.precision)
    return summarise(merge([part for part, _ in parts]))


def reported(measurement: Measurement) -> dict[str, float]:
    """What an outside program prints as its last line, as a study reads it."""
    figures = {name: getattr(measurement, name) for name in REPORTED}
    return {name: float(value) for name, value in figures.items() if value is not None}


def _group(space: SearchSpace, place: Place) -> tuple[GroupSpec, str]:
    """The group as this machine sees it: its own device stands for those of all."""
    if WORKLOADS[space.workload.kind].runs != "ranks":
        raise UsageError(f"autotune rank: {space.workload.kind} has no ranks")
    check_workload(space.workload)
    config = only_config(space)
    layout = Layout.of(config)
    if space.parameter("replicas") is None:
        config = config.changed(replicas=max(place.count // layout.ranks, 1))
        layout = Layout.of(config)
    if layout.ranks * layout.replicas != place.count:
        raise UsageError(
            f"stage_count={layout.ranks} x replicas={layout.replicas} is not the "
            f"{place.count} ranks that were started"
        )
    info = find_device(space.device)
    here, everything = (info, *info.peers), [core for node in info.cores for core in node]
    if info.kind == "cpu":
        share = max(1, len(everything) // place.local_count)
        name = info.name
        fits = share * place.local_count <= len(everything)
        cores = (
            assign_cores(info.cores, place.local_count, share)[place.local_rank]
            if fits
            else (everything[place.local_rank % len(everything)],)
        )
    elif place.local_rank < len(here):
        name, cores = here[place.local_rank].name, tuple(everything)
    else:
        raise UsageError(f"local rank {place.local_rank}, but there are {len(here)} {info.kind}")
    spec = GroupSpec(
        config=config,
        workload=space.workload,
        devices=(name,) * place.count,
        cores=(cores,) * place.count,
        seed=space.trial.seed,
        traits=info.traits,
    )
    return spec, info.kind
