from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from autotune.core.errors import UsageError
from autotune.core.records import Config, InputSpec, Lengths
from autotune.devices.host_staging import HostStaging
from autotune.devices.staging import TorchStaging
from autotune.workloads.data import MAX_LENGTHS_RING, MAX_RING, make_requests, ring_size
from autotune.workloads.lengths import (
    draw_lengths,
    staged,
    tokens_per_item,
    with_lengths,
)

LENGTHS = Lengths(low=3, high=20, multiple_of=4)
SHAPES = (
    InputSpec(name="ids", shape=("batch", "length"), dtype="int64", low=1, high=50),
    InputSpec(name="mask", shape=("batch", "length"), dtype="int64", low=1, high=2),
    InputSpec(name="first", shape=("length", "batch", 2)),
    InputSpec(name="bias", shape=("length",), low=1, high=2),
    InputSpec(name="plain", shape=("batch", 3)),
)
INPUTS = with_lengths(SHAPES, LENGTHS)


def test_a_mask_of_ones_tells_the_lengths_and_all_inputs_agree_with_it() -> None:
    for number, (ids, mask, first, bias, plain) in enumerate(make_requests(INPUTS, 6, 4, 9)):
        lengths = mask.sum(axis=1)
        assert lengths.tolist() == draw_lengths(LENGTHS, 6, 9, number).tolist()
        longest = -(-lengths.max() // 4) * 4
        assert ids.shape == mask.shape == (6, longest)
        assert first.shape == (longest, 6, 2) and bias.shape == (longest,)
        assert plain.shape == (6, 3)
        assert ((ids > 0) == (mask > 0)).all()
        assert ((mask > 0) == (first != 0).all(axis=2).T).all()
        assert (bias > 0).all()


def test_an_item_is_the_same_in_a_batch_of_any_size() -> None:
    (small,), (large,) = (make_requests(INPUTS, size, 1, 0) for size in (2, 30))
    width = small[0].shape[1]
    np.testing.assert_array_equal(small[0], large[0][:2, :width])
    assert not large[0][:2, width:].any()
    np.testing.assert_array_equal(small[4], large[4][:2])


def test_lengths_are_drawn_from_what_is_given() -> None:
    seen = draw_lengths(Lengths(low=3, high=5), 500, 0, 0)
    assert set(seen.tolist()) == {3, 4, 5}
    drawn = draw_lengths(Lengths(values=(7, 7, 7, 90)), 4000, 0, 0)
    assert set(drawn.tolist()) == {7, 90}
    assert np.mean(drawn == 7) == pytest.approx(0.75, abs=0.04)


def test_tokens_count_what_is_not_padding() -> None:
    ring = 5
    requests = make_requests(INPUTS, 6, ring, 3)
    tokens = np.mean([mask.sum(axis=1).mean() for _, mask, *_ in requests])
    assert tokens_per_item(INPUTS, 6, ring, 3) == pytest.approx(tokens)
    assert tokens_per_item(SHAPES[4:], 6, ring, 3) == 0


def test_many_batches_stand_for_the_lengths() -> None:
    assert ring_size(SHAPES[4:], 1) == MAX_RING
    assert ring_size(INPUTS, 1) == MAX_LENGTHS_RING


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("host", [False, True])
def test_every_request_arrives_at_its_own_length(host: bool, packed: bool) -> None:
    config = Config(batch_size=6, micro_batch_count=2, batched_h2d=packed)

    def stage(
        inputs: Sequence[InputSpec], requests: Sequence[Sequence[Any]], config: Config
    ) -> Any:
        if host:
            return HostStaging(inputs, requests, config, bind=list)
        return TorchStaging(inputs, requests, config, device="cpu")

    requests = make_requests(INPUTS, 6, 8, 0)
    assert len({ids.shape for ids, *_ in requests}) > 1
    staging = staged(stage, INPUTS, requests, config)
    assert staging.copies_per_call == 2 * (1 if packed else len(INPUTS))
    for call in range(16):
        for part in range(2):
            loaded = staging.load(call, part)
            found = [bound.array for bound in loaded[0]] if host else loaded
            for spec, tensor, whole in zip(INPUTS, found, requests[call % 8], strict=True):
                axis = spec.batch_axis
                items = range(3 * part, 3 * part + 3)
                wanted = whole if axis is None else whole.take(items, axis=axis)
                np.testing.assert_array_equal(np.asarray(tensor), wanted)


@pytest.mark.parametrize(
    ("inputs", "lengths", "message"),
    [
        (SHAPES, None, "input ids has an axis 'length', but no lengths"),
        (SHAPES[4:], LENGTHS, "no input has an axis 'length'"),
    ],
)
def test_lengths_without_an_axis_and_an_axis_without_lengths_are_refused(
    inputs: tuple[InputSpec, ...], lengths: Lengths | None, message: str
) -> None:
    with pytest.raises(UsageError, match=rf"workload\.lengths: {message}"):
        with_lengths(inputs, lengths)
