"""The parameters of a pipeline, and those of an inference that a pipeline does not have."""

from __future__ import annotations

from collections.abc import Callable

from autotune.core.pipeline import PARAMETERS, SCHEDULES
from autotune.core.records import Scalar, WorkloadSpec
from autotune.space import scalars
from autotune.space.parameters import Refused
from autotune.space.search_space import Parameter
from autotune.space.strict_yaml import Node

PIPELINE = "pipeline"

READERS: dict[str, Callable[[Node], Scalar]] = {
    "global_batch_size": scalars.whole(),
    "stage_count": scalars.whole(),
    "schedule": scalars.one_of(tuple(SCHEDULES)),
    "stage_split": scalars.text,
    "chunks_per_rank": scalars.whole(),
    "activation_checkpointing": scalars.boolean,
    "gradient_accumulation": scalars.whole(),
    "replicas": scalars.whole(),
    "bucket_size": scalars.quantity("size"),
    "overlap": scalars.boolean,
}
"""By name, how a value is read."""

INFERENCE_ONLY = {
    "batch_size": "write global_batch_size, the items of a whole step",
    "instance_count": "write replicas, so many pipelines side by side",
    "device_count": "stage_count x replicas devices take part",
    "cores_per_instance": "ranks share the host's cores equally",
    "batched_h2d": "a step's items are on the device already",
    "instance_mode": "every rank is a process",
    "max_queue_delay": "nothing arrives",
}
"""Parameters that a pipeline does not have, and what it has instead."""


def check(params: tuple[Parameter, ...], workload: WorkloadSpec) -> None:
    """Refuse parameters that belong to the other kind of workload.

    Raises:
        Refused: There is one.
    """
    if workload.kind == PIPELINE and all(p.name != "global_batch_size" for p in params):
        raise Refused("global_batch_size is missing: the items of a step over all replicas")
    for parameter in params:
        name = parameter.name
        if workload.kind == PIPELINE and name in INFERENCE_ONLY:
            raise Refused(f"a pipeline has no {name}: {INFERENCE_ONLY[name]}", name)
        if workload.kind == PIPELINE and name == "runtime":
            raise Refused("a pipeline has one runtime; write workload.runtime: pipeline", name)
        belongs = name in PARAMETERS or name == "chunks_per_rank"
        if workload.kind != PIPELINE and belongs:
            raise Refused(f"{name} is a pipeline's; write workload.runtime: pipeline", name)
