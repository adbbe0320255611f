"""Figures and verdicts from samples and reports whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.core.errors import UsageError, WrongOutput
from autotune.core.objective import Limit, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import InstanceFacts, Reported, Samples, Verdict
from autotune.measure.judge import judge
from autotune.measure.noise import phase_medians, trust_of
from autotune.measure.summary import summarise


def calls(
    times_s: list[float] | np.ndarray, *, instances: int = 1, items: int = 8, wait_s: float = 0.0
) -> Samples:
    """Back-to-back calls of equal instances."""
    times = np.asarray(times_s, dtype=float)
    ends = np.cumsum(times)
    n = times.size * instances

    def tiled(values: np.ndarray) -> np.ndarray:
        return np.tile(values, instances)

    return Samples(
        window=np.zeros(n, dtype=np.int64),
        instance=np.repeat(np.arange(instances), times.size),
        due_s=tiled(ends - times),
        start_s=tiled(ends - times),
        end_s=tiled(ends),
        item_count=np.full(n, items),
        cpu_s=tiled(times),
        switch_count=np.zeros(n, dtype=np.int64),
        fault_count=np.zeros(n, dtype=np.int64),
        run_queue_wait_s=(wait_s,),
        facts=tuple(InstanceFacts(instance=i, cores=(i,)) for i in range(instances)),
    )


def objective(**limits: float) -> Objective:
    return Objective(name="test", limits=tuple(Limit(metric=m, bound=b) for m, b in limits.items()))


def verdict(samples: Samples, **limits: float) -> Verdict:
    return judge(samples, summarise(samples), objective(**limits))


def test_throughput_is_items_over_wall_clock_time() -> None:
    measurement = summarise(calls([0.01] * 100, instances=3, items=8))
    assert measurement.throughput_items_per_s == pytest.approx(3 * 8 / 0.01)
    assert measurement.call_count == 300
    assert measurement.duration_s == pytest.approx(1.0)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(300):
        times = 0.01 * rng.lognormal(0.0, 0.3, size=200)
        low, high = summarise(calls(times)).throughput_ci95_items_per_s or (0.0, 0.0)
        hits += low <= 8 / (0.01 * math.exp(0.3**2 / 2)) <= high
    assert 0.91 <= hits / 300 <= 0.98


def test_few_calls_give_no_interval() -> None:
    assert summarise(calls([0.1] * 5)).throughput_ci95_items_per_s is None


def test_quantiles_are_observed_values() -> None:
    times = [0.001] * 99 + [0.5]
    measurement = summarise(calls(times))
    assert measurement.latency_p99_s == pytest.approx(0.001)
    assert measurement.latency_p999_s == pytest.approx(0.5)


def test_no_call_is_no_measurement() -> None:
    with pytest.raises(WrongOutput, match="no call"):
        summarise(calls([]))


@pytest.mark.parametrize(
    ("slow", "fast", "outcome"),
    [
        (0, 1000, Outcome.OK),
        (2, 998, Outcome.OK),
        (50, 950, Outcome.OVER_LIMIT),
        (10, 990, Outcome.UNDECIDED),
        (0, 100, Outcome.UNDECIDED),  # too few calls to claim a P99
        (10, 10, Outcome.OVER_LIMIT),
    ],
)
def test_a_p99_limit_needs_evidence_either_way(slow: int, fast: int, outcome: Outcome) -> None:
    times = np.array([0.05] * slow + [0.01] * fast)
    times = np.random.default_rng(1).permutation(times)
    assert verdict(calls(times), latency_p99=0.02).outcome is outcome


def test_one_slow_call_in_twenty_never_passes_a_p99_limit() -> None:
    for count in (10, 40, 200, 2000):
        times = [0.1 if i % 20 == 19 else 0.001 for i in range(count)]
        assert verdict(calls(times), latency_p99=0.05).outcome is not Outcome.OK


def test_the_undecided_say_how_many_calls_would_settle_it() -> None:
    found = verdict(calls([0.01] * 100), latency_p99=0.02)
    assert "199 more calls (1.99 s) would settle it" in found.reasons[0]
    assert found.needed_s == pytest.approx(1.99)
    assert found.excess["latency_p99_s"] == pytest.approx(0.01 - 0.02)


def test_the_worst_limit_decides() -> None:
    found = verdict(calls([0.01] * 1000), latency_p99=0.02, throughput=10_000)
    assert found.outcome is Outcome.OVER_LIMIT
    assert found.excess["throughput_items_per_s"] > 0 > found.excess["latency_p99_s"]
    assert len(found.reasons) == 1 and "throughput" in found.reasons[0]


def test_a_limit_on_what_nothing_tells_is_an_error() -> None:
    with pytest.raises(UsageError, match="power"):
        verdict(calls([0.01] * 100), power=300)


@pytest.mark.parametrize(
    ("p99_s", "noise", "outcome"),
    [
        (0.0049, 0.0, Outcome.OK),
        (0.0051, 0.0, Outcome.OVER_LIMIT),
        (0.0040, 0.036, Outcome.OK),
        (0.0049, 0.036, Outcome.UNDECIDED),
        (0.0051, 0.036, Outcome.UNDECIDED),
        (0.0060, 0.036, Outcome.OVER_LIMIT),
    ],
)
def test_a_reported_p99_is_judged_with_its_noise(
    p99_s: float, noise: float, outcome: Outcome
) -> None:
    report = Reported(
        metrics={"throughput_items_per_s": 100.0, "latency_p99_s": p99_s}, relative_noise=noise
    )
    found = judge(report, summarise(report), objective(latency_p99=0.005))
    assert found.outcome is outcome
    assert found.objectives == {"throughput_items_per_s": 100.0}


@pytest.mark.parametrize(
    ("metrics", "text"),
    [
        ({"throughput_items_per_s": math.nan}, "throughput_items_per_s is nan"),
        ({"throughput_items_per_s": -5.0}, "throughput_items_per_s is -5"),
        ({"throughput_items_per_s": 5.0, "latency_p99_s": -1.0}, "latency_p99_s is -1"),
        ({"throughput_items_per_s": math.inf}, "inf"),
        ({"throughput_items_per_s": 0.0}, "is 0"),
        ({"speed": 5.0}, "speed"),
    ],
)
def test_impossible_figures_are_refused_by_name(metrics: dict[str, float], text: str) -> None:
    with pytest.raises(WrongOutput, match=text):
        summarise(Reported(metrics=metrics))


def test_reported_counts_become_whole_numbers() -> None:
    report = Reported(metrics={"throughput_items_per_s": 5.5, "memory_peak_bytes": 1024.4})
    measurement = summarise(report)
    assert measurement.memory_peak_bytes == 1024
    assert isinstance(measurement.memory_peak_bytes, int)
    assert measurement.throughput_items_per_s == 5.5


def test_a_missing_objective_is_wrong_output() -> None:
    report = Reported(metrics={"latency_p99_s": 0.003})
    found = judge(report, summarise(report), objective())
    assert found.outcome is Outcome.WRONG_OUTPUT and "throughput" in found.reasons[0]


def test_a_report_without_a_limited_figure_is_wrong_output() -> None:
    report = Reported(metrics={"throughput_items_per_s": 100.0})
    found = judge(report, summarise(report), objective(latency_p99=0.005))
    assert found.outcome is Outcome.WRONG_OUTPUT and "latency_p99" in found.reasons[0]


def test_quiet_calls_are_trusted_and_phases_are_not() -> None:
    rng = np.random.default_rng(3)
    quiet = calls(0.01 * rng.lognormal(0.0, 0.05, size=400))
    assert trust_of(quiet)[0] == "quiet"
    phases = calls([0.001] * 100 + [0.002] * 100 + [0.001] * 100)
    medians = phase_medians(phases)
    assert medians is not None and max(medians) / min(medians) == pytest.approx(2.0)
    assert trust_of(phases).line.startswith("noisy: unstable")


def test_seconds_are_told_for_all_open_limits_or_for_none() -> None:
    some = calls(0.01 * np.random.default_rng(4).lognormal(0.0, 0.3, size=60))
    near = 0.97 * (summarise(some).throughput_items_per_s or 0.0)
    open_rate = verdict(some, throughput=near)
    assert open_rate.outcome is Outcome.UNDECIDED and open_rate.needed_s is not None
    tail = verdict(some, latency_p99=0.1)
    assert tail.outcome is Outcome.UNDECIDED and tail.needed_s is not None
    both = verdict(some, throughput=near, latency_p99=0.1)
    assert both.needed_s == max(open_rate.needed_s, tail.needed_s) > 0
    unreachable = verdict(calls(([0.01] * 99 + [0.03]) * 4), latency_p99=0.02)
    assert unreachable.outcome is Outcome.UNDECIDED and unreachable.needed_s is None
    assert verdict(calls([0.01] * 1000), latency_p99=0.02).needed_s is None


def test_a_course_of_call_times_is_named() -> None:
    rng = np.random.default_rng(1)
    spread = rng.lognormal(0.0, 0.02, 400)
    cold = calls(0.01 * spread * np.where(np.arange(400) < 60, 1.5, 1.0))
    assert trust_of(cold).line == "noisy: cold, calls took up to 1.5 times as long at first"
    assert trust_of(cold, is_first=True).line.startswith("noisy: first trial: cold")
    slowing = calls(0.01 * spread * np.linspace(1.0, 1.6, 400))
    assert "drift within the window: calls became 1.5 times as long" in trust_of(slowing).line
    assert "times as fast" in trust_of(calls(0.01 * spread * np.linspace(1.6, 1.0, 400))).line


def test_the_canary_is_a_sign_of_its_own() -> None:
    quiet = calls([0.01] * 400)
    assert trust_of(quiet, canary_ratio=0.93).is_quiet
    slow = trust_of(quiet, canary_ratio=0.82)
    assert "the machine ran 18% slower" in slow.line and slow.level > 0
    assert trust_of(quiet, canary_ratio=0.6).level > slow.level


def test_waiting_for_cores_is_noise_only_where_cores_are_not_shared() -> None:
    loaded = calls([0.01] * 200, instances=2, wait_s=1.0)
    assert trust_of(loaded).line == "noisy: another process took 25% of its cores"
    shared = tuple(InstanceFacts(instance=i, cores=(0, 1)) for i in range(2))
    from dataclasses import replace

    assert trust_of(replace(loaded, facts=shared))[0] == "quiet"
