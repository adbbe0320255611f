"""Random pipelines: how often three trials end within 5 % of the best micro-batch count.

    OMP_NUM_THREADS=1 python benchmarks/pipeline_laws.py --games 300

A step takes (M + S - 1) t(B / M), and transfers; a micro-batch of b items takes t(b): a fixed cost
and one per item, added or (the sharper their norm) the larger of both, b perhaps padded to tiles.
Nothing of that is the search's own law but the case of the sum. `--far` moves its second probe.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Sequence

import numpy as np

import autotune
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, Measurement, TrialRecord, Verdict
from autotune.search import proposer
from autotune.search.study_model import StudyModel
from autotune.space.search_space import settled

NEAR = 1.05
NOISE = 0.03
LADDER = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048)
UNEVEN = (3, 6, 12, 24, 48, 96)


def steps_of(rng: random.Random) -> tuple[int, int, dict[int, float]]:
    """A pipeline: stages, global batch, and the time of a step by micro-batch count."""
    stages = rng.choice((2, 3, 4, 6, 8, 12, 16))
    batch = rng.choice((16, 32, 48, 64, 128, 256, 512, 2048))
    names = LADDER if rng.random() < 0.7 else (*LADDER, *UNEVEN)
    counts = sorted({m for m in (*names, batch) if batch % m == 0})
    most = rng.randint(4, 8)
    if len(counts) > most:
        first = rng.randint(0, len(counts) - most)
        counts = counts[first : first + most]
    fixed = math.exp(-rng.gauss(3.5, 1.5))  # of the whole batch's work
    norm = 1.0 if rng.random() < 0.3 else math.exp(rng.gauss(0.4, 0.5))
    tile = rng.choice((1, 1, 1, 4, 8))
    transfer = rng.choice((0.0, 0.0, rng.uniform(0.0, 0.3)))

    def step(count: int) -> float:
        items = math.ceil(batch / count / tile) * tile
        each = (fixed**norm + (items / batch) ** norm) ** (1 / norm)
        return (count + stages - 1) * each + transfer * (stages - 1) / count

    return stages, batch, {count: step(count) for count in counts}


def picked(stages: int, batch: int, steps: dict[int, float], seed: int) -> int:
    """What the search recommends after the first count and two trials of its own."""
    rng = np.random.default_rng(seed)
    space = settled(
        autotune.load_space(
            "pipeline.yaml",
            [
                "device=cpu", "params.schedule=GPipe", "params.stage_split=even", "baseline={}",
                f"params.global_batch_size={batch}", f"params.stage_count={stages}",
                f"params.micro_batch_count={list(steps)}",
            ],
        )
    )  # fmt: skip
    model = StudyModel(space, seed)
    records: list[TrialRecord] = []

    def run(config: Config) -> None:
        seconds = steps[config.micro_batch_count] * math.exp(rng.normal(0, NOISE))
        records.append(
            TrialRecord(
                number=len(records),
                config=config,
                phase="search",
                verdict=Verdict(outcome=Outcome.OK),
                measurements=(Measurement(throughput_items_per_s=batch / seconds),),
            )
        )

    run(space.baseline)
    for number in (1, 2):
        proposal = model.next(records, number=number)
        assert proposal is not None
        run(model.config(proposal.row))
    best = model.recommended(records)
    assert best is not None
    return best.micro_batch_count


def main(words: Sequence[str] | None = None) -> int:
    """Play the games; 1 if fewer than 80 % end near the best."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--games", type=int, default=300)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--far", type=float, default=proposer.FAR_PROBE)
    arguments = parser.parse_args(words)
    proposer.FAR_PROBE = arguments.far
    losses = []
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.games):
        stages, batch, steps = steps_of(random.Random(seed))
        losses.append(steps[picked(stages, batch, steps, seed)] / min(steps.values()) - 1)
    near = sum(loss <= NEAR - 1 for loss in losses)
    print(
        f"{near} of {arguments.games} within 5 % of the best with 3 trials, mean loss "
        f"{statistics.fmean(losses):.1%} (second probe at {arguments.far:g} of the ladder)"
    )
    return 0 if near >= 0.8 * arguments.games else 1


if __name__ == "__main__":
    sys.exit(main())
