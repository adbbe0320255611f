from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch

from autotune.core.errors import UsageError
from autotune.core.records import Config, InputSpec
from autotune.devices.staging import (
    ALIGN_BYTES,
    TorchStaging,
    _check_foreach,
    _foreach_groups,
    layout,
)

INPUTS = (
    InputSpec(name="ids", shape=("batch", 3), dtype="int64"),
    InputSpec(name="mask", shape=("batch",), dtype="bool"),
    InputSpec(name="middle", shape=(2, "batch", 5), dtype="float32"),
    InputSpec(name="half", shape=("batch", 7), dtype="float16"),
    InputSpec(name="brain", shape=(3, "batch"), dtype="bfloat16"),
    InputSpec(name="scale", shape=(), dtype="float64"),
    InputSpec(name="table", shape=(4, 2), dtype="int32"),
    InputSpec(name="byte", shape=("batch", 1), dtype="uint8"),
)
BATCH = 8


def requests(count: int = 3) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(0)
    numpy_types = {"bfloat16": "float32"}
    return [
        [
            np.asarray(rng.integers(0, 100, spec.sizes(BATCH))).astype(
                numpy_types.get(spec.dtype, spec.dtype)
            )
            for spec in INPUTS
        ]
        for _ in range(count)
    ]


def staging(packed: bool, micro_batch_count: int, ring: int = 3) -> TorchStaging:
    config = Config(batch_size=BATCH, batched_h2d=packed, micro_batch_count=micro_batch_count)
    return TorchStaging(INPUTS, requests(ring), config, device="cpu")


def expected(call: int, part: int, count: int, ring: int = 3) -> list[torch.Tensor]:
    tensors = []
    for spec, array in zip(INPUTS, requests(ring)[call % ring], strict=True):
        tensor = torch.from_numpy(array).to(getattr(torch, spec.dtype))
        if spec.batch_axis is not None:
            tensor = tensor.chunk(count, dim=spec.batch_axis)[part]
        tensors.append(tensor)
    return tensors


