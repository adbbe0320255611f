"""Planted effects are found, in their order; what does nothing gets nothing."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

from autotune.core.objective import Limit, Objective
from autotune.core.records import Config, TrialRecord
from autotune.results.importance import importance

OBJECTIVE = Objective(name="online", limits=(Limit(metric="latency_p99", bound=0.020),))
NAMES = ("batch_size", "instance_count", "batched_h2d", "env.NOTHING")


def planted(make_trial: Callable[..., TrialRecord], count: int, noise: float) -> list[TrialRecord]:
    """Batch size saturates at 64, instances give 1.5, batched copies 1.1, a variable nothing."""
    rng = random.Random(3)
    grid = list(itertools.product((1, 4, 16, 64, 256), (1, 2), (False, True), ("0", "1")))
    records = []
    for number, (batch, instances, batched, nothing) in enumerate(rng.sample(grid, count)):
        config = Config(
            batch_size=batch, instance_count=instances, batched_h2d=batched,
            extra=(("env.NOTHING", nothing),),
        )  # fmt: skip
        rate = 1000 * batch / (1 + batch / 32) * 1.5 ** (instances - 1) * 1.1**batched
        records.append(
            make_trial(config, number=number, throughput=rate * rng.lognormvariate(0, noise))
        )
    return records


def test_planted_effects_come_in_their_order_with_their_factors(
    make_trial: Callable[..., TrialRecord],
) -> None:
    found = importance(planted(make_trial, 34, 0.01), OBJECTIVE, NAMES)
    assert found is not None and found.trials == 34
    by_name = {one.name: one for one in found.influences}
    assert [one.name for one in found.influences[:3]] == list(NAMES[:3])
    assert 1.4 < by_name["instance_count"].factor < 1.6
    assert 1.05 < by_name["batched_h2d"].factor < 1.15
    assert by_name["batch_size"].best in (64, 256) and by_name["instance_count"].best == 2
    assert by_name["env.NOTHING"].share < 0.005 and by_name["env.NOTHING"].factor < 1.05
    assert 0.9 < found.explained <= 1.0
    assert abs(sum(one.share for one in found.influences) - found.explained) < 0.05


def test_trials_over_a_limit_do_not_count_and_too_few_tell_nothing(
    make_trial: Callable[..., TrialRecord],
) -> None:
    records = planted(make_trial, 34, 0.01)
    broken = [
        replace(r, verdict=replace(r.verdict, excess={"latency_p99_s": 0.001}))
        for r in planted(make_trial, 20, 2.0)
    ]
    assert importance([*records, *broken], OBJECTIVE, NAMES) == importance(
        records, OBJECTIVE, NAMES
    )
    assert importance(records[:6], OBJECTIVE, NAMES) is None
    assert importance(records, OBJECTIVE, ("micro_batch_count",)) is None
