from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest

from autotune.core.errors import TrialError, UsageError
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, GroupSpec, Plan, Reported, Window, WorkloadSpec
from autotune.workloads import check_workload, load_workload, preload_modules

HEADER = (
    "batch_size,throughput_items_per_s,latency_p50_s,latency_p99_s,memory_peak_bytes,status,cost_s"
)
STATUSES = ("oom", "timeout", "compile_error", "crashed")


@pytest.fixture
def grid(tmp_path: Path) -> str:
    failures = [f"{16 * 2**i},,,,,{status},4.5" for i, status in enumerate(STATUSES)]
    path = tmp_path / "grid.csv"
    path.write_text("\n".join([HEADER, "8,1000,0.007,0.01,1000000,ok,2.5", *failures]) + "\n")
    return str(path)


def report(
    grid: str,
    *,
    batch_size: int = 8,
    repetition: int = 0,
    window: Window | None = None,
    **options: float,
) -> Reported:
    spec = GroupSpec(
        config=Config(batch_size=batch_size),
        workload=WorkloadSpec(kind="replay", model=grid, options=options),
        devices=("simulated",),
        cores=((),),
    )
    plan = Plan(windows=(window or Window(duration_s=2.0),), arrival_seed=repetition)
    result = load_workload("replay")(spec, plan)
    assert isinstance(result, Reported)
    return result


def test_without_noise_the_row_is_handed_over(grid: str) -> None:
    result = report(grid, noise=0.0)
    assert result.metrics == {
        "throughput_items_per_s": 1000.0,
        "latency_p50_s": 0.007,
        "latency_p99_s": 0.01,
        "memory_peak_bytes": 1000000,
    }
    assert result.relative_noise == 0.0


def test_a_trial_costs_its_row_plus_its_windows(grid: str) -> None:
    assert report(grid).duration_s == 4.5
    assert report(grid, window=Window(iterations=500)).duration_s == pytest.approx(2.5 + 4.0)


def test_the_same_seed_and_repetition_give_the_same_figures(grid: str) -> None:
    assert report(grid, repetition=3, seed=1) == report(grid, repetition=3, seed=1)
    assert report(grid, repetition=3, seed=1) != report(grid, repetition=4, seed=1)
    assert report(grid, repetition=3, seed=1) != report(grid, repetition=3, seed=2)


def test_the_noise_is_the_declared_one(grid: str) -> None:
    noise, count = 0.03, 4000
    results = [report(grid, repetition=i, noise=noise).metrics for i in range(count)]
    pace = [math.log(r["throughput_items_per_s"] / 1000) for r in results]
    assert statistics.fmean(pace) == pytest.approx(0, abs=0.002)
    assert statistics.stdev(pace) == pytest.approx(noise, rel=0.05)
    tail = [r["latency_p99_s"] / 0.01 for r in results]
    assert statistics.median(tail) == pytest.approx(1, abs=0.005)
    middle = statistics.quantiles([math.log(t) for t in tail], n=100)
    # Between the 16th and 84th percentile lie two standard deviations; outliers hardly count.
    assert (middle[83] - middle[15]) / 2 == pytest.approx(1.2 * noise, rel=0.1)
    beyond = sum(t > math.exp(4 * 1.2 * noise) for t in tail) / count
    assert 0.012 < beyond < 0.03
    memory = [r["memory_peak_bytes"] / 1e6 for r in results]
    assert statistics.stdev(memory) == pytest.approx(0.002, rel=0.1)
    assert all(r["latency_p50_s"] <= r["latency_p99_s"] for r in results)
    assert report(grid, noise=noise).relative_noise == pytest.approx(1.2 * noise)


@pytest.mark.parametrize(("index", "status"), list(enumerate(STATUSES)))
def test_failures_are_raised_with_their_cost(grid: str, index: int, status: str) -> None:
    with pytest.raises(TrialError) as caught:
        report(grid, batch_size=16 * 2**index)
    assert caught.value.outcome is Outcome(status)
    assert caught.value.cost_s == 4.5
    assert f"line {index + 3}" in str(caught.value)


def test_a_configuration_outside_the_grid_is_a_mistake(grid: str) -> None:
    with pytest.raises(UsageError, match="no row"):
        report(grid, batch_size=3)


@pytest.mark.parametrize(
    "options", [{"noise": -0.1}, {"noise": "much"}, {"noise": True}, {"seed": 1.5}, {"nois": 0.1}]
)
def test_bad_options_are_found_early(grid: str, options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=f"workload.{next(iter(options))}"):
        check_workload(WorkloadSpec(kind="replay", model=grid, options=options))


def test_a_bad_grid_is_found_early(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        check_workload(WorkloadSpec(kind="replay", model=str(tmp_path / "no.csv")))


def test_nothing_is_preloaded(grid: str) -> None:
    assert preload_modules(WorkloadSpec(kind="replay", model=grid)) == ()
