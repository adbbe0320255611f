from __future__ import annotations

import math
import runpy
from pathlib import Path

import numpy as np
import pytest

from autotune.measure.knee import Knee, find_knee, next_points

SIZES = (1, 2, 4, 8)

BENCH = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "knee.py"))

# Published figures. Ascend/ModelZoo-PyTorch, README.md under ACL_PyTorch/contrib/: SE-ResNeXt50,
# baseline_dino_resnet50, SpanBERT, GloRe, Tacotron2 (310P), Wide_ResNet50_2.
# NVIDIA/DeepLearningExamples: MxNet/Classification/RN50v1.5 (A100 fp16),
# PyTorch/Classification/ConvNets/resnext101-32x4d (V100 fp16), TensorFlow/Classification/ConvNets/
# resnet50v1.5 (T4 fp32). NVIDIA/FasterTransformer: docs/gpt_guide.md (8x A100).
POWERS = (1, 4, 8, 16, 32, 64)
OCTAVES = tuple(2**k for k in range(9))
CURVES: dict[str, tuple[tuple[int, ...], tuple[float, ...]]] = {
    "bad point": (POWERS, (1006.47, 1804.86, 1507.69, 1396.36, 600.3, 1198.41)),
    "good point": (POWERS, (1617.1, 2161.0, 2410.1, 2441.2, 5279.8, 2244.0)),
    "first best": (POWERS, (43.833, 25.411, 31.726, 31.904, 32.038, 32.343)),
    "flat": (POWERS, (82.0, 85.0, 83.0, 82.0, 83.0, 82.0)),
    "cliff": ((1, 4, 8, 16, 32), (2942.5, 9808.7, 18891.8, 33508.4, 8966.0)),
    "two peaks": (POWERS, (748.1, 1742.7, 1951.1, 1832.7, 2097.7, 1171.4)),
    "early dip": (
        (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 512),
        (1432, 2530.7, 3680.7, 2593.9, 4340.1, 6808.2, 7660, 8017.7, 8240.8, 7909.6, 7213.4),
    ),
    "saturating": (OCTAVES, (43, 84, 164, 333, 640, 1195, 1595, 1699, 1746)),
    "early knee": (OCTAVES, (136.4, 215.4, 289.3, 341.8, 394.4, 414.7, 424.4, 429.8, 425.7)),
    "gpt": (
        (1, 2, 4, 8, 12, 16, 20, 32),
        (1.51428, 2.90977, 3.98057, 4.69189, 5.07395, 5.1421, 5.37096, 5.53756),
    ),
}
# NVIDIA/DeepLearningExamples, PyTorch/Classification/GPUNet/triton/05ms-D, online on a V100:
# concurrency, inferences per second, P99 in ms.
SWEEP = (
    *((8, 984.0, 9.42), (16, 1553.0, 12.93), (24, 2024.0, 16.24), (32, 2559.0, 15.05)),
    *((40, 2714.29, 19.73), (48, 2841.0, 23.61), (56, 3109.0, 25.39), (64, 3243.0, 27.47)),
    *((80, 3687.0, 29.97), (96, 3811.0, 33.31), (112, 4207.0, 35.21), (128, 4316.0, 40.26)),
    *((160, 4520.0, 48.88), (192, 4646.0, 57.1), (224, 4927.0, 61.31), (256, 5236.0, 63.11)),
)


def knee_of(name: str, noise: float = 0.02) -> Knee:
    return find_knee(*CURVES[name], noise=noise)


# --- what a curve shows --------------------------------------------------------------------------


def test_knee_of_a_saturating_curve():
    knee = knee_of("saturating")
    assert (knee.batch_size, knee.peak_batch_size, knee.kind) == (128, 256, "inside")
    assert knee.delivered == pytest.approx(1699 / 1746, abs=0.02)
    assert knee.interval is not None and knee.interval[0] in (64, 128)
    assert (knee.cliffs, knee.padding_steps, knee.remeasure) == ((), (), ())


def test_knee_follows_the_share():
    picks = [find_knee(*CURVES["early knee"], share=s, noise=0.01).batch_size for s in (0.6, 0.9)]
    assert picks == [4, 16]


def test_order_of_the_sizes_does_not_matter():
    sizes, speed = CURVES["early knee"]
    assert find_knee(sizes[::-1], speed[::-1]) == find_knee(sizes, speed)