def assert_same(got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> None:
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert torch.equal(one, other)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_what_arrives_is_the_requests_slice(packed: bool, count: int) -> None:
    stage = staging(packed, count)
    for call in (0, 1, 2, 3, 7):
        for part in range(count):
            assert_same(stage.load(call, part), expected(call, part, count))


@pytest.mark.parametrize("packed", [False, True])
def test_a_models_changes_to_its_inputs_do_not_last(packed: bool) -> None:
    stage = staging(packed, 2)
    for call in range(6):
        for part in range(2):
            tensors = stage.load(call, part)
            assert_same(tensors, expected(call, part, 2))
            for tensor in tensors:
                tensor.fill_(1)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_a_loaded_micro_batch_outlives_the_next_load(packed: bool, count: int) -> None:
    """Two slots: the next copy may run while the present tensors are still computed on."""
    stage = staging(packed, count)
    numbers = [(call, part) for call in range(3) for part in range(count)]
    for now, following in pairwise(numbers):
        tensors = stage.load(*now)
        stage.load(*following)
        assert_same(tensors, expected(*now, count))


@pytest.mark.parametrize("packed", [False, True])
def test_nothing_is_allocated_per_call(packed: bool) -> None:
    stage = staging(packed, 2)
    seen = {
        tuple(t.data_ptr() for t in stage.load(call, part)) for call in range(9) for part in (0, 1)
    }
    assert len(seen) == 2
    assert all(pointer % ALIGN_BYTES == 0 for pointers in seen for pointer in pointers)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_copies_are_counted_per_call(count: int) -> None:
    assert staging(False, count).copies_per_call == count * len(INPUTS)
    assert staging(False, count).method == "separate"
    assert staging(True, count).copies_per_call == count
    assert staging(True, count).method == "packed"


@pytest.mark.parametrize("packed", [False, True])
def test_the_copies_really_made_are_those_counted(
    packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):  # type: ignore[misc]
        copies = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.copies += func is torch.ops.aten.copy_.default
            return func(*args, **(kwargs or {}))

    stage = staging(packed, 4)
    with Counter() as counter:
        for part in range(4):
            stage.load(0, part)
    assert counter.copies == stage.copies_per_call


def test_places_do_not_overlap_and_are_aligned() -> None:
    places, size_bytes = layout(INPUTS, 2)
    ends = [0, *(place.end for place in places)]
    assert all(place.start >= end for place, end in zip(places, ends[:-1], strict=True))
    assert all(place.start % ALIGN_BYTES == 0 for place in places)
    assert size_bytes == places[-1].end


def test_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(UsageError, match=r"batch_size=8 .*micro_batch_count=3"):
        staging(True, 3)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_a_part_of_a_micro_batch_is_its_first_items(packed: bool, count: int) -> None:
    stage = staging(packed, count)
    for call, items in ((0, 1), (1, 3), (2, 3), (3, BATCH // count), (4, 2)):
        wanted = [
            tensor if spec.batch_axis is None else tensor.narrow(spec.batch_axis, 0, items)
            for spec, tensor in zip(INPUTS, expected(call, 0, count), strict=True)
        ]
        assert_same(stage.load(call, 0, items), wanted)
        assert_same(stage.load(call, count - 1), expected(call, count - 1, count))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_one_call_for_many_tensors_copies_one_type_at_a_time(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[torch.dtype]] = []
    real = torch._foreach_copy_

    def seen(targets: list[torch.Tensor], sources: list[torch.Tensor], **options: object) -> None:
        calls.append([tensor.dtype for tensor in (*targets, *sources)])
        assert all(tensor.is_contiguous() for tensor in (*targets, *sources))
        real(targets, sources, **options)

    monkeypatch.setattr(torch, "_foreach_copy_", seen)
    config = Config(batch_size=BATCH, batched_h2d=True, micro_batch_count=count)
    inputs = (*INPUTS, InputSpec(name="more", shape=("batch",)))
    ring = [[*request, np.full(BATCH, 7, np.float32)] for request in requests()]
    staged = TorchStaging(inputs, ring, config, device="cpu", method="foreach")
    for call in range(4):
        for part in range(count):
            wanted = [*expected(call, part, count), torch.full((BATCH // count,), 7.0)]
            assert_same(staged.load(call, part), wanted)
    assert all(len(set(types)) == 1 for types in calls)
    assert len(calls) == 4 * staged.copies_per_call == 4 * count * 8, "eight types of inputs"


def test_part_of_a_batch_comes_whole_where_its_memory_is_not_contiguous() -> None:
    config = Config(batch_size=BATCH, batched_h2d=True)
    staged = TorchStaging(INPUTS, requests(), config, device="cpu", method="foreach")
    got = staged.load(0, 0, 3)
    for tensor, spec, whole in zip(got, INPUTS, expected(0, 0, 1), strict=True):
        wanted = whole if spec.batch_axis is None else whole.narrow(spec.batch_axis, 0, 3)
        assert torch.equal(tensor, wanted)


def test_more_tensors_than_a_batch_copy_takes_are_parted() -> None:
    placements = layout([InputSpec(name=str(i), shape=(1,)) for i in range(9000)], 1)[0]
    assert [len(group) for group in _foreach_groups(placements)] == [4096, 4096, 808]


def test_what_a_batched_copy_would_get_wrong_without_a_word_is_refused() -> None:
    one = torch.zeros(4, 4)
    for target, source in [(one, one.double()), (one.t()[:2], one.t()[:2]), (one, one[:2])]:
        with pytest.raises(AssertionError, match="batched copy"):
            _check_foreach([target], [source], pinned=False)
    with pytest.raises(AssertionError, match="page-locked"):
        _check_foreach([one], [one], pinned=True)
