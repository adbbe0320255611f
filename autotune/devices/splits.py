"""Core splits of chips that have matrix and vector cores: "cube|vector" per instance."""

from __future__ import annotations

import re

from autotune.core.errors import UsageError

_SPLIT = re.compile(r"([1-9]\d{0,4})\|([1-9]\d{0,4})")


def parse_split(text: int | str) -> tuple[int, int]:
    """Cube and vector cores of "16|32".

    Raises:
        UsageError: It is not of this form.
    """
    match = _SPLIT.fullmatch(str(text))
    if match is None:
        raise UsageError(f"cores_per_instance={text!r}: expected \"cube|vector\" such as '8|16'")
    return int(match[1]), int(match[2])


def split_ladder(cube_count: int, vector_count: int) -> tuple[str, ...]:
    """What `cores_per_instance: auto` stands for on a chip, ascending in cubes.

    A quarter and a half of both kinds, a third and two thirds of the cubes with as many vector
    cores (a public tuning case of a recommender ended at such an even split), and all.
    """
    third, two_thirds = max(1, cube_count // 3), max(1, 2 * cube_count // 3)
    wanted = (
        (max(1, cube_count // 4), max(1, vector_count // 4)),
        (third, third),
        (max(1, cube_count // 2), max(1, vector_count // 2)),
        (two_thirds, two_thirds),
    )
    whole = (cube_count, vector_count)
    fitting = (s for s in wanted if s != whole and s[1] <= vector_count)
    return (*dict.fromkeys(f"{cube}|{vector}" for cube, vector in fitting), "all")