def test_isolated_bad_point_is_named_and_left_out():
    knee = knee_of("bad point")
    assert knee.remeasure == (32,)
    assert knee.measure_next[0] == 32
    assert (knee.batch_size, knee.peak_batch_size) == (4, 4)


def test_isolated_good_point_is_not_believed_until_repeated():
    sizes, speed = CURVES["good point"]
    once = find_knee(sizes, speed)
    assert once.remeasure == (32,)
    assert once.batch_size in (8, 16)
    again = find_knee((*sizes, 32), (*speed, 5300.0))
    assert again.remeasure == ()
    assert again.batch_size == again.peak_batch_size == 32


def test_first_size_best():
    knee = knee_of("first best")
    assert (knee.batch_size, knee.peak_batch_size, knee.kind) == (1, 1, "inside")
    assert knee.cliffs == (4,)


def test_flat_curve():
    knee = knee_of("flat", noise=0.01)
    assert (knee.batch_size, knee.kind) == (1, "flat")


def test_cliff_at_the_largest_size():
    knee = knee_of("cliff")  # its peak stands alone, yet is believable: calls get no faster there
    assert knee.remeasure == (16,)
    assert (knee.batch_size, knee.peak_batch_size, knee.kind) == (16, 16, "inside")
    assert knee.cliffs == (32,)


def test_several_peaks_are_told_apart_from_noise():
    assert knee_of("two peaks", noise=0.005).peaks == (8, 32)
    assert knee_of("two peaks", noise=0.1).peaks == (32,)
    assert knee_of("saturating").peaks == (256,)


def test_early_dip_does_not_hide_the_knee():
    knee = knee_of("early dip", noise=0.01)
    assert knee.batch_size in (128, 192)
    assert knee.peak_batch_size == 192


def test_padding_steps_recover_cliffs_do_not():
    sizes = (112, 128, 144, 256, 272, 384)
    knee = find_knee(sizes, (1000.0, 1120.0, 900.0, 1300.0, 1180.0, 1400.0), noise=0.01)
    assert knee.padding_steps == (144, 272)
    assert knee.cliffs == ()


def test_never_saturating_is_outside_the_range():
    knee = find_knee((1, 2, 4, 8, 16, 32), (100, 199, 396, 780, 1500, 2900))
    assert (knee.kind, knee.batch_size) == ("outside_range", 32)
    assert 64 in knee.measure_next


def test_range_that_ends_where_sizes_fail_is_not_too_short():
    knee = find_knee((1, 2, 4, 8, 16, 32, 64), (100, 199, 396, 780, 1500, 2900, 0))
    assert (knee.kind, knee.batch_size) == ("inside", 32)


def test_two_sizes_show_no_knee():
    knee = find_knee((1, 64), (100.0, 1000.0))
    assert (knee.kind, knee.batch_size) == ("none", 64)


@pytest.mark.parametrize(("sizes", "speed"), [((), ()), ((1, 2), (0.0, 0.0))])
def test_nothing_runs(sizes, speed):
    knee = find_knee(sizes, speed)
    assert (knee.kind, knee.batch_size, knee.interval) == ("none", None, None)


def test_interval_widens_with_noise_and_holds_the_pick():
    sizes, speed = CURVES["gpt"]
    for noise in (0.003, 0.03, 0.15):
        knee = find_knee(sizes, speed, noise=noise)
        assert knee.interval is not None and knee.batch_size is not None
        assert knee.interval[0] <= knee.batch_size <= knee.interval[1]
        assert knee.batch_size in sizes
    quiet, loud = (find_knee(sizes, speed, noise=n).interval for n in (0.003, 0.15))
    assert quiet is not None and loud is not None
    assert quiet[1] - quiet[0] < loud[1] - loud[0]


