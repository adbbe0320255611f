from __future__ import annotations

import statistics
from itertools import pairwise

import pytest

from autotune.core.clock import VirtualClock
from autotune.core.errors import OutOfMemory, UsageError
from autotune.core.records import Config, WorkloadSpec
from autotune.workloads import check_workload, load_workload
from autotune.workloads.base import Context, Program
from autotune.workloads.simulated import COST_MODELS, unit_share

MODEL = COST_MODELS["recommender_a3"]

# A vendor's tuning case of a recommender on an Atlas A3, 10,000 inferences on random inputs:
# instances, cores per instance, batched copies, batch, items/s, mean latency in ms.
PUBLISHED = (
    (1, "all", False, 128, 74555, 1.471),
    (1, "all", False, 256, 132247, 1.685),
    (1, "all", True, 128, 131191, 0.792),
    (1, "all", True, 256, 209927, 1.030),
    (4, "all", False, 128, 155104, 2.089),
    (4, "all", False, 256, 360253, 2.034),
    (4, "16|16", False, 128, 185415, 1.797),
    (4, "16|16", False, 256, 384163, 1.850),
    (4, "16|16", True, 128, 251877, 1.285),
    (4, "16|16", True, 256, 493065, 1.317),
)


def config(instances: int, cores: int | str, packed: bool, batch: int, micro: int = 1) -> Config:
    return Config(
        batch_size=batch,
        instance_count=instances,
        cores_per_instance=cores,
        batched_h2d=packed,
        micro_batch_count=micro,
    )


def program(
    chosen: Config, clock: VirtualClock, *, instance: int = 0, seed: int = 0, **options: float
) -> Program:
    context = Context(
        config=chosen,
        workload=WorkloadSpec(kind="simulated", model="recommender_a3", options=options),
        devices=("simulated",),
        framework_device="simulated",
        clock=clock,
        instance=instance,
        seed=seed,
    )
    built = load_workload("simulated")(context)
    assert isinstance(built, Program)
    return built


def test_the_published_rows_are_met() -> None:
    throughput_errors, latency_errors = [], []
    for instances, cores, packed, batch, items_per_s, latency_ms in PUBLISHED:
        chosen = config(instances, cores, packed, batch)
        throughput_errors.append(abs(MODEL.throughput_items_per_s(chosen) / items_per_s - 1))
        latency_errors.append(abs(MODEL.latency_s(chosen) * 1e3 / latency_ms - 1))
    assert statistics.fmean(throughput_errors) <= 0.03
    assert statistics.fmean(latency_errors) <= 0.03
    assert max(throughput_errors) <= 0.15


def test_the_published_profile_of_another_configuration_is_met() -> None:
    """The same source profiles batch 5096, 6 instances, "8|8": 3.820 ms, 0.398 ms of it copies."""
    chosen = config(6, "8|8", True, 5096)
    assert MODEL.latency_s(chosen) == pytest.approx(3.820e-3, rel=0.05)
    assert MODEL.stage_times(chosen).h2d_s == pytest.approx(0.398e-3, rel=0.05)


def test_copies_one_by_one_take_half_of_a_small_call() -> None:
    """And its profile before tuning: 0.740 of 1.383 ms went into 28 copies."""
    times = MODEL.stage_times(config(1, "all", False, 128))
    assert times.h2d_s == pytest.approx(0.740e-3, rel=0.05)
    assert times.h2d_s / sum(times) == pytest.approx(0.536, abs=0.06)


def test_throughput_follows_the_law_of_a_serial_host() -> None:
    chosen = config(4, "all", True, 256)
    period_s = MODEL.latency_s(chosen) + 4 * MODEL.host_packed_s
    assert MODEL.throughput_items_per_s(chosen) == pytest.approx(4 * 256 / period_s)


CORES = ("all", "24|48", "16|16", "12|24", "8|8", "6|12")
BATCHES = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


@pytest.mark.parametrize("cores", CORES)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("instances", range(1, 9))
def test_a_larger_batch_takes_longer_and_yields_more(
    instances: int, packed: bool, cores: str
) -> None:
    curve = [config(instances, cores, packed, batch) for batch in BATCHES]
    for small, large in pairwise(curve):
        assert MODEL.latency_s(small) < MODEL.latency_s(large)
        assert MODEL.throughput_items_per_s(small) < MODEL.throughput_items_per_s(large)


