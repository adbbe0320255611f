from __future__ import annotations

import math
import random
import runpy
from pathlib import Path

import numpy as np
import pytest

from autotune.measure.tail import (
    calls_needed,
    judge_tail,
    look_alpha,
    look_sizes,
    quantile,
    quantile_interval,
    variance_floor_for,
    variance_ratio,
)

BENCH = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "measurement.py"))
PROCESSES = BENCH["PROCESSES"]


def flags(n: int, over: int) -> np.ndarray:
    """`over` of `n` samples over the limit, evenly spread."""
    series = np.zeros(n, dtype=bool)
    series[np.linspace(0, n - 1, over, dtype=int)] = True
    return series


# --- quantile ------------------------------------------------------------------------------------


def test_quantile_is_a_value_of_the_sample():
    assert quantile([1] * 9 + [2], 0.99) == 2
    assert quantile([1] * 9 + [2], 0.5) == 1
    assert quantile([1] * 19 + [100], 0.99) == 100
    values = list(range(1, 1001))
    random.Random(0).shuffle(values)
    assert [quantile(values, q) for q in (0.0, 0.5, 0.99, 0.999, 1.0)] == [1, 500, 990, 999, 1000]


@pytest.mark.parametrize("q", [0.0, 0.5, 0.99, 1.0])
def test_quantile_of_one_value_is_that_value(q):
    assert quantile([5.0], q) == 5.0


def test_quantile_is_ordered_for_any_sample():
    rng = np.random.default_rng(0)
    for n in range(1, 120):
        values = rng.standard_normal(n)
        p50, p99 = quantile(values, 0.5), quantile(values, 0.99)
        assert values.min() <= p50 <= p99 <= values.max()


def test_quantile_rank_survives_rounding():
    # 0.07 * 100 is a little above 7 in binary: the rank must not slip to the next value.
    assert quantile(range(1, 101), 0.07) == 7


def test_quantile_counts_requests_that_never_ended():
    assert quantile([1.0, 2.0, math.inf], 0.99) == math.inf


@pytest.mark.parametrize(
    ("values", "q"), [([], 0.5), ([1.0, math.nan], 0.5), ([1.0], 1.5), ([1.0], -0.1)]
)
def test_quantile_refuses(values, q):
    with pytest.raises(ValueError, match="quantile"):
        quantile(values, q)


# --- judge_tail: the binomial rule ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("over", "needed", "alpha"),
    [
        *[(0, 299, 0.05), (1, 473, 0.05), (2, 628, 0.05), (10, 1693, 0.05)],
        *[(0, 459, 0.01), (1, 662, 0.01), (2, 838, 0.01), (10, 2010, 0.01)],
    ],
)
def test_passes_from_the_sample_size_of_the_exact_binomial(over, needed, alpha):
    """The table of MLPerf's early stopping for P99."""
    assert judge_tail(flags(needed, over), alpha=alpha).status == "pass"
    assert judge_tail(flags(needed - 1, over), alpha=alpha).status == "undecided"


def test_fails_where_that_many_would_be_rare():
    assert judge_tail(flags(1000, 17)).status == "fail"  # P(Bin(1000, .01) >= 17) = 2.6 %
    assert judge_tail(flags(1000, 15)).status == "undecided"  # 8.2 %
    assert judge_tail(flags(1000, 17), alpha=0.01).status == "undecided"


def test_any_quantile():
    assert judge_tail(flags(1000, 50), quantile=0.9).status == "pass"
    assert judge_tail(flags(1000, 50), quantile=0.99).status == "fail"
    assert judge_tail(flags(1000, 0), quantile=0.999).status == "undecided"
    assert judge_tail(flags(4603, 0), quantile=0.999, alpha=0.01).status == "pass"


def test_figures_of_the_verdict():
    verdict = judge_tail(flags(1000, 10))
    assert verdict.status == "undecided"
    assert verdict.estimate == 0.01
    assert verdict.lower == pytest.approx(0.00543, abs=1e-4)  # Clopper-Pearson, one-sided 95 %
    assert verdict.upper == pytest.approx(0.01690, abs=1e-4)
    assert verdict.effective_n == pytest.approx(1000)
    assert verdict.variance_ratio == pytest.approx(1)
    assert verdict.needed_n is None  # exactly at the boundary: no number of samples settles it


