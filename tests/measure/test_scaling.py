"""The Universal Scalability Law: found from declared rates, and bounded where it was not seen."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.measure.scaling import CONFIDENCE, ScalePoint, fit_scaling


def law(n: int, sigma: float, kappa: float) -> float:
    return 1000.0 * n / (1 + sigma * (n - 1) + kappa * n * (n - 1))


def points(
    sigma: float, kappa: float, counts: tuple[int, ...], error: float, seed: int | None = None
) -> list[ScalePoint]:
    rng = np.random.default_rng(seed)
    noise = rng.normal(0.0, error, len(counts)) if seed is not None else np.zeros(len(counts))
    return [
        ScalePoint(device_count=n, rate=law(n, sigma, kappa) * math.exp(e), error=error)
        for n, e in zip(counts, noise, strict=True)
    ]


@pytest.mark.parametrize(("sigma", "kappa"), [(0.0, 0.0), (0.05, 0.0), (0.0, 0.002), (0.08, 0.003)])
def test_exact_rates_give_the_law_back(sigma: float, kappa: float) -> None:
    found = fit_scaling(points(sigma, kappa, (1, 2, 4, 8), 0.001))
    assert found.sigma == pytest.approx(sigma, abs=1e-6)
    assert found.kappa == pytest.approx(kappa, abs=1e-6)
    assert found.rate(16) == pytest.approx(law(16, sigma, kappa), rel=1e-5)
    assert found.sigma_range[0] <= sigma <= found.sigma_range[1] < math.inf
    assert found.kappa_range[0] <= kappa <= found.kappa_range[1] < math.inf
    assert found.excess == 1.0 and found.measured_up_to == 8


def test_the_lower_bound_is_below_the_truth_as_often_as_promised() -> None:
    missed = {2: 0, 4: 0, 16: 0}
    for seed in range(60):
        found = fit_scaling(points(0.05, 0.001, (1, 2, 4), 0.01, seed))
        for n in missed:
            missed[n] += found.least_rate(n) > law(n, 0.05, 0.001)
            assert found.least_rate(n) < found.rate(n)
    # Binomial with 1 - CONFIDENCE: more than 4 of 60 has a probability below 0.001.
    assert CONFIDENCE == 0.99
    assert max(missed.values()) <= 4


def test_bounds_widen_away_from_what_was_measured() -> None:
    found = fit_scaling(points(0.05, 0.001, (1, 2, 4), 0.01))
    shares = [found.least_rate(n) / found.rate(n) for n in (4, 8, 16, 32)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.95 and shares[-1] < 0.75
    assert found.most_slowdown(8) > found.slowdown(8) > 1.0


def test_one_number_of_devices_bounds_no_other() -> None:
    found = fit_scaling(points(0.0, 0.0, (1,), 0.01))
    assert found.least_rate(1) == pytest.approx(1000.0 * (1 - 0.0233), rel=0.01)
    assert found.least_rate(2) == 0.0
    assert found.most_slowdown(2) == math.inf
    assert found.sigma_range[1] == math.inf


def test_two_numbers_bound_the_worst_law_through_both() -> None:
    found = fit_scaling(points(0.1, 0.0, (1, 2), 1e-4))
    # All of the loss may be of pairs: 2 kappa = 0.1.
    worst = 8000.0 / (1 + 0.05 * 8 * 7)
    assert found.least_rate(8) == pytest.approx(worst, rel=0.03)


def test_points_off_the_law_widen_their_errors() -> None:
    bent = [*points(0.0, 0.0, (1, 2, 4, 8), 0.001)]
    bent[2] = ScalePoint(device_count=4, rate=0.9 * bent[2].rate, error=0.001)
    found = fit_scaling(bent)
    assert found.excess > 10
    assert found.least_rate(8) < 0.95 * law(8, 0.0, 0.0)


def test_better_than_linear_counts_as_linear() -> None:
    found = fit_scaling(
        [ScalePoint(device_count=n, rate=1000.0 * n**1.1, error=0.001) for n in (1, 2, 4)]
    )
    assert (found.sigma, found.kappa) == (0.0, 0.0)


def test_repeated_points_count_together() -> None:
    one = ScalePoint(device_count=1, rate=100.0, error=0.02)
    found = fit_scaling([one] * 4)
    assert found.points[0].error == pytest.approx(0.01)


@pytest.mark.parametrize("bad", [[], [ScalePoint(device_count=1, rate=0.0, error=0.1)]])
def test_nothing_to_fit_is_refused(bad: list[ScalePoint]) -> None:
    with pytest.raises(ValueError, match="rate"):
        fit_scaling(bad)
