"""What theory says of a pipeline's bubbles; the time of a step is `search.mechanism`'s.

`S` ranks share a model, a step's batch goes through in `M` micro-batches, a rank holds `v` stages
(`v` > 1 where a schedule interleaves).
"""

from __future__ import annotations

from autotune.core.pipeline import SCHEDULES


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
