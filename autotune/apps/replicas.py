"""How many replicas a pipeline has on the devices that are named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.core.pipeline import PARAMETERS
from autotune.core.records import Config
from autotune.space.rules import Rule
from autotune.space.search_space import Parameter, SearchSpace
from autotune.workloads.pipeline.layout import most_replicas


def with_replicas(space: SearchSpace, devices: int) -> SearchSpace:
    """The space with as many replicas as the devices hold, where it does not name them.

    A parameter with a value for every number of stages, and a rule for each that pairs the two.
    """
    if space.parameter("replicas") is not None:
        return space
    batches = _numbers(space, "global_batch_size")
    fitting = {
        stages: most_replicas(devices, stages, batches) for stages in _numbers(space, "stage_count")
    }
    if set(fitting.values()) == {1}:
        return space
    paired = (f"stage_count != {s} or replicas == {r}" for s, r in fitting.items())
    return replace(
        space,
        params=(
            *space.params,
            Parameter(name="replicas", choices=tuple(sorted(set(fitting.values())))),
        ),
        rules=(*space.rules, *(Rule(text=text) for text in paired)),
        baseline=_replicated(space.baseline, fitting),
        wanted_baseline=_replicated(space.wanted_baseline, fitting),
        notes=(*space.notes, _note(devices, fitting)),
    )


def _replicated(config: Config, fitting: dict[int, int]) -> Config:
    """The configuration with the replicas of its number of stages."""
    if "replicas" in config.as_dict():
        return config
    wanted = int(config.get("stage_count", PARAMETERS["stage_count"]))
    nearest = min(fitting, key=lambda stages: abs(stages - wanted))
    return config.changed(replicas=fitting[nearest])


def _numbers(space: SearchSpace, name: str) -> Sequence[int]:
    parameter = space.parameter(name)
    return [int(c) for c in parameter.choices] if parameter else [int(PARAMETERS[name])]


def _note(devices: int, fitting: dict[int, int]) -> str:
    told = ", ".join(
        f"{replicas} x {stages} stages"
        + (f" ({devices - replicas * stages} idle)" if replicas * stages < devices else "")
        for stages, replicas in fitting.items()
        if replicas * stages <= devices
    )
    return f"replicas is not named, so that it follows from the {devices} devices: {told}"
