"""Trials as the curve that the knee is read off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.core.objective import Limit, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, Load, Measurement, TrialRecord, Verdict
from autotune.measure.batch_curve import NOISE_RANGE, TYPICAL_NOISE, BatchCurve

LIMITED = Objective(
    name="knee",
    limits=(Limit(metric="latency_p99", bound=0.02), Limit(metric="memory_peak", bound=1e9)),
    knee_share=0.95,
)
FREE = Objective(name="knee", knee_share=0.95)


def trial(
    batch: int,
    rate: float = 100.0,
    *,
    outcome: Outcome = Outcome.OK,
    p99_s: float | None = 0.01,
    memory: int = 10**8,
    half: float | None = None,
) -> TrialRecord:
    figures = Measurement(
        throughput_items_per_s=rate,
        throughput_ci95_items_per_s=None if half is None else (rate - half, rate + half),
        latency_p99_s=p99_s,
        memory_peak_bytes=memory,
    )
    return TrialRecord(
        number=batch,
        config=Config(batch_size=batch),
        phase="search",
        verdict=Verdict(outcome=outcome),
        measurements=(figures,) if outcome.is_measured else (),
    )


def test_strain_is_the_limit_that_is_nearest():
    curve = BatchCurve.of([trial(1, p99_s=0.03), trial(2, memory=9 * 10**8)], LIMITED)
    assert curve.strain == pytest.approx((1.5, 0.9))
    assert BatchCurve.of([trial(1)], FREE).strain is None


def test_where_the_rate_is_sought_it_keeps_the_tail_itself():
    sought = Objective(
        name="knee", load=Load(kind="poisson"), limits=LIMITED.limits, knee_share=0.95
    )
    curve = BatchCurve.of([trial(1, p99_s=0.03)], sought)
    assert curve.strain == pytest.approx((0.1,))


def test_too_large_is_zero_and_a_crash_is_a_hole():
    records = [trial(1), trial(2, outcome=Outcome.CRASHED), trial(8, outcome=Outcome.OOM)]
    curve = BatchCurve.of(records, FREE)
    assert (curve.sizes, curve.throughput_per_s) == ((1, 8), (100.0, 0.0))
    assert curve.spent == {2}
    assert 2 not in curve.wanted((1, 2, 3, 4, 8), 0.95)
    assert curve.wanted((1, 2, 3, 4, 8), 0.95)


def test_a_crashed_smallest_size_does_not_end_the_curve():
    curve = BatchCurve.of([trial(1, outcome=Outcome.CRASHED)], FREE)
    assert curve.wanted((1, 2, 4), 0.95) == (2, 4)


def test_no_size_is_tried_for_ever():
    close = [trial(b, 100.0 * b, p99_s=0.0199) for b in (1, 2, 4) for _ in range(4)]
    curve = BatchCurve.of(close, LIMITED)
    assert curve.spent == {1, 2, 4}
    assert curve.wanted((1, 2, 4), 0.95) == ()


def test_an_interrupted_trial_tells_nothing():
    assert BatchCurve.of([trial(1, outcome=Outcome.INTERRUPTED)], FREE).sizes == ()


@pytest.mark.parametrize(
    ("half", "noise"), [(None, TYPICAL_NOISE), (0.1, NOISE_RANGE[0]), (9.8, 0.05), (90.0, 0.2)]
)
def test_noise_comes_from_the_intervals_within_bounds(half: float | None, noise: float):
    assert BatchCurve.of([trial(1, half=half)], FREE).noise == pytest.approx(noise)


def test_a_noisy_trial_counts_as_undisturbed_and_widens_the_noise():
    quiet = trial(4, half=0.1)
    measurement = replace(
        quiet.measurements[0], trust="noisy: a neighbour", run_queue_wait_ratio=0.2
    )
    noisy = replace(quiet, measurements=(measurement,))
    curve = BatchCurve.of([noisy], LIMITED)
    assert curve.throughput_per_s == pytest.approx((100.0 / 0.8,))
    assert curve.strain == pytest.approx((0.5 * 0.8,))
    assert curve.noise > BatchCurve.of([quiet], LIMITED).noise
