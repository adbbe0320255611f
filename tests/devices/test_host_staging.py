from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from autotune.core.errors import UsageError
from autotune.core.records import Config, InputSpec
from autotune.devices.host_staging import Bound, HostStaging
from autotune.devices.staging import ALIGN_BYTES

INPUTS = (
    InputSpec(name="ids", shape=("batch", 3), dtype="int64"),
    InputSpec(name="mask", shape=("batch",), dtype="bool"),
    InputSpec(name="middle", shape=(2, "batch", 5)),
    InputSpec(name="half", shape=("batch", 7), dtype="float16"),
    InputSpec(name="scale", shape=(), dtype="float64"),
    InputSpec(name="table", shape=(4, 2), dtype="uint32"),
)
BATCH, RING = 8, 3


def requests() -> list[list[np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        [np.asarray(rng.integers(0, 100, i.sizes(BATCH))).astype(i.dtype) for i in INPUTS]
        for _ in range(RING)
    ]


def staging(packed: bool, parts: int, slots: int = 2) -> HostStaging:
    config = Config(batch_size=BATCH, batched_h2d=packed, micro_batch_count=parts)
    return HostStaging(INPUTS, requests(), config, bind=list, slot_count=slots)


def expected(call: int, part: int, parts: int, items: int | None = None) -> list[np.ndarray]:
    found = []
    for spec, array in zip(INPUTS, requests()[call % RING], strict=True):
        if spec.batch_axis is not None:
            size = BATCH // parts
            begin = part * size
            array = array.take(range(begin, begin + (items or size)), axis=spec.batch_axis)
        found.append(array)
    return found


def assert_holds(tensors: Sequence[Bound], wanted: Sequence[np.ndarray]) -> None:
    for bound, array in zip(tensors, wanted, strict=True):
        assert (bound.shape, bound.dtype) == (array.shape, array.dtype)
        assert bound.address == bound.array.ctypes.data
        np.testing.assert_array_equal(bound.array, array)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_every_micro_batch_of_every_request_arrives(packed: bool, parts: int) -> None:
    stage = staging(packed, parts)
    assert stage.method == ("packed" if packed else "separate")
    assert stage.copies_per_call == parts * (1 if packed else len(INPUTS))
    for call in range(2 * RING):
        for part in range(parts):
            (tensors,) = stage.load(call, part)
            assert_holds(tensors, expected(call, part, parts))


@pytest.mark.parametrize("packed", [False, True])
def test_the_first_items_alone(packed: bool) -> None:
    stage = staging(packed, 2)
    for call, part in ((0, 1), (1, 0), (0, 0)):
        (tensors,) = stage.load(call, part, 3)
        assert_holds(tensors, expected(call, part, 2, items=3))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("slots", [2, 4])
def test_a_slot_is_left_alone_for_as_many_loads_as_there_are_slots(
    packed: bool, slots: int
) -> None:
    stage = staging(packed, 4, slots)
    loaded = [stage.load(0, part)[0] for part in range(slots)]
    for part, tensors in enumerate(loaded):
        assert_holds(tensors, expected(0, part, 4))
    assert len({tensors[0].address for tensors in loaded}) == slots


def test_tensors_stay_where_they_are_and_are_bound_once() -> None:
    bound = []
    config = Config(batch_size=BATCH)
    stage = HostStaging(INPUTS, requests(), config, bind=lambda t: bound.append(t) or object())
    first = [stage.load(call, 0) for call in range(2)]
    assert [stage.load(call, 0) for call in range(2, 6)] == first * 2
    assert len(bound) == 2
    assert all(tensor.address % ALIGN_BYTES == 0 for tensors in bound for tensor in tensors)


def test_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(UsageError, match="batch_size=8 does not divide into micro_batch_count=3"):
        staging(False, 3)
