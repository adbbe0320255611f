from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.core.errors import UsageError
from autotune.measure.buckets import BucketCosts, choose_buckets

Lengths = dict[int, float]


def total(lengths: Lengths, sizes: tuple[int, ...], costs: BucketCosts) -> float:
    """What a set of buckets costs, straight from its definition; inf if it cannot be had."""
    memory = sum(costs.memory(size) for size in sizes) if costs.memory else 0.0
    if max(sizes) < max(lengths) or memory > (costs.memory_limit_bytes or math.inf):
        return math.inf
    held = {length: min(size for size in sizes if size >= length) for length in lengths}
    share = costs.item_count / sum(lengths.values()) if costs.item_count else 1.0
    items = sum(count * costs.item(held[length]) for length, count in lengths.items())
    return share * items + costs.compile_s * len(sizes)


def by_trying_all(lengths: Lengths, most: int, multiple_of: int, costs: BucketCosts) -> float:
    """The least cost over every set of multiples that could matter."""
    top = 1 << (max(lengths) - 1).bit_length()
    sizes = range(multiple_of, top + multiple_of, multiple_of)
    sets = (s for k in range(1, most + 1) for s in itertools.combinations(sizes, k))
    return min((total(lengths, chosen, costs) for chosen in sets), default=math.inf)


@given(
    lengths=st.dictionaries(st.integers(1, 12), st.integers(1, 50), min_size=1, max_size=8),
    most=st.integers(1, 4),
    multiple_of=st.integers(1, 3),
    compile_s=st.sampled_from([0.0, 0.5, 20.0, 300.0]),
    item=st.sampled_from([float, lambda size: 3.0 + size * size, math.sqrt]),
    item_count=st.sampled_from([None, 10.0, 1000.0]),
    limit=st.sampled_from([None, 12.0, 20.0, 33.0]),
)
@settings(max_examples=150, deadline=None)
def test_no_other_set_of_buckets_is_cheaper(
    lengths: Lengths,
    most: int,
    multiple_of: int,
    compile_s: float,
    item: Callable[[float], float],
    item_count: float | None,
    limit: float | None,
) -> None:
    costs = BucketCosts(
        item=item,
        compile_s=compile_s,
        item_count=item_count,
        memory=lambda size: 2.0 + size,
        memory_limit_bytes=limit,
    )
    least = by_trying_all(lengths, most, multiple_of, costs)
    if math.isinf(least):
        with pytest.raises(UsageError, match="fits into a memory limit"):
            choose_buckets(lengths, most, multiple_of=multiple_of, costs=costs)
        return
    found = choose_buckets(lengths, most, multiple_of=multiple_of, costs=costs)
    assert found.best.cost == pytest.approx(least)
    assert found.best.cost == pytest.approx(total(lengths, found.best.sizes, costs))
    assert len(found.best.sizes) <= most
    assert all(size % multiple_of == 0 for size in found.best.sizes)
    if found.powers_of_two is not None:
        assert found.best.cost <= found.powers_of_two.cost * (1 + 1e-12)


@given(
    lengths=st.dictionaries(st.integers(1, 3000), st.integers(1, 1000), min_size=1, max_size=300),
    most=st.integers(1, 12),
    times=st.lists(st.floats(0.1, 10.0), min_size=64, max_size=64),
)
@settings(max_examples=40, deadline=None)
def test_never_worse_than_powers_of_two_even_where_longer_is_faster(
    lengths: Lengths, most: int, times: list[float]
) -> None:
    found = choose_buckets(
        lengths, most, costs=BucketCosts(item=lambda size: times[int(size) % 64] + size / 1e4)
    )
    assert found.powers_of_two is not None
    assert found.best.cost <= found.powers_of_two.cost * (1 + 1e-12)
    assert len(found.powers_of_two.sizes) <= most


def test_figures_of_a_case_that_can_be_counted_by_hand() -> None:
    found = choose_buckets({10: 3, 16: 1, 100: 1}, 2)
    assert found.best.sizes == (16, 100)
    assert found.best.cost == 4 * 16 + 100
    assert found.best.padding == pytest.approx(1 - (30 + 16 + 100) / (64 + 100))
    assert found.powers_of_two is not None and found.powers_of_two.sizes == (16, 128)
    assert found.single is not None and found.single.cost == 500
    assert found.unpadded_cost == 146


def test_a_bucket_that_does_not_pay_for_its_compilation_is_not_made() -> None:
    cheap = choose_buckets([10] * 3 + [100], 4, costs=BucketCosts(compile_s=1))
    dear = choose_buckets([10] * 3 + [100], 4, costs=BucketCosts(compile_s=1000))
    often = choose_buckets([10] * 3 + [100], 4, costs=BucketCosts(compile_s=1000, item_count=1e6))
    assert cheap.best.sizes == often.best.sizes == (10, 100)
    assert dear.best.sizes == (100,)


@pytest.mark.parametrize(
    ("lengths", "most", "message"),
    [
        ([], 4, "there are no lengths"),
        ([0, 3], 4, "length 0 with the frequency 1"),
        ([3], 0, "max_buckets is from 1"),
        (range(1, 20000), 4, "round them up to a multiple"),
    ],
)
def test_what_cannot_be_chosen_from_is_refused(lengths: list[int], most: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choose_buckets(list(lengths), most)


def test_a_limit_on_memory_that_all_take_alike_is_one_on_their_number() -> None:
    costs = BucketCosts(memory=lambda size: 1e6, memory_limit_bytes=3.5e6)
    lengths = list(range(1, 1500))
    assert choose_buckets(lengths, costs=costs).best.sizes == choose_buckets(lengths, 3).best.sizes
