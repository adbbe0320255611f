"""From a configuration and a space to what the trial layer runs."""

from __future__ import annotations

from dataclasses import replace

from autotune.core.errors import UsageError
from autotune.core.records import Config, GroupSpec, Plan, Window, WorkloadSpec
from autotune.devices import device_kind
from autotune.devices.base import DeviceInfo
from autotune.devices.topology import assign_cores
from autotune.space.search_space import SearchSpace
from autotune.workloads import WORKLOADS
from autotune.workloads.pipeline.layout import Layout


def group_spec(config: Config, space: SearchSpace, info: DeviceInfo) -> GroupSpec:
    """The group that runs a configuration on a device.

    Raises:
        UsageError: The configuration needs more cores than the device has, or more devices than
            there are.
    """
    if WORKLOADS[space.workload.kind].runs == "ranks":
        return _ranks(config, space, info)
    infos = _devices(config, space.workload, info)
    spec = GroupSpec(
        config=config,
        workload=workload_of(config, space.workload),
        devices=tuple(one.name for one in infos),
        cores=((),) * config.total_instances,
        seed=space.trial.seed,
    )
    if WORKLOADS[space.workload.kind].runs != "child":
        return spec  # no cores of this machine are needed, or an outside program takes its own
    kind = device_kind(info.kind)
    return replace(
        spec,
        cores=tuple(cores for one in infos for cores in kind.assign_cores(config, one)),
        environment={**kind.environment(config, info), **config.environment()},
        preload=info.preload,
        traits=info.traits,
    )


def _ranks(config: Config, space: SearchSpace, info: DeviceInfo) -> GroupSpec:
    """The ranks of a pipeline: each has an accelerator of its own, or a part of the host's cores.

    Raises:
        UsageError: The configuration cannot be run, or there are fewer devices than ranks.
    """
    layout = Layout.of(config)
    count = layout.ranks * layout.replicas
    kind = device_kind(info.kind)
    workload = replace(
        space.workload, precision=str(config.get("precision", space.workload.precision))
    )
    spec = GroupSpec(
        config=config,
        workload=workload,
        devices=(info.name,) * count,
        cores=(),
        environment={**kind.environment(config, info), **config.environment()},
        seed=space.trial.seed,
        preload=info.preload,
        traits=info.traits,
    )
    if info.kind == "cpu":
        everything = [core for node in info.cores for core in node]
        if count > len(everything):  # then they share them, each still on a single one
            own = tuple((everything[rank % len(everything)],) for rank in range(count))
            return replace(spec, cores=own)
        return replace(spec, cores=assign_cores(info.cores, count, info.core_count // count))
    infos = (info, *info.peers)[:count]
    if len(infos) < count:
        raise UsageError(
            f"{count} ranks need as many devices; of {info.kind} there are {len(infos)}"
        )
    cores = assign_cores(info.cores, count, "all")
    return replace(spec, devices=tuple(one.name for one in infos), cores=cores)


def _devices(config: Config, workload: WorkloadSpec, info: DeviceInfo) -> tuple[DeviceInfo, ...]:
    """The devices that a configuration takes; a program or a record sees to its own."""
    if WORKLOADS[workload.kind].runs not in ("child", "virtual"):
        return (info,)
    count = config.device_count
    found = (info, *info.peers)[:count]
    if len(found) < count:
        raise UsageError(f"device_count={count}, but of {info.name} there are {len(found)} here")
    return found


def workload_of(config: Config, workload: WorkloadSpec) -> WorkloadSpec:
    """The workload in the runtime and precision that a configuration chooses."""
    runtime = str(config.get("runtime", workload.kind))
    precision = str(config.get("precision", workload.precision))
    if WORKLOADS[workload.kind].runs != "child":
        return workload  # there these are columns or placeholders like any other
    return replace(workload, kind=runtime, precision=precision)


def trial_plan(space: SearchSpace, *, arrival_seed: int = 0) -> Plan:
    """The plan of a plain trial: one window.

    Args:
        arrival_seed: A fresh number for every measurement whose noise is to be independent.
    """
    options = space.trial
    window = Window(duration_s=options.duration_s, iterations=options.iterations)
    return Plan(
        windows=(window,),
        load=space.objective.load,
        arrival_seed=arrival_seed,
        deadline_s=options.timeout_s,
    )
