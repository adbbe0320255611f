"""The pipeline as a kind of workload: what is checked before, and a rank of it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING

from autotune.core.clock import Clock
from autotune.core.errors import UnavailableError, UsageError
from autotune.core.pipeline import Pass
from autotune.core.records import GroupSpec, WorkloadSpec
from autotune.workloads import user_code
from autotune.workloads.pipeline.chain import BUILT_IN, TRAINING, sizes

if TYPE_CHECKING:
    from autotune.workloads.pipeline.ranks.rank import Rank

OPTIMIZERS = ("sgd", "adamw", "none")
PRECISIONS = ("float32", "bfloat16", "float16")


def check(spec: WorkloadSpec) -> None:
    """Find mistakes early, without importing a framework.

    Raises:
        UsageError: Model, option or precision are wrong. UnavailableError: torch is missing.
    """
    options = {**TRAINING, **spec.options}
    for name in ("forward_only", "compare"):
        if not isinstance(options[name], bool):
            raise UsageError(f"workload.options.{name}: {options[name]!r} is not true or false")
    if options["optimizer"] not in OPTIMIZERS:
        raise UsageError(
            f"workload.options.optimizer: {options['optimizer']!r} is none of "
            f"{', '.join(OPTIMIZERS)}"
        )
    if spec.precision not in PRECISIONS:
        raise UsageError(
            f"workload.precision: {spec.precision!r} is none of {', '.join(PRECISIONS)}"
        )
    if spec.data is not None:
        raise UsageError(
            "workload.data: a pipeline takes random items of its inputs' ranges; leave data out"
        )
    if spec.call != "auto":
        raise UsageError(
            f"workload.call: {spec.call} is of a single model; a pipeline's layers take tensors, "
            "one parameter each"
        )
    factory = user_code.FactoryPath.parse(spec.model, spec.base_dir)
    if factory is not None:
        user_code.check(factory)
    elif spec.model in BUILT_IN:
        BUILT_IN[spec.model].numbers(sizes(spec))
    else:
        raise UsageError(
            f"workload.model: no built-in chain {spec.model!r} (there are {', '.join(BUILT_IN)}), "
            "and it is not of the form path.py:factory"
        )
    if importlib.util.find_spec("torch") is None:
        raise UnavailableError(
            "workload.runtime: a pipeline needs the package torch; install it with: "
            "pip install 'autotune-npu[cpu]'"
        )


def preload(spec: WorkloadSpec) -> tuple[str, ...]:
    """torch with its pipelining, and all built-ins: one warm process then does for every model."""
    common = ("torch", "torch.distributed.pipelining", "autotune.workloads.pipeline.ranks.rank")
    return (*common, *(built_in.module for built_in in BUILT_IN.values()))


def rank(
    *,
    rank: int,
    spec: GroupSpec,
    device: str,
    clock: Clock,
    wait: Callable[[], None],
    known: Pass | None,
) -> Rank:
    """This process as one of the ranks, which must have joined the others already.

    Args:
        device: What torch calls its device. `wait`: Waits until that has done its work.
        known: What was found of the model without a pipeline; None: rank 0 finds it.
    """
    from autotune.workloads.pipeline.ranks.rank import Rank, Seat

    seat = Seat(
        rank=rank,
        config=spec.config,
        workload=spec.workload,
        device=device,
        seed=spec.seed,
        clock=clock,
        wait=wait,
    )
    return Rank(seat, known)