def test_no_configuration_exceeds_the_device() -> None:
    limit = 1 / MODEL.work_item_s
    for cores in CORES:
        for instances in range(1, 9):
            assert MODEL.throughput_items_per_s(config(instances, cores, True, 8192)) < limit


def test_the_core_limit_helps_small_calls_and_hurts_large_ones() -> None:
    def gain(batch: int, instances: int) -> float:
        limited, free = (config(instances, cores, True, batch) for cores in ("8|8", "all"))
        return MODEL.throughput_items_per_s(limited) / MODEL.throughput_items_per_s(free)

    assert gain(128, 4) > 1.05
    assert gain(8192, 2) < 0.95
    assert gain(128, 1) < 1.0


def test_micro_batches_hide_copies_but_repeat_launches() -> None:
    small, large = (
        [MODEL.latency_s(config(1, "all", False, batch, micro)) for micro in (1, 4)]
        for batch in (128, 8192)
    )
    assert small[1] > small[0]
    times = MODEL.stage_times(config(1, "all", False, 8192, 4))
    assert times.h2d_s < MODEL.stage_times(config(1, "all", False, 8192)).h2d_s
    assert large[1] - large[0] < small[1] - small[0]


def test_a_step_moves_the_clock_by_latency_and_host_time() -> None:
    chosen, clock = config(4, "16|16", True, 256), VirtualClock()
    built = program(chosen, clock, noise=0.0)
    assert built.step is not None and built.run is None
    assert clock.now_s() == MODEL.load_s
    start_s = clock.now_s()
    times = built.step(0)
    assert sum(times) == pytest.approx(MODEL.latency_s(chosen))
    elapsed_s = clock.now_s() - start_s
    assert 4 * 256 / elapsed_s == pytest.approx(MODEL.throughput_items_per_s(chosen))


def test_noise_is_seeded_and_leaves_the_mean() -> None:
    chosen = config(2, "all", True, 128)

    def run(instance: int, seed: int, calls: int = 3000) -> list[float]:
        clock = VirtualClock()
        step = program(chosen, clock, instance=instance, seed=seed).step
        assert step is not None
        times = []
        for call in range(calls):
            before_s = clock.now_s()
            step(call)
            times.append(clock.now_s() - before_s)
        return times

    first = run(0, 1)
    assert first == run(0, 1)
    assert first[:5] != run(1, 1, 5) and first[:5] != run(0, 2, 5)
    exact_s = MODEL.latency_s(chosen) + MODEL.host_s(chosen)
    assert statistics.fmean(first) == pytest.approx(exact_s, rel=0.005)
    assert statistics.quantiles(first, n=100)[98] > 1.03 * exact_s


def test_memory_is_declared_and_runs_out() -> None:
    built = program(config(1, "all", True, 128), VirtualClock())
    assert built.memory_bytes == MODEL.base_bytes + 128 * MODEL.item_bytes
    with pytest.raises(OutOfMemory, match="8 instances x 9") as caught:
        program(config(8, "all", True, 8192), VirtualClock())
    assert caught.value.cost_s == MODEL.load_s
    program(config(8, "all", True, 8192, micro=8), VirtualClock())


def test_it_says_that_it_is_no_measurement() -> None:
    (note,) = program(Config(), VirtualClock()).notes
    assert note.startswith("simulated, not measured")


@pytest.mark.parametrize(
    ("cores", "share"), [("all", 1.0), ("24|48", 1.0), ("12|12", 0.5), ("6|48", 0.25), (12, 0.5)]
)
def test_core_splits_are_shares_of_the_cubes(cores: int | str, share: float) -> None:
    assert unit_share(cores) == share


@pytest.mark.parametrize("cores", ["0|8", "25|48", "8|49", "some", "8|", "|8", 0, 25, "8|8|8"])
def test_other_core_splits_are_refused(cores: int | str) -> None:
    with pytest.raises(UsageError, match="cores_per_instance"):
        unit_share(cores)


def test_an_unknown_model_is_found_early() -> None:
    with pytest.raises(UsageError, match="did you mean 'recommender_a3'"):
        check_workload(WorkloadSpec(kind="simulated", model="recomender_a3"))
    with pytest.raises(UsageError, match=r"workload\.nois"):
        check_workload(
            WorkloadSpec(kind="simulated", model="recommender_a3", options={"nois": 0.1})
        )