def test_repeats_count_as_one_better_figure():
    sizes, speed = CURVES["gpt"]
    low = [figure * 0.9 for figure in speed]
    high = [figure / 0.9 for figure in speed]
    assert find_knee(sizes * 2, low + high).batch_size == find_knee(sizes, speed).batch_size


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_sizes": (1, 2)}, "2 batch sizes but 3 throughputs"),
        ({"batch_sizes": (0, 1, 2)}, "positive"),
        ({"batch_sizes": (1.5, 2, 4)}, "whole numbers"),
        ({"batch_sizes": (1, 2, 10**30)}, "too large"),
        ({"batch_sizes": (True, True, True)}, "found True"),
        ({"batch_sizes": "124"}, "a list or an array"),
        ({"batch_sizes": ((1, 2), (4,))}, "not alike"),
        ({"throughput_per_s": (1.0, None, 2.0)}, "found None"),
        ({"throughput_per_s": (1.0, -1.0, 2.0)}, "0 or from"),
        ({"throughput_per_s": (1e300, 1.0, 2.0)}, "0 or from"),
        ({"throughput_per_s": (1.0, 2.0, "3")}, "found '3'"),
        ({"share": None}, "share is a number"),
        ({"noise": math.nan}, "noise is a number"),
        ({"limit_s": 0.0, "latency_p99_s": (1.0, 1.0, 1.0)}, "limit_s is above 0"),
        ({"limit_s": "1s", "latency_p99_s": (1.0, 1.0, 1.0)}, "limit_s is a number"),
        ({"limit_s": 1.0, "latency_p99_s": (1.0, 1.0)}, "3 batch sizes but 2 latencies"),
        ({"grid": (0, 1)}, "grid: sizes are positive"),
        ({"batch_sizes": range(1, 1002), "throughput_per_s": [1.0] * 1001}, "more than 1000"),
        ({"throughput_per_s": (1.0, math.nan, 2.0)}, "finite"),
        ({"share": 0.0}, "share"),
        ({"noise": 0.0}, "noise"),
        ({"limit_s": 1.0}, "go together"),
        ({"limit_s": 1.0, "latency_p99_s": (1.0, -1.0, 1.0)}, "latencies"),
    ],
)
def test_refuses(arguments, message):
    plain = {"batch_sizes": (1, 2, 4), "throughput_per_s": (1.0, 2.0, 3.0)}
    with pytest.raises(ValueError, match=message):
        find_knee(**{**plain, **arguments})


def test_the_latency_of_a_size_that_cannot_run_does_not_matter():
    arguments = {"batch_sizes": SIZES, "throughput_per_s": (100.0, 190.0, 300.0, 0.0), "limit_s": 1}
    latency = [0.1, 0.2, 0.3]
    found = {find_knee(**arguments, latency_p99_s=[*latency, x]) for x in (0.0, math.nan, 9.0)}
    assert len(found) == 1 and found.pop().batch_size == 4


@pytest.mark.parametrize("speed", [(1e-15,) * 4, (1e15,) * 4, (1e-15, 1e15, 1e-15, 1e15)])
def test_figures_far_from_any_real_one_break_nothing(speed):
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        assert find_knee(SIZES, speed, noise=1e-6).batch_size in SIZES


# --- under a limit -------------------------------------------------------------------------------


def sweep(limit_ms: float) -> Knee:
    sizes, speed, latency = zip(*SWEEP, strict=True)
    return find_knee(
        sizes,
        speed,
        latency_p99_s=[ms / 1e3 for ms in latency],
        limit_s=limit_ms / 1e3,
        noise=0.01,
    )


def test_limit_comes_before_throughput():
    assert sweep(18.84).batch_size == 32
    assert sweep(50.0).batch_size in (128, 160)
    wide = sweep(1000.0)
    sizes, speed, _ = zip(*SWEEP, strict=True)
    assert wide.batch_size == find_knee(sizes, speed, noise=0.01).batch_size


def test_limit_below_every_latency():
    knee = sweep(5.0)
    assert (knee.kind, knee.batch_size) == ("none", None)


# --- measuring adaptively ------------------------------------------------------------------------


def explore(name: str, noise: float = 0.02) -> tuple[list[int], Knee]:
    """Measure a published curve point by point, without noise, until it is settled."""
    sizes, speed = CURVES[name]
    known: list[int] = []
    figures: list[float] = []
    while wanted := next_points(known, figures, sizes, noise=noise):
        for size in wanted:
            known.append(size)
            figures.append(speed[sizes.index(size)])
        assert len(known) <= 2 * len(sizes)
    return known, find_knee(known, figures, noise=noise)


def test_begins_with_the_ends():
    assert next_points((), (), OCTAVES) == (1, 256)
    assert next_points((1,), (5.0,), OCTAVES) == (256,)
    assert next_points((), (), (8,)) == (8,)


