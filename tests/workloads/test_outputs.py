"""Outputs item by item, and the probe items themselves."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from autotune.core.errors import UsageError
from autotune.core.records import InputSpec
from autotune.devices.staging import tensors_of
from autotune.workloads.outputs import MAX_TENSORS, check_computed, figures_of
from autotune.workloads.probes import PROBE_ITEMS, calls_for_all, make_probes

SPEC = (
    InputSpec(name="x", shape=("batch", 16)),
    InputSpec(name="ids", shape=(3, "batch"), dtype="int64", low=0, high=1000),
    InputSpec(name="scale", shape=(2,)),
)


def test_every_tensor_of_any_nesting_is_seen_item_by_item() -> None:
    a, b = torch.arange(12.0).view(2, 6), torch.tensor([[-1, 1], [5, 5]])
    found = figures_of({"x": (a,), "y": [b, "text", None]}, 2, 0)
    assert [t.is_discrete for t in found] == [False, True]
    assert [t.shape for t in found] == [(2, 6), (2, 2)]
    assert found[0].figures is not None and found[1].figures is not None
    np.testing.assert_allclose(found[0].figures[0], [2.5, 2.5, 0, 1, 2, 3, 4, 5])
    np.testing.assert_allclose(found[1].figures, [[0, 1, -1, 1], [5, 5, 5, 5]])
    assert figures_of(None, 2, 0) == ()
    assert len(figures_of([a] * 20, 2, 0)) == MAX_TENSORS


@dataclasses.dataclass
class Boxes:
    """An output of a user's own class."""

    scores: torch.Tensor
    names: list[str]


def test_outputs_in_a_dataclass_count_and_complex_ones_are_pairs() -> None:
    values = torch.arange(6.0).view(2, 3)
    (found,) = figures_of(Boxes(values, ["a", "b"]), 2, 0)
    assert found.shape == (2, 3)
    assert list(tensors_of([Boxes(values, [])])) == [values]
    for output in (torch.complex(values, -values).conj(), (values + 1j * values).numpy()):
        (found,) = figures_of(output, 2, 0)
        assert found.shape == (2, 3, 2) and found.figures is not None
    nested = torch.nested.nested_tensor([values[0], values[1]], layout=torch.jagged)
    assert figures_of([values.to_sparse(), values.to_sparse_csr(), nested], 2, 0) == ()


def test_an_output_that_is_only_promised_is_refused() -> None:
    async def later() -> int:
        return 1

    promise = later()
    for output in ((x for x in [1]), map(abs, [1]), {"y": [iter([1])]}, promise):
        with pytest.raises(UsageError, match="computes nothing until it is read"):
            check_computed(output)
    promise.close()
    check_computed({"y": [torch.zeros(1), Boxes(torch.zeros(1), ["a"]), "text", None]})


def test_items_are_found_on_the_inputs_axis_first() -> None:
    tensor = torch.arange(4.0).view(2, 2)
    first, second = figures_of(tensor, 2, 0)[0].figures, figures_of(tensor, 2, 1)[0].figures
    assert first is not None and second is not None
    assert first[0].tolist() == [0.5, 0.5, 0, 1] and second[0].tolist() == [1, 1, 0, 2]
    turned = figures_of(torch.arange(6.0).view(2, 3), 3, 0)[0].figures  # items are elsewhere
    assert turned is not None and turned[:, 2].tolist() == [0, 1, 2]
    assert figures_of(torch.zeros(4, 2), 8, 0)[0].figures is None
    assert figures_of(torch.tensor(3.0), 8, 0)[0].figures is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.bool])
def test_every_type_of_element_has_figures(dtype: torch.dtype) -> None:
    (found,) = figures_of(torch.ones(2, 3).to(dtype), 2, 0)
    assert found.figures is not None and found.figures.tolist() == [[1.0] * 5] * 2


def test_large_outputs_are_walked_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    output = np.random.default_rng(0).normal(size=(7, 5))
    whole = figures_of(output, 7, 0)[0].figures
    monkeypatch.setattr("autotune.workloads.outputs.CHUNK_ELEMENTS", 11)
    pieces = figures_of(output, 7, 0)[0].figures
    assert whole is not None and pieces is not None
    np.testing.assert_array_equal(whole, pieces)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 8, 50])
def test_probe_items_are_the_same_in_any_batch(batch_size: int) -> None:
    single, probes = make_probes(SPEC, 1, 5), make_probes(SPEC, batch_size, 5)
    by_item = {int(row[0]): request for row, request in zip(*reversed(single), strict=True)}
    assert sorted(by_item) == list(range(PROBE_ITEMS))
    for row, request in zip(probes.items, probes.requests, strict=True):
        assert [array.shape for array in request] == [s.sizes(batch_size) for s in SPEC]
        for place, item in enumerate(row):
            np.testing.assert_array_equal(request[0][place], by_item[int(item)][0][0])
            np.testing.assert_array_equal(request[1][:, place], by_item[int(item)][1][:, 0])
            np.testing.assert_array_equal(request[2], by_item[int(item)][2])


@pytest.mark.parametrize("batch_size", [1, 2, 3, 8, 50])
def test_all_probe_items_are_seen_twice_in_the_least_number_of_calls(batch_size: int) -> None:
    items = make_probes(SPEC, batch_size, 0).items[: calls_for_all(batch_size)]
    assert len(items) >= 2
    assert np.bincount(items.ravel(), minlength=PROBE_ITEMS).min() >= 2
    if batch_size > 1:
        assert (items[0] != items[1]).any()
