"""What theory says of a pipeline: bubbles, the time of a step over the micro-batch count.

`S` ranks share a model, a step's batch goes through in `M` micro-batches, a rank holds `v` stages
(`v` > 1 where a schedule interleaves), `W` is one rank's work for the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.core.pipeline import SCHEDULES

MIN_WORK_SHARE = 1e-3  # of the fastest step; a fit of noisy probes may say nothing is worked


def idle_share(schedule: str, stage_count: int, micro_batches: int, chunks: int = 1) -> float:
    """Time a rank idles in a step, over the time it works: (S - 1) / (M v) where all is even.

    Of schedules that fill bubbles with weight gradients a third of that is left for equally long
    forward, input and weight passes: (S - 1)(F + B - W) of M (F + B + W) (Qi et al. 2023, ZB-H1).
    In a V less can only be left if ranks need not wait for each other before and after a step:
    the last one has nothing to do for the first (S - 1) F / v.
    """
    whole = (stage_count - 1) / (micro_batches * chunks)
    return whole / 3 if SCHEDULES[schedule].splits_backward else whole


def bubble_ratio(
    schedule: str, stage_count: int, micro_batches: int, chunks: int = 1
) -> float | None:
    """Share of a step in which a rank idles, for even stages and transfers that take no time.

    (S - 1) / (M + S - 1) of GPipe and 1F1B (Huang et al. 2019, Narayanan et al. 2019);
    (S - 1) / (v M + S - 1) of the interleaved ones, for M a multiple of S (Narayanan et al.
    2021, section 2.2) or at least S (breadth first, Lamy-Poirier 2022); (S - 1) / (3 v M + S - 1)
    where the backward pass is parted (`idle_share`), for M of at least S, of 2 S in a V.

    Returns:
        None where the schedule has no formula for these numbers.
    """
    kind = SCHEDULES[schedule]
    if not kind.single:
        if schedule == "Interleaved1F1B" and micro_batches % stage_count:
            return None
        if micro_batches < stage_count * (2 if kind.placement == "v" else 1):
            return None
    share = idle_share(schedule, stage_count, micro_batches, 1 if kind.single else chunks)
    return share / (1 + share)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLaw:
    """T(M) = W (M + S - 1) / M + c M: bubbles fall with M, what every micro-batch costs grows.

    Attributes:
        work_s: W, one rank's work for the whole batch. per_micro_batch_s: c.
    """

    stage_count: int
    work_s: float
    per_micro_batch_s: float

    def step_s(self, micro_batches: int) -> float:
        """Predicted time of a step."""
        bubbles = (micro_batches + self.stage_count - 1) / micro_batches
        return self.work_s * bubbles + self.per_micro_batch_s * micro_batches

    def best(self, choices: Sequence[int]) -> int:
        """The micro-batch count of the shortest predicted step; without bounds
        sqrt(W (S - 1) / c)."""
        return min(choices, key=self.step_s)


def fit_step_law(stage_count: int, steps: Sequence[tuple[int, float]]) -> StepLaw:
    """The law through measured steps (M, seconds): least squares of the relative error.

    Neither W nor c may be negative: the one that would be is left out.

    Raises:
        ValueError: Fewer than two different micro-batch counts.
    """
    if len({count for count, _ in steps}) < 2:
        raise ValueError(f"{len(steps)} steps of one micro-batch count say nothing of a law")
    rows = [
        ((count + stage_count - 1) / count / seconds, count / seconds) for count, seconds in steps
    ]
    aa, ab, bb = (math.fsum(x) for x in zip(*((a * a, a * b, b * b) for a, b in rows), strict=True))
    sum_a, sum_b = (math.fsum(x) for x in zip(*rows, strict=True))
    determinant = aa * bb - ab * ab
    work = (bb * sum_a - ab * sum_b) / determinant
    each = (aa * sum_b - ab * sum_a) / determinant
    if each < 0:
        work, each = sum_a / aa, 0.0
    elif work <= 0:
        least = MIN_WORK_SHARE * min(seconds for _, seconds in steps)
        work, each = least, sum_b / bb
    return StepLaw(stage_count=stage_count, work_s=work, per_micro_batch_s=each)
