from __future__ import annotations

import numpy as np
import pytest

from autotune.core.errors import UsageError
from autotune.core.records import InputSpec
from autotune.workloads.data import DTYPES, MAX_RING, MIN_RING, make_requests, ring_size


def spec(**values: object) -> InputSpec:
    return InputSpec(**{"name": "x", "shape": ("batch", 16), **values})  # type: ignore[arg-type]


def test_default_integers_suit_any_table() -> None:
    for dtype in ("int64", "int32", "uint8", "int8", "int16"):
        ((values,),) = make_requests([spec(dtype=dtype)], 64, 1, seed=0)
        assert values.dtype == dtype
        assert set(np.unique(values)) == {0, 1}


def test_high_is_exclusive_and_both_ends_are_met() -> None:
    ((values,),) = make_requests([spec(dtype="int64", low=-2, high=3)], 200, 1, seed=0)
    assert set(np.unique(values)) == {-2, -1, 0, 1, 2}


def test_floats_are_normal_unless_a_range_is_given() -> None:
    ((normal,),) = make_requests([spec()], 2000, 1, seed=0)
    assert abs(normal.mean()) < 0.05 and abs(normal.std() - 1) < 0.05
    ((ranged,),) = make_requests([spec(low=2.0, high=4.0)], 2000, 1, seed=0)
    assert 2.0 <= ranged.min() < 2.1 and 3.9 < ranged.max() < 4.0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [("batch", 3), (2, "batch", 3), (5,), ()])
def test_every_type_and_shape_can_be_drawn(dtype: str, shape: tuple[int | str, ...]) -> None:
    item = spec(dtype=dtype, shape=shape)
    ((values,),) = make_requests([item], 4, 1, seed=0)
    assert values.shape == item.sizes(4)
    assert values.dtype == ("float32" if dtype == "bfloat16" else dtype)


def test_requests_differ_from_each_other_and_between_inputs() -> None:
    requests = make_requests([spec(), spec(name="y")], 4, 3, seed=1)
    arrays = [array.tobytes() for request in requests for array in request]
    assert len(set(arrays)) == 6


def test_the_seed_decides() -> None:
    first, again, other = (make_requests([spec()], 4, 2, seed=s) for s in (1, 1, 2))
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0][0], other[0][0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [("batch", 3), (3, "batch"), (2, "batch", 3)])
def test_a_small_batch_holds_the_first_items_of_a_large(
    dtype: str, shape: tuple[int | str, ...]
) -> None:
    item = spec(dtype=dtype, shape=shape, high=5)
    small, large = (make_requests([item], size, 2, seed=3)[1][0] for size in (3, 8))
    assert item.batch_axis is not None
    assert np.array_equal(small, np.take(large, range(3), axis=item.batch_axis))


def test_the_ring_is_bounded_by_memory_but_never_one() -> None:
    assert ring_size([spec()], 1) == MAX_RING
    assert ring_size([spec(shape=("batch", 3, 224, 224))], 32) == 3
    assert ring_size([spec(shape=("batch", 3, 224, 224))], 4096) == MIN_RING
    assert ring_size([], 4) == MAX_RING


def test_an_unknown_type_names_the_key_and_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"workload\.inputs: x: .*'int63'.*int64"):
        make_requests([spec(dtype="int63")], 1, 1, seed=0)