def test_needed_n_settles_it():
    undecided = judge_tail(flags(1000, 7))
    assert undecided.status == "undecided"
    n = 1000 + undecided.needed_n
    assert judge_tail(flags(n, int(0.007 * n))).status == "pass"
    assert judge_tail(flags(int(0.9 * n), round(0.0063 * n))).status == "undecided"
    assert judge_tail(flags(1000, 3)).needed_n == 0


def test_no_samples_decide_nothing():
    verdict = judge_tail([])
    assert verdict.status == "undecided"
    assert math.isnan(verdict.estimate)
    assert (verdict.lower, verdict.upper, verdict.effective_n) == (0.0, 1.0, 0.0)
    assert verdict.needed_n == 299


@pytest.mark.parametrize(
    "wrong", [{"quantile": 1.0}, {"alpha": 0.0}, {"alpha": 0.5}, {"variance_floor": 0.5}]
)
def test_refuses(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        judge_tail([False] * 500, **wrong)


@pytest.mark.parametrize(
    "odd",
    [
        [0.003, 0.021],  # latencies, not yet compared with a limit
        np.array([0, 2]),
        [math.nan] * 500,
        [None],
        ["a"],
        [[True], [True, False]],
        np.zeros((20, 50), dtype=bool),
        True,
        None,
        "abc",
        {True, False},
        (False for _ in range(5)),
    ],
)
def test_only_truth_values_in_a_row_are_judged(odd):
    with pytest.raises(ValueError, match="over_limit"):
        judge_tail(odd)


@pytest.mark.parametrize("odd", [math.nan, "0.9", None, [0.9], True])
@pytest.mark.parametrize("name", ["quantile", "alpha", "variance_floor"])
def test_levels_are_numbers(name, odd):
    with pytest.raises(ValueError, match=f"{name} is a number"):
        judge_tail([False] * 500, **{name: odd})


def test_ones_and_zeros_are_truth_values():
    plain = [index % 300 == 0 for index in range(3000)]
    for same in (list(map(int, plain)), np.array(plain, dtype=np.uint8), list(map(float, plain))):
        assert judge_tail(same) == judge_tail(plain)


# --- dependence ----------------------------------------------------------------------------------


def test_floor_makes_a_short_series_undecided():
    verdict = judge_tail([False] * 4000, variance_floor=16)
    assert (verdict.status, verdict.effective_n) == ("undecided", 250)
    assert verdict.needed_n == calls_needed(0.99, 0.05, 16) - 4000
    assert judge_tail([False] * 4784, variance_floor=16).status == "pass"


def test_one_long_stall_is_one_event():
    series = np.zeros(5000, dtype=bool)
    series[2000:2080] = True
    assert variance_ratio(series) > 50
    assert judge_tail(series).status == "undecided"  # 80 spread ones would fail
    assert judge_tail(flags(5000, 80)).status == "fail"


def test_everything_over_the_limit_fails_however_dependent():
    assert judge_tail([True] * 100, variance_floor=math.inf).status == "fail"
    assert judge_tail([False] * 10_000, variance_floor=math.inf).status == "undecided"
    assert judge_tail([False] * 10_000, variance_floor=math.inf).needed_n is None


def test_variance_ratio_finds_the_batch():
    rng = np.random.default_rng(0)
    series = np.repeat(rng.random(20_000) < 0.05, 8)
    assert 7 < variance_ratio(series) < 13
    assert variance_ratio(rng.random(160_000) < 0.05) < 1.5


def test_floor_of_a_load():
    assert variance_floor_for() == 1
    assert variance_floor_for(max_batch=64, utilisation=0.5) == 64
    assert variance_floor_for(max_batch=8, utilisation=0.9) == pytest.approx(180)
    assert variance_floor_for(utilisation=0.5, mean_stall_samples=50) == 100
    assert variance_floor_for(utilisation=1.2) == math.inf


def test_calls_needed():
    assert calls_needed(0.99, 0.05) == 299
    assert calls_needed(0.99, 0.01) == 459
    assert calls_needed(0.999, 0.01) == 4603
    assert calls_needed(0.99, 0.05, 16.0) == math.ceil(16 * 298.07)
    with pytest.raises(ValueError, match="finite"):
        calls_needed(0.99, 0.05, math.inf)


# --- looks ---------------------------------------------------------------------------------------


def test_looks_double_and_are_at_most_three():
    assert look_sizes(1000, 100_000) == (1000, 2000, 4000)
    assert look_sizes(1000, 3000) == (1000, 2000)
    assert look_sizes(1000, 999) == ()


@pytest.mark.parametrize("alpha", [0.1, 0.05, 0.01, 0.002])
@pytest.mark.parametrize("look_count", [1, 2, 3])
def test_looks_err_together_as_often_as_wanted(alpha, look_count):
    """Against a random walk looked at after 1, 2 and 4 steps."""
    steps = np.random.default_rng(0).standard_normal((4, 400_000))
    walk = np.cumsum(steps, axis=0)
    scores = np.array([walk[n - 1] / math.sqrt(n) for n in (1, 2, 4)[:look_count]])
    level = look_alpha(alpha, look_count)
    boundary = -BENCH["ndtri"](level)
    erred = float((scores.max(axis=0) > boundary).mean())
    assert 0.85 * alpha < erred < 1.06 * alpha


# --- simulated error rates, quick versions of benchmarks/measurement.py --------------------------

QUICK = 400


def allowed(bar: float) -> float:
    """The bar plus three standard errors of a share of `QUICK` series."""
    return bar + 3.0 * math.sqrt(bar * (1.0 - bar) / QUICK)


@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize("n", [1000, 5000])
def test_false_verdicts_at_the_boundary_are_rare(name, n):
    process = PROCESSES[name]
    for index, alpha in enumerate((0.05, 0.01)):
        passed, failed = BENCH["verdict_rates"](
            process, repeats=QUICK, n=n, share=0.01, alpha=alpha, seed=1
        )
        assert passed <= allowed(process.bars(n)[index])
        assert failed <= allowed(BENCH["FAIL_BARS"][index])


def test_dependence_ignored_would_be_caught():
    """The plain binomial passes far too often on batches: what the floor is for."""
    plain = BENCH["Process"](draw=BENCH["batches"], floor=1.0)
    passed, _ = BENCH["verdict_rates"](plain, repeats=200, n=1000, share=0.01, alpha=0.05, seed=1)
    assert passed > 0.3


@pytest.mark.parametrize(("n", "least"), [(1000, 0.85), (5000, 0.99)])
def test_power_on_independent_samples(n, least):
    passed, failed = BENCH["verdict_rates"](
        PROCESSES["independent"], repeats=1000, n=n, share=0.002, alpha=0.05, seed=1
    )
    assert passed >= least - 0.02
    assert failed == 0


def test_three_looks_err_no_more_than_one():
    passed, failed = BENCH["look_rates"](
        PROCESSES["independent"], repeats=QUICK, first_n=1000, alpha=0.05, seed=1
    )
    assert passed <= allowed(0.05)
    assert failed <= allowed(0.05)


def test_the_interval_of_a_quantile_holds_it_as_often_as_it_says():
    rng = np.random.default_rng(7)
    true = -math.log(0.01)
    found = [quantile_interval(rng.exponential(size=3000), 0.99) for _ in range(300)]
    assert all(low <= high for low, high in found)
    assert sum(low <= true <= high for low, high in found) / len(found) >= 0.93


def test_the_interval_of_dependent_values_is_wider_and_of_few_there_is_none():
    values = np.random.default_rng(7).exponential(size=3000)
    low, high = quantile_interval(values, 0.99)
    wide_low, wide_high = quantile_interval(np.repeat(values[:1000], 3), 0.99)
    assert wide_high - wide_low > high - low
    assert quantile_interval(values[:100], 0.99) is None
    assert quantile_interval([], 0.99) is None
