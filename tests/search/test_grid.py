"""Nearness on the lattice of choices."""

from __future__ import annotations

import itertools
import time

from hypothesis import given, settings
from hypothesis import strategies as st
from search_fakes import make_space, parameters

from autotune.core.records import Config
from autotune.search.grid import Grid


def distance(grid: Grid, a: tuple[int, ...], b: tuple[int, ...]) -> float:
    total = 0.0
    for p, size, i, j in zip(grid.params, grid.sizes, a, b, strict=True):
        total += abs(i - j) / (size - 1) if p.is_numeric else float(i != j)
    return total


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_nearest_is_the_nearest_of_all_that_are_left(data: st.DataObject) -> None:
    grid = Grid(
        make_space(
            params=parameters(
                batch_size=(1, 2, 4, 8, 16), instance_count=(1, 2, 3), mode=("a", "b", "c")
            )
        )
    )
    points = list(itertools.product(*map(range, grid.sizes)))
    wish = data.draw(st.sampled_from(points))
    taken = set(data.draw(st.lists(st.sampled_from(points), max_size=44)))
    found = grid.nearest(wish, taken)
    left = [p for p in points if p not in taken]
    if not left:
        assert found is None
    else:
        assert found in left
        assert distance(grid, wish, found) <= min(distance(grid, wish, p) for p in left) + 1e-9


def test_points_and_configurations_are_inverse() -> None:
    grid = Grid(make_space())
    for config in make_space().configs():
        point = grid.point(config)
        assert point is not None
        assert grid.config(point) == config
    assert grid.point(Config(batch_size=3)) is None
    assert grid.point(Config(extra=(("other", 1),))) is None


def test_a_pinned_parameter_stays() -> None:
    grid = Grid(make_space())
    taken = {(0, 1, 0)}
    found = grid.nearest((0, 1, 0), taken, pinned=(1,))
    assert found is not None
    assert found[1] == 1


def test_a_huge_space_is_searched_lazily() -> None:
    values = tuple(range(1, 101))
    grid = Grid(make_space(params=parameters(batch_size=values, a=values, b=values, c=values)))
    began_s = time.process_time()
    assert grid.nearest((50, 50, 50, 50), {(50, 50, 50, 50)}) is not None
    assert time.process_time() - began_s < 0.5