@pytest.mark.parametrize("name", CURVES)
def test_settles_near_the_peak(name):
    sizes, speed = CURVES[name]
    known, knee = explore(name)
    assert len(known) <= len(sizes) + 1
    assert knee.batch_size is not None
    # A sparse look may miss a single point that nothing around it announces.
    allowed = {"good point": 0.45, "bad point": 0.83, "early dip": 0.92}.get(name, 0.93)
    assert speed[sizes.index(knee.batch_size)] >= allowed * max(speed)


def test_a_long_smooth_curve_needs_few_points():
    known, _ = explore("early knee")
    assert len(known) <= 6


def test_isolated_points_are_repeated_once():
    sizes, speed = CURVES["bad point"]
    assert next_points(sizes, speed, sizes) == (32,)
    assert next_points((*sizes, 32), (*speed, 610.0), sizes) == ()


def test_sizes_above_one_that_failed_are_not_tried():
    wanted = next_points((1, 256), (100.0, 0.0), OCTAVES)
    assert wanted == (8,)
    grid = OCTAVES
    known, figures = [1, 256], [100.0, 0.0]
    while wanted := next_points(known, figures, grid):
        known += wanted
        figures += [100.0 * size / (1 + 0.02 * size) if size <= 32 else 0.0 for size in wanted]
    assert find_knee(known, figures).batch_size == 32
    assert known.count(128) + known.count(64) <= 2


def test_a_limit_is_approached_by_repeating_its_neighbours():
    grid = tuple(size for size, _, _ in SWEEP)
    truth = {size: (speed, ms / 1e3) for size, speed, ms in SWEEP}
    rng = np.random.default_rng(0)
    known: list[int] = []
    figures: list[tuple[float, float]] = []
    while len(known) < len(grid):
        speed, latency = ([f[i] for f in figures] for i in (0, 1))
        wanted = next_points(known, speed, grid, latency_p99_s=latency, limit_s=0.01884)
        if not wanted:
            break
        for size in wanted:
            known.append(size)
            factors = np.exp(0.03 * rng.standard_normal(2))
            figures.append((truth[size][0] * factors[0], truth[size][1] * factors[1]))
    speed, latency = ([f[i] for f in figures] for i in (0, 1))
    knee = find_knee(known, speed, latency_p99_s=latency, limit_s=0.01884)
    assert knee.batch_size is not None
    assert truth[knee.batch_size][1] <= 1.03 * 0.01884
    assert truth[knee.batch_size][0] >= 0.95 * 2559


@pytest.mark.parametrize("grid", [(), (0, 1), (2, 4, 8)])
def test_grid_holds_what_was_measured(grid):
    with pytest.raises(ValueError, match="grid"):
        next_points((1,), (5.0,), grid)


# --- quick versions of benchmarks/knee.py --------------------------------------------------------


def published(name: str) -> object:
    sizes, speed = CURVES[name]
    return BENCH["Published"](source=name, sizes=sizes, speed=np.array(speed))


PLAIN = [name for name in CURVES if name not in ("bad point", "good point", "early dip")]


def test_pick_survives_noise_when_all_points_are_visible():
    results = BENCH["sample"](BENCH["visible"], [published(name) for name in PLAIN], 20, 0.03)
    assert results[..., 0].min() >= 0.9
    assert (results[..., 0] >= 0.93).mean() >= 0.88  # three curves have a size within .91 to .93
    assert (results[..., 1] == 0).mean() >= 0.68  # the plain "95 % of the best figure": 0.65


def test_adaptive_pick_survives_noise_with_fewer_points():
    results = BENCH["sample"](BENCH["adaptive"], [published(name) for name in CURVES], 10, 0.03)
    delivered, measured = results[..., 0], results[..., 1]
    plain = [list(CURVES).index(name) for name in PLAIN]
    assert np.maximum(0.95 - delivered[plain], 0).mean() <= 0.01
    assert (delivered[plain] < 0.9).mean() <= 0.02
    assert np.median(measured) <= 0.7


def test_pick_under_a_limit_never_breaks_it():
    sizes, speed, latency = zip(*SWEEP, strict=True)
    curve = BENCH["Published"](
        source="", sizes=sizes, speed=np.array(speed), latency_p99_s=np.array(latency) / 1e3
    )
    results = BENCH["sample"](BENCH["limited"], [curve], 40, 0.03)
    assert results[..., 1].max() <= 1.03
    assert (results[..., 0] >= 0.95).mean() >= 0.8
    assert results[..., 2].max() <= 0.5
