from __future__ import annotations

import pytest

from autotune.core.errors import UsageError
from autotune.devices.splits import parse_split, split_ladder


def test_a_split_is_cubes_and_vectors() -> None:
    assert parse_split("16|48") == (16, 48)


@pytest.mark.parametrize("text", [8, "8", "0|8", "8|0", "8|", "|8", "8|8|8", " 8|8", "all", "-1|2"])
def test_anything_else_is_refused(text: int | str) -> None:
    with pytest.raises(UsageError, match=r"cube\|vector"):
        parse_split(text)


@pytest.mark.parametrize(
    ("cube", "vector", "ladder"),
    [
        (24, 48, ("6|12", "8|8", "12|24", "16|16", "all")),
        (20, 40, ("5|10", "6|6", "10|20", "13|13", "all")),
        (8, 7, ("2|1", "2|2", "4|3", "5|5", "all")),
        (2, 2, ("1|1", "all")),
        (1, 1, ("all",)),
        (8, 0, ("all",)),
    ],
)
def test_the_ladder_fits_the_chip(cube: int, vector: int, ladder: tuple[str, ...]) -> None:
    assert split_ladder(cube, vector) == ladder
