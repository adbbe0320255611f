"""Ratios from what was recorded: over blocks of calls, over intervals, over pairs of a proof."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.core.records import Comparison, Config, Measurement, Recommendation, Samples
from autotune.measure.paired import Rule
from autotune.results.recorded import (
    BLOCKS,
    ONE_PROCESS_SPREAD,
    from_interval,
    from_samples,
    judge_apart,
    recorded_pairs,
)

BASE, A, B = Config(), Config(batch_size=8), Config(batch_size=16)
RULE = Rule(alpha=0.01)


def calls(
    step_s: float, windows: int = 12, seed: int = 0, spread: float = 0.01, count: int = 100
) -> Samples:
    """Calls back to back in windows; every second window is of another process."""
    rng = np.random.default_rng(seed)
    index = np.repeat(np.arange(windows), count)
    process = np.exp(spread * rng.standard_normal(windows // 2 + 1))[index // 2]
    times = step_s * process * np.exp(0.02 * rng.standard_normal(index.size))
    end = 10.0 * index + (np.cumsum(times) - np.repeat(np.cumsum(times)[::count], count) + times[0])
    zeros = np.zeros(index.size, dtype=np.int64)
    return Samples(
        window=index,
        instance=zeros,
        due_s=end - times,
        start_s=end - times,
        end_s=end,
        item_count=zeros + 4,
        cpu_s=times,
        switch_count=zeros,
        fault_count=zeros,
    )


@pytest.mark.parametrize("metric", ["throughput", "latency_p50"])
def test_the_ratio_of_two_recordings(metric: str) -> None:
    ours = from_samples(calls(0.010, seed=1), metric, is_confirmation=True)
    theirs = from_samples(calls(0.012, seed=2), metric, is_confirmation=True)
    assert ours is not None and theirs is not None
    sign = 1.0 if metric == "throughput" else -1.0
    test = judge_apart(ours, theirs, RULE, sign=sign)
    assert test.shown == "better"
    assert test.interval95[0] < 1.2 < test.interval95[1]
    assert judge_apart(theirs, ours, RULE, sign=sign).ratio == pytest.approx(1 / test.ratio)


def test_without_a_difference_few_are_called_different() -> None:
    shown = 0
    for seed in range(60):
        ours = from_samples(calls(0.01, seed=2 * seed), "throughput", is_confirmation=True)
        theirs = from_samples(calls(0.01, seed=2 * seed + 1), "throughput", is_confirmation=True)
        assert ours is not None and theirs is not None
        shown += judge_apart(ours, theirs, Rule(alpha=0.05), sign=1.0).shown != "none"
    assert shown <= 13  # 6 are expected, 5 % in either direction


def test_a_single_process_does_not_show_how_processes_differ() -> None:
    alone = from_samples(calls(0.01, windows=1, count=600), "throughput", is_confirmation=False)
    assert alone is not None
    assert alone.error >= ONE_PROCESS_SPREAD
    assert alone.freedom == BLOCKS - 1


def test_too_few_calls_tell_nothing() -> None:
    assert (
        from_samples(calls(0.01, windows=1, count=20), "throughput", is_confirmation=False) is None
    )


def test_an_interval_stands_for_its_calls() -> None:
    measurement = Measurement(
        throughput_items_per_s=1000.0, throughput_ci95_items_per_s=(980.0, 1020.0)
    )
    found = from_interval(measurement, "throughput")
    assert found is not None
    assert found.error == pytest.approx(math.hypot(0.0102, ONE_PROCESS_SPREAD), rel=0.01)
    assert from_interval(measurement, "latency_p99") is None
    assert from_interval(Measurement(throughput_items_per_s=1.0), "throughput") is None


def test_pairs_of_a_proof_are_chained_over_the_baseline() -> None:
    def against(config: Config, *ratios: float) -> Comparison:
        return Comparison(
            config=config, reference=BASE, ratio=1.0, ratio_ci=None, alpha=0.01, pair_ratios=ratios
        )

    proof = Recommendation(
        status="confirmed", comparisons=(against(A, 2.0, 2.2), against(B, 4.0, 4.0))
    )
    assert recorded_pairs(proof, A, BASE) == (2.0, 2.2)
    assert recorded_pairs(proof, BASE, A) == pytest.approx((0.5, 1 / 2.2))
    assert recorded_pairs(proof, B, A) == pytest.approx((2.0, 4 / 2.2))
    assert recorded_pairs(proof, A, Config(batch_size=3)) == ()
