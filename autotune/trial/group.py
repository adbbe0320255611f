"""From a configuration and a space to what the trial layer runs."""

from __future__ import annotations

from dataclasses import replace

from autotune.core.records import Config, GroupSpec, Plan, Window, WorkloadSpec
from autotune.devices import device_kind
from autotune.devices.base import DeviceInfo
from autotune.space.search_space import SearchSpace
from autotune.workloads import WORKLOADS


def group_spec(config: Config, space: SearchSpace, info: DeviceInfo) -> GroupSpec:
    """The group that runs a configuration on a device.

    Raises:
        UsageError: The configuration needs more cores than the device has.
    """
    spec = GroupSpec(
        config=config,
        workload=workload_of(config, space.workload),
        devices=(info.name,),
        cores=((),) * config.instance_count,
        seed=space.trial.seed,
    )
    if WORKLOADS[space.workload.kind].runs != "child":
        return spec  # no cores of this machine are needed, or an outside program takes its own
    kind = device_kind(info.kind)
    return replace(
        spec,
        cores=kind.assign_cores(config, info),
        environment={**kind.environment(config, info), **config.environment()},
        preload=info.preload,
        traits=info.traits,
    )


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
