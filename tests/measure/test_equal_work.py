"""Outputs held against the baseline's: what is refused, what is let through, what is not told."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.core.codec import from_json_dict, to_json_dict
from autotune.core.errors import WrongOutput
from autotune.core.records import Answers, Floats
from autotune.measure.equal_work import (
    TOLERANCES,
    Reference,
    compare,
    reference_of,
    tolerance_of,
)

ITEMS = np.random.default_rng(0).normal(size=(4, 8))
ITEMS[:, 1] = np.abs(ITEMS).mean(axis=1)


def answers(places: int, *, off: float = 0.0, **changes: Any) -> Answers:
    """Right answers of a batch, relative rounding errors `off` apart."""
    rng = np.random.default_rng(places)
    item = rng.integers(0, 4, places)
    item[: min(4, places)] = np.arange(4)[:places]
    figures: Floats = ITEMS[item] * (1 + off * rng.uniform(-1, 1, (places, 8)))
    given = {"item": item, "figures": figures, "widths": (8,), "is_discrete": (False,)}
    return Answers(**{**given, **changes})


BASE = reference_of(answers(8))


@pytest.mark.parametrize(("precision", "tolerance"), TOLERANCES.items())
def test_rounding_of_a_precision_passes_and_ten_times_that_does_not(
    precision: str, tolerance: float
) -> None:
    base = replace(BASE, precision="float64")
    found = compare(answers(64, off=tolerance, precision=precision), base)
    assert found.difference is not None and 0 < found.difference <= tolerance == found.tolerance
    with pytest.raises(WrongOutput, match=rf"{precision} allows {tolerance:g}"):
        compare(answers(64, off=10 * tolerance, precision=precision), base)


def test_the_less_precise_of_two_decides() -> None:
    assert tolerance_of("float32", "int8") == tolerance_of("int8") > tolerance_of("float32")
    assert tolerance_of("something new") == max(TOLERANCES.values())


def test_one_wrong_place_of_many_is_found() -> None:
    wrong = answers(512)
    wrong.figures[300] = ITEMS[(wrong.item[300] + 1) % 4]
    with pytest.raises(WrongOutput, match="1 of 512 items by up to"):
        compare(wrong, BASE)


def test_outputs_that_stay_those_of_the_first_call_are_found() -> None:
    kept = answers(16)
    kept.figures[8:] = kept.figures[:8]
    with pytest.raises(WrongOutput, match="differ from the baseline's"):
        compare(kept, BASE)


def test_half_of_the_items_missing_is_found_by_the_shape() -> None:
    half = answers(32, figures=np.empty((32, 0)), widths=(0,), shapes=((8, 4),), run_items=16)
    with pytest.raises(WrongOutput, match=r"no axis of the output has the 16 items.*: 8 x 4"):
        compare(half, BASE)


def test_another_number_or_shape_of_outputs_is_found() -> None:
    with pytest.raises(WrongOutput, match="2 output tensors, in the baseline 1"):
        compare(answers(4, widths=(4, 4), is_discrete=(False, False)), BASE)
    with pytest.raises(WrongOutput, match="another shape"):
        compare(answers(4, figures=ITEMS[:, :5], widths=(5,), shapes=((4, 3),)), BASE)


def test_a_tensor_that_does_not_count_items_is_left_out() -> None:
    both = answers(8, widths=(0, 8), is_discrete=(False, False))
    assert compare(both, reference_of(both)).difference == 0
    # In a batch of one any tensor with a leading 1 seems to count items.
    one = replace(BASE, widths=(8, 8), is_discrete=(False, False))
    one = replace(one, figures=tuple((0.5,) * 8 + row for row in BASE.figures))
    assert compare(both, one).difference == 0


def test_numbers_that_are_none_are_refused_even_of_the_baseline() -> None:
    bad = answers(16)
    bad.figures[3, 4] = math.nan
    for look in (lambda: compare(bad, BASE), lambda: reference_of(bad)):
        with pytest.raises(WrongOutput, match=r"1 of 16 items is not a number \(NaN\)"):
            look()


def test_an_infinity_is_wrong_only_where_the_baseline_has_none() -> None:
    masked = answers(16)
    masked.figures[masked.item == 2, 5] = -math.inf
    assert compare(masked, reference_of(masked)).difference == 0
    with pytest.raises(WrongOutput, match="differ"):
        compare(masked, BASE)


def test_a_model_that_draws_is_told_and_nobody_accused() -> None:
    drawn = answers(16, off=0.5)
    reference = reference_of(drawn)
    assert "from call to call" in reference.untold
    found = compare(answers(16, off=0.9), reference)
    assert found.difference is None and found.untold == reference.untold


def test_outputs_without_items_or_without_difference_tell_nothing() -> None:
    assert "no axis" in reference_of(answers(8, figures=np.empty((8, 0)), widths=(0,))).untold
    alike = answers(8, figures=np.ones((8, 8)))
    assert "different items get the same output" in reference_of(alike).untold


def test_items_that_hardly_differ_still_show_gross_faults() -> None:
    near = answers(16)
    near.figures[:] = 1.0 + 1e-5 * near.figures
    reference = reference_of(near)
    assert reference.is_coarse and not BASE.is_coarse
    assert compare(near, reference).caveats and not compare(answers(16), BASE).caveats
    blank = replace(near, figures=near.figures * (np.arange(16) < 8)[:, None])
    with pytest.raises(WrongOutput, match="8 of 16 items"):
        compare(blank, reference)
    half = replace(near, figures=np.empty((16, 0)), widths=(0,), shapes=((4, 4),), run_items=8)
    with pytest.raises(WrongOutput, match="no axis of the output has the 8 items"):
        compare(half, reference)


def test_a_class_that_flips_between_two_even_ones_is_no_fault() -> None:
    labels = {"widths": (3,), "is_discrete": (True,)}
    base = reference_of(answers(8, figures=_labels(answers(8).item), **labels))
    many = answers(64)
    flipped = _labels(many.item)
    flipped[many.item == 1] += 1.0
    share = float((many.item == 1).mean())
    assert 0.1 < share <= 0.25
    assert compare(replace(many, figures=flipped, **labels), base).difference == 0
    with pytest.raises(WrongOutput):
        compare(replace(many, figures=flipped * 0, **labels), base)


def _labels(item: Any) -> Floats:
    return np.repeat(item[:, None] + 1.0, 3, axis=1)


def test_a_reference_can_be_kept_in_a_study() -> None:
    assert from_json_dict(Reference, to_json_dict(BASE)) == BASE
