"""Values that stand in several places of a file, each fault with the path of its key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from autotune.core.records import Lengths
from autotune.space import command, scalars
from autotune.space.parameters import Refused, mapping
from autotune.space.schema import LengthsSection, Section, problems
from autotune.space.shipped import is_file
from autotune.space.strict_yaml import Node, kind_of, shown_long

MAX_LENGTHS = 100_000
S = TypeVar("S", bound=Section)


def words(node: Node, *, is_shell: bool = False, key: str = "command") -> list[str]:
    """A command: a list of words, or text; with a shell the text as a whole."""
    if isinstance(node.value, list):
        if is_shell:
            raise Refused("with shell: true the command is one text, found a list", key)
        listed = [text_at(item, key, i) for i, item in enumerate(node.value)]
        if not listed:
            raise Refused("an empty list; give the program and its arguments", key)
        return listed
    if not isinstance(node.value, str):
        raise Refused(f"expected a list of words or text, found {kind_of(node)}", key)
    written = text_at(node, key)
    try:
        return [written] if is_shell else command.split(written)
    except ValueError as error:
        raise Refused(str(error), key) from None


def existing(name: str, path_dir: Path, *path: str | int) -> str:
    """The path of a file that is there, or whose name has a placeholder."""
    file = path_dir / os.path.expanduser(name)  # noqa: PTH111 (Path's raises for unknown users)
    if "{" not in name and not is_file(file):
        raise Refused(f"no file {shown_long(str(file))}", *path)
    return os.path.normpath(file)


def free_values(node: Node, *path: str | int) -> dict[str, object]:
    """Sizes of a built-in model and the like: one level of names and values."""
    values: dict[str, object] = {}
    for name, item in mapping_at(node, *path).items():
        try:
            values[name] = scalars.free_value(item)
        except ValueError as error:
            raise Refused(str(error), *path, name) from None
    return values


def lengths(node: Node, *path: str | int) -> Lengths:
    """A list of lengths to draw from, or {low, high}, {values}, each with multiple_of."""
    if isinstance(node.value, list):
        return Lengths(values=whole_numbers(node.value, *path))
    section = section_at(LengthsSection, node, *path)
    low, high = section.low, section.high
    if section.values is not None and low is None and high is None:
        values = whole_numbers(section.values, *path, "values")
        return Lengths(values=values, multiple_of=section.multiple_of)
    if section.values is not None or low is None or high is None:
        raise Refused("give low and high, or values to draw from", *path)
    if low > high:
        raise Refused(f"low {low} is above high {high}", *path, "low")
    return Lengths(low=low, high=high, multiple_of=section.multiple_of)


def whole_numbers(items: list[Node], *path: str | int) -> tuple[int, ...]:
    """A list of whole numbers from 1."""
    if not 1 <= len(items) <= MAX_LENGTHS:
        raise Refused(f"{len(items)} values; give 1 to {MAX_LENGTHS}", *path)
    numbers: list[int] = []
    for index, item in enumerate(items):
        try:
            numbers.append(scalars.whole()(item))
        except ValueError as error:
            raise Refused(str(error), *path, index) from None
    return tuple(numbers)


def text_at(node: Node, *path: str | int) -> str:
    """Text; a fault gets the path."""
    try:
        return scalars.text(node)
    except ValueError as error:
        raise Refused(str(error), *path) from None


def mapping_at(node: Node, *path: str | int) -> dict[str, Node]:
    """The entries of a mapping; a fault gets the path."""
    try:
        return mapping(node)
    except Refused as error:
        raise Refused(str(error), *path) from None


def section_at(model: type[S], node: Node, *path: str | int) -> S:
    """A section of the file that stands in a value of several kinds."""
    try:
        return model.model_validate(node)
    except ValidationError as error:
        below, message = problems(error)[0]
        raise Refused(message, *path, *below) from None
