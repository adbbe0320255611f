"""The gradient noise scale on a toy model whose exact value is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.core.errors import UsageError
from autotune.measure.noise_scale import SquaredNorms, noise_scale

GRADIENT, SPREAD = np.full(10, 0.1), np.full(10, 1.6)
EXACT = float((SPREAD**2).sum() / (GRADIENT**2).sum())  # 256 items


def steps(count: int, *, small: int, pieces: int, seed: int) -> list[SquaredNorms]:
    rng = np.random.default_rng(seed)
    drawn = rng.normal(GRADIENT, SPREAD / small**0.5, (count, pieces, GRADIENT.size))
    squares = (drawn**2).sum(2).mean(1), (drawn.mean(1) ** 2).sum(1)
    return [SquaredNorms(float(s), float(b)) for s, b in zip(*squares, strict=True)]


def test_it_is_near_the_exact_value_and_its_interval_holds_it():
    repeats = [
        noise_scale(steps(40, small=16, pieces=16, seed=s), small=16, big=256) for s in range(20)
    ]
    values = [found.items for found in repeats]
    assert np.median(values) == pytest.approx(EXACT, rel=0.25)
    held = [found.low <= EXACT <= (found.high or np.inf) for found in repeats]
    assert sum(held) >= 17


def test_a_single_step_is_never_enough():
    with pytest.raises(UsageError, match="20 steps at least, not 1"):
        noise_scale(steps(1, small=16, pieces=16, seed=0), small=16, big=256)
    with pytest.raises(UsageError, match="the second must be more"):
        noise_scale(steps(20, small=16, pieces=1, seed=0), small=16, big=16)


def test_where_noise_hides_the_gradient_it_says_so():
    found = noise_scale([SquaredNorms(100.0, 0.5)] * 20, small=1, big=100)
    assert found.items is None and "not known" in found.text()


def test_gradients_that_are_no_numbers_or_nothing_have_no_scale():
    right = steps(20, small=16, pieces=16, seed=0)
    with pytest.raises(UsageError, match="step 3 is not a number"):
        noise_scale([*right[:2], SquaredNorms(math.nan, 1.0), *right], small=16, big=256)
    with pytest.raises(UsageError, match="0 in every step"):
        noise_scale([SquaredNorms(0.0, 0.0)] * 20, small=16, big=256)
    still = noise_scale([SquaredNorms(4.0, 4.0)] * 20, small=16, big=256)
    assert (still.items, still.low, still.high) == (0.0, 0.0, 0.0)
