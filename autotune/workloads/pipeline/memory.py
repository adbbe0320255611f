"""The memory that a rank needs at least, known before it is started."""

from __future__ import annotations

from autotune.core.errors import OutOfMemory
from autotune.core.pipeline import Pass
from autotune.core.records import Config
from autotune.core.units import format_size
from autotune.workloads.pipeline.chain import TRAINING
from autotune.workloads.pipeline.layout import Layout, setting

KEPT_PER_WEIGHT = {"none": 0, "sgd": 0, "adamw": 2}
"""Numbers that an optimizer keeps beside every weight and its gradient."""


def least_bytes(config: Config, known: Pass, options: dict[str, object]) -> tuple[int, ...]:
    """What every rank of a replica needs at least: weights, what belongs to them, activations.

    Args:
        known: Of the model without a pipeline; without sizes nothing is needed.
        options: Of the workload.
    """
    layout, layers = Layout.of(config), len(known.parameter_bytes)
    if not layers:
        return (0,) * layout.ranks
    times_s = [f + b for f, b in zip(known.forward_s, known.backward_s, strict=True)]
    counts = layout.counts(str(setting(config, "stage_split")), layers, times_s)
    chosen = {**TRAINING, **options}
    trains = not chosen["forward_only"]
    copies = 1 + KEPT_PER_WEIGHT[str(chosen["optimizer"])] if trains else 0  # beside the weights
    trained = known.trained_bytes or known.parameter_bytes
    recomputes = bool(setting(config, "activation_checkpointing"))
    needed = []
    for place in range(layout.ranks):
        own = [
            layer
            for stage in layout.stages_of(place)
            for layer in range(sum(counts[:stage]), sum(counts[: stage + 1]))
        ]
        weights = sum(known.parameter_bytes[layer] + copies * trained[layer] for layer in own)
        kept = sum(known.activation_bytes[layer] for layer in own) * layout.items
        held = 0 if recomputes or not trains else in_flight(layout, place)
        needed.append(int(weights + held * kept))
    return tuple(needed)


def in_flight(layout: Layout, place: int) -> int:
    """Micro-batches whose activations a rank holds at once, at least.

    All of them where every forward pass comes before the first backward pass; with one forward,
    one backward as many as there are ranks from this one on (Narayanan et al. 2021, section 2.2).
    """
    if layout.schedule in ("GPipe", "LoopedBFS"):
        return layout.micro_batches
    if layout.schedule == "1F1B":
        return min(layout.micro_batches, layout.ranks - place)
    return 1


def check_memory(needed: tuple[int, ...], free_bytes: int, *, together: bool) -> None:
    """Refuse what cannot fit.

    Args:
        free_bytes: Of each rank's device, or of the host for all ranks.
        together: They share it.
    Raises:
        OutOfMemory: It does not; says what is needed.
    """
    asked = sum(needed) if together else max(needed)
    if asked <= free_bytes:
        return
    who = "the ranks together" if together else f"rank {needed.index(asked)}"
    raise OutOfMemory(
        f"not started: {who} would need {format_size(asked)} at least, and "
        f"{format_size(free_bytes)} are free"
    )
