"""Fronts of several goals: who is on them, how much they reach, which points lie far apart."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.measure.front import hypervolume, non_dominated, spread_out


def test_a_point_that_another_beats_everywhere_is_not_on_the_front():
    values = np.array([[1.0, 5.0], [2.0, 4.0], [1.5, 3.0], [3.0, 1.0]])
    assert non_dominated(values).tolist() == [True, True, False, True]


def test_equal_points_are_all_on_the_front():
    assert non_dominated(np.ones((3, 2))).all()


def test_better_in_one_and_equal_in_the_rest_beats():
    assert non_dominated(np.array([[1.0, 2.0], [1.0, 3.0]])).tolist() == [False, True]


@pytest.mark.parametrize(
    ("values", "volume"),
    [
        ([[2.0]], 2.0),
        ([[2.0, 3.0]], 6.0),
        ([[2.0, 3.0], [3.0, 1.0]], 7.0),
        ([[2.0, 3.0], [3.0, 1.0], [1.0, 1.0]], 7.0),
        ([[1.0, 1.0, 1.0], [2.0, 0.5, 1.0]], 1.5),
        ([[-1.0, 5.0]], 0.0),
    ],
)
def test_hypervolume_above_zero(values: list[list[float]], volume: float):
    array = np.array(values)
    assert hypervolume(array, np.zeros(array.shape[1])) == pytest.approx(volume)


@pytest.mark.parametrize("goals", [2, 3, 4])
def test_hypervolume_agrees_with_counting_random_points(goals: int):
    rng = np.random.default_rng(goals)
    values = rng.random((8, goals))
    inside = (rng.random((40_000, 1, goals)) <= values).all(axis=2).any(axis=1).mean()
    assert hypervolume(values, np.zeros(goals)) == pytest.approx(inside, abs=0.01)


def test_spread_out_takes_the_ends_and_then_what_is_far_from_them():
    values = np.array([[0.0, 10.0], [1.0, 9.9], [5.0, 6.0], [9.9, 1.0], [10.0, 0.0]])
    assert sorted(spread_out(values, 3, np.array([], dtype=np.int64)).tolist()) == [0, 2, 4]
    assert spread_out(values, 3, np.array([1])).tolist()[0] == 1
    assert len(spread_out(values, 9, np.array([1]))) == 5
