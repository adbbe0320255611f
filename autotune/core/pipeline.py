"""Pipelines in values: schedules, where stages lie, what their ranks did, what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

PARAMETERS: dict[str, bool | int | str] = {
    "global_batch_size": 1,
    "stage_count": 2,
    "schedule": "GPipe",
    "stage_split": "even",
    "activation_checkpointing": False,
    "gradient_accumulation": 1,
    "replicas": 1,
    "bucket_size": 25 * 2**20,
    "overlap": True,
}
"""What a pipeline's configuration has beside `micro_batch_count`, with the defaults; stages per
rank (`chunks_per_rank`) are by default one, two of a schedule that interleaves."""


NOT_OF_PIPELINES = ("batch_size", "instance_count", "cores_per_instance", "batched_h2d")
"""Of the dimensions that every configuration has, those that mean nothing for a pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """An order of the micro-batches' forward and backward passes.

    Attributes:
        single: One stage per rank; otherwise `chunks_per_rank` of them.
        placement: How stages are laid on ranks: "loop" is rank, rank + S, ...; "v" turns round
            at the last rank.
        splits_backward: Gradients of inputs and of weights are taken one after the other.
        source: Where it is described.
    """

    single: bool = False
    placement: Literal["loop", "v"] = "loop"
    splits_backward: bool = False
    source: str = ""


SCHEDULES: dict[str, Schedule] = {
    "GPipe": Schedule(single=True, source="Huang et al. 2019, arXiv 1811.06965"),
    "1F1B": Schedule(single=True, source="Narayanan et al. 2019, PipeDream-Flush"),
    "Interleaved1F1B": Schedule(source="Narayanan et al. 2021, arXiv 2104.04473"),
    "LoopedBFS": Schedule(source="Lamy-Poirier 2022, arXiv 2211.05953"),
    "InterleavedZeroBubble": Schedule(
        splits_backward=True, source="Qi et al. 2023, arXiv 2401.10241"
    ),
    "ZBVZeroBubble": Schedule(
        placement="v", splits_backward=True, source="Qi et al. 2023, arXiv 2401.10241"
    ),
    "DualPipeV": Schedule(
        placement="v", splits_backward=True, source="DeepSeek-AI 2024, arXiv 2412.19437"
    ),
}
"""Named as in torch.distributed.pipelining, without the word Schedule before them."""


class Span(NamedTuple):
    """A piece of work of one rank in one step.

    Attributes:
        kind: F forward, B whole backward, I backward to the inputs, W to the weights,
            R reduction of gradients over replicas, U update of the weights.
        stage, micro_batch: What it was of; -1 where it is of no single one.
        start_s, end_s: Since the step began.
    """

    kind: str
    stage: int
    micro_batch: int
    start_s: float
    end_s: float


class StepTrace(NamedTuple):
    """One step of one rank: its length by the slowest rank, and what this rank did."""

    duration_s: float
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """What one rank kept of the last steps it ran.

    Attributes:
        replica, place: Which pipeline it belongs to, and its place in it.
        stages: The stages it holds, and how many layers each has.
        chunks: Stages per rank. `micro_batches`: of a step of one replica, all rounds of it.
        loss, loss_difference, gradient_difference: As of `PipelineFigures`; known of rank 0.
    """

    rank: int
    replica: int
    place: int
    stages: tuple[int, ...]
    layers: tuple[int, ...]
    schedule: str
    chunks: int
    micro_batches: int
    rounds: int
    steps: tuple[StepTrace, ...]
    memory_peak_bytes: int | None = None
    loss: float | None = None
    loss_difference: float | None = None
    gradient_difference: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Loss and gradients of one step on given data, and what each layer took.

    Attributes:
        loss: Mean over the global batch.
        gradient_norms: By layer, the Euclidean norm of its parameters' gradients; those a rank
            does not hold are left out.
        forward_s, backward_s: By layer, of one micro-batch; empty unless it was timed.
        parameter_bytes, activation_bytes: By layer; activations are what is kept of one item for
            the backward pass. trained_bytes: of the parameters that have gradients.
        untold: Why there is none of it; empty if there is.
    """

    loss: float | None = None
    gradient_norms: Mapping[str, float]
    forward_s: tuple[float, ...] = ()
    backward_s: tuple[float, ...] = ()
    parameter_bytes: tuple[int, ...] = ()
    trained_bytes: tuple[int, ...] = ()
    activation_bytes: tuple[float, ...] = ()
    untold: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFigures:
    """Where one rank's time went in the step that is shown.

    Attributes:
        busy_s: Computing. waiting_s: For another rank's result, or for the others to end.
        communication_s: Beyond that between two pieces of work: transfers and launches.
        reduction_s, update_s: Gradients over replicas; weights.
        in_flight: Most micro-batches at once whose activations were kept.
    """

    rank: int
    stages: tuple[int, ...]
    layers: tuple[int, ...]
    busy_s: float
    waiting_s: float
    communication_s: float
    reduction_s: float = 0.0
    update_s: float = 0.0
    in_flight: int = 0
    memory_peak_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFigures:
    """What a measurement says of a pipeline.

    Attributes:
        bubble_ratio: Share of the ranks' time in a step's passes in which they did not compute.
        formula_bubble_ratio: What the schedule's formula says for even stages and free
            transfers; None where there is no formula.
        replayed_bubble_ratio: The same order of work with every stage's own times and transfers
            that take no time.
        step_s: Time of the step that is shown, the median of those kept.
        ranks: Of the first replica's ranks.
        spans: What these did in that step, by rank; () if it is too long to be kept.
        loss, loss_difference, gradient_difference: Against the same model without a pipeline,
            relative; None if it was not compared.
    """

    schedule: str
    micro_batch_count: int
    stage_count: int
    bubble_ratio: float
    formula_bubble_ratio: float | None
    replayed_bubble_ratio: float
    step_s: float
    ranks: tuple[RankFigures, ...]
    spans: tuple[tuple[Span, ...], ...] = ()
    loss: float | None = None
    loss_difference: float | None = None
    gradient_difference: float | None = None
