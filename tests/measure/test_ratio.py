"""The t interval over pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.measure.ratio import geometric_mean, ratio_interval


def test_a_ratio_and_its_inverse_cancel() -> None:
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)


def test_the_interval_agrees_with_scipy() -> None:
    from scipy import stats

    ratios = [1.1, 1.3, 1.2, 1.25, 1.15, 1.22]
    logs = np.log(ratios)
    expected = stats.t.interval(0.99, len(logs) - 1, logs.mean(), stats.sem(logs))
    assert ratio_interval(ratios, 0.99) == pytest.approx(np.exp(expected))


def test_it_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        low, high = ratio_interval(np.exp(rng.normal(0.3, 0.1, 6)).tolist(), 0.95)
        covered += low <= math.exp(0.3) <= high
    assert 0.935 <= covered / 2000 <= 0.965


@pytest.mark.parametrize("ratios", [[], [1.2], [1.2, 0.0]])
def test_too_little_says_nothing(ratios: list[float]) -> None:
    assert ratio_interval(ratios, 0.95) == (0.0, math.inf)
