from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.core.errors import UsageError
from autotune.core.records import DataSpec, InputSpec, Lengths
from autotune.workloads import user_data
from autotune.workloads.user_data import UserData, accuracy

INPUTS = (
    InputSpec(name="x", shape=("batch", 3)),
    InputSpec(name="wide", shape=(2, "batch"), dtype="int64"),
    InputSpec(name="scale", shape=()),
)
ARRAYS: dict[str, Any] = {
    "x": np.arange(15, dtype=np.float64).reshape(5, 3),
    "wide": np.arange(10).reshape(2, 5),
    "scale": np.float32(2),
}


def written(path: Path, **changed: Any) -> DataSpec:
    arrays = {k: v for k, v in {**ARRAYS, **changed}.items() if v is not None}
    np.savez(path / "d.npz", **arrays)
    return DataSpec(file=str(path / "d.npz"))


def test_items_come_in_their_order_and_begin_again(tmp_path: Path) -> None:
    data = UserData(written(tmp_path), INPUTS)
    assert (data.item_count, data.ring(2), data.expected) == (5, 3, ())
    first, second, third = data.requests(2, 3)
    assert first[0].dtype == np.float32
    assert [request[1].tolist() for request in (first, second, third)] == [
        [[0, 1], [5, 6]], [[2, 3], [7, 8]], [[4, 0], [9, 5]],
    ]  # fmt: skip
    np.testing.assert_array_equal(third[0], ARRAYS["x"][[4, 0]])
    assert third[2] == 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": None}, "no array 'x'; it has scale, wide"),
        ({"x": np.zeros((5, 4))}, r"x has the shape \[5, 4\]; the model takes \['batch', 3\]"),
        ({"x": np.zeros((4, 3))}, "wide has 5 items, another array 4"),
        ({"x": np.zeros((0, 3)), "wide": np.zeros((2, 0))}, "it holds no items"),
        ({"scale": np.zeros(5)}, r"scale has the shape \[5\]"),
        ({"x": np.array([object()])}, "x has the shape"),
        ({"x": np.full((5, 3), None)}, "x is object, and its values are none of float32"),
        ({"x": np.full((5, 3), "1")}, "x is <U1"),
        ({"x": np.full((5, 3), 1j)}, "x is complex128"),
        ({"expected": np.zeros((4, 2))}, r"expected has the shape \[4, 2\]; .* the 5 items"),
        ({"expected": np.float32(1)}, r"expected has the shape \[\]"),
    ],
)
def test_a_file_that_does_not_fit_the_model_is_refused(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=rf"workload\.data: .*{message}"):
        UserData(written(tmp_path, **changed), INPUTS)


@pytest.mark.parametrize(
    "values", [np.full((2, 5), 0.5), np.full((2, 5), np.nan), np.full((2, 5), 2.0**70)]
)
def test_values_that_the_models_type_cannot_hold_are_refused(
    tmp_path: Path, values: np.ndarray[Any, Any]
) -> None:
    data = UserData(written(tmp_path, wide=values), INPUTS)
    with pytest.raises(UsageError, match=r"wide is float64, and its values are none of int64"):
        data.requests(2, 1)
    whole = UserData(written(tmp_path, wide=np.full((2, 5), 7.0)), INPUTS)
    assert whole.requests(2, 1)[0][1].dtype == np.int64


def test_a_file_is_looked_at_without_its_numbers_being_read(tmp_path: Path) -> None:
    """Which would count as memory of whoever looks."""
    x = np.zeros((5000, 3))
    x[-1] = np.pi
    spec = written(tmp_path, x=x, wide=np.zeros((2, 5000), int))
    content = Path(spec.file).read_bytes()
    number = np.float64(np.pi).tobytes()
    assert content.count(number) == 3
    Path(spec.file).write_bytes(content.replace(number, b"damaged!"))  # not of its checksum now
    data = UserData(spec, INPUTS)
    assert data.item_count == 5000
    with pytest.raises(UsageError, match=r"d\.npz cannot be read \(Bad CRC-32"):
        data.requests(1, 1)


def test_items_of_different_lengths_are_not_read(tmp_path: Path) -> None:
    inputs = (InputSpec(name="x", shape=("batch", "length"), lengths=Lengths(high=3)),)
    with pytest.raises(UsageError, match="different lengths"):
        UserData(written(tmp_path), inputs)


def test_wrong_files_and_functions_are_found_before_anything_runs(tmp_path: Path) -> None:
    good = written(tmp_path)
    user_data.check(good, "")
    (tmp_path / "no.npz").write_text("x,y\n1,2\n")
    with pytest.raises(UsageError, match=r"no\.npz is no \.npz file"):
        user_data.check(DataSpec(file=str(tmp_path / "no.npz")), "")
    (tmp_path / "e.py").write_text("def score(outputs): raise RuntimeError('not to be run')\n")
    user_data.check(DataSpec(file=good.file, evaluate=f"{tmp_path}/e.py:score"), "")
    with pytest.raises(UsageError, match="has no 'scores'; did you mean 'score'"):
        user_data.check(DataSpec(file=good.file, evaluate=f"{tmp_path}/e.py:scores"), "")


def test_outputs_are_held_against_what_is_expected() -> None:
    data = DataSpec(file="")
    wanted = np.array([[1.0, 3.0], [4.0, 0.0]])
    assert accuracy(data, "", [wanted], [wanted]) == {
        "largest_difference": 0, "mean_difference": 0, "same_largest_ratio": 1,
    }  # fmt: skip
    found = np.array([[1.0, 3.0], [1.0, 2.0]])
    figures = accuracy(data, "", [found, found], [wanted])
    assert figures["largest_difference"] == pytest.approx(3 / 2)
    assert figures["mean_difference"] == pytest.approx(5 / 4 / 2)
    assert figures["same_largest_ratio"] == 0.5
    with pytest.raises(UsageError, match=r"output 0 has the shape \[2, 2\], expected is \[2\]"):
        accuracy(data, "", [found], [wanted[0]])
    with pytest.raises(UsageError, match="2 expected outputs, but the model gives 1"):
        accuracy(data, "", [found], [wanted, wanted])


@pytest.mark.parametrize(
    ("code", "figures"),
    [
        ("def f(o, e): return (o == e).mean()", {"accuracy": 0.5}),
        ("def f(o, e): return {'a': 1, 'b': o.sum()}", {"a": 1.0, "b": 3.0}),
        ("def f(o, e): return None", None),
        ("def f(o, e): return float('nan')", None),
        ("def f(o, e): return {}", None),
    ],
)
def test_a_function_of_ones_own_gives_numbers(
    tmp_path: Path, code: str, figures: dict[str, float] | None
) -> None:
    (tmp_path / "e.py").write_text(code + "\n")
    data = DataSpec(file="", evaluate="e.py:f")
    outputs, expected = [np.array([1.0, 2.0])], [np.array([1.0, 5.0])]
    if figures is not None:
        assert accuracy(data, str(tmp_path), outputs, expected) == figures
        return
    with pytest.raises(UsageError, match=r"e\.py:f returned .*expected a number"):
        accuracy(data, str(tmp_path), outputs, expected)
