"""Reading a node as what the schema wants: text, a whole number, a duration, ...

Every function raises ValueError with what is wrong, without the place; the loader adds it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import TypeVar

from autotune.core.records import Scalar
from autotune.core.units import UNITS_BY_KIND, parse_quantity
from autotune.space.strict_yaml import BOOLEAN_WORDS, Node, kind_of, shown, yaml11_kind

MAX_WHOLE = 10**9
MAX_SEED = 2**32 - 1
MAX_TEXT_CHARS = 4096
UNITS_OF = {kind: tuple(units) for kind, units in UNITS_BY_KIND.items()}

_NUMBER = re.compile(r"[+-]?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|[+-]?\.[0-9]+")
_WHOLE = re.compile(r"[+-]?(?:0|[1-9][0-9]*)")

T = TypeVar("T")


def text(node: Node) -> str:
    """Text as it was written: `2024-01-01`, `on` and `08` are not changed."""
    if not isinstance(node.value, str):
        raise ValueError(f"expected text, found {kind_of(node)}")
    if not node.value.strip():
        raise ValueError("expected text, found empty text")
    if len(node.value) > MAX_TEXT_CHARS:
        raise ValueError(f"text of {len(node.value)} characters; at most {MAX_TEXT_CHARS}")
    return node.value


def whole(low: int = 1, high: int = MAX_WHOLE) -> Callable[[Node], int]:
    """A reader of whole numbers within [low, high]; `1e3` is one."""

    def read(node: Node) -> int:
        value = number(node, "a whole number")
        if value != int(value):
            raise ValueError(f"{shown(node.value)} is not a whole number")
        return int(_within(value, low, high, node))

    return read


def real(low: float, high: float, *, with_low: bool = False) -> Callable[[Node], float]:
    """A reader of numbers strictly between `low` and `high`, or `low` itself too."""

    def read(node: Node) -> float:
        value = number(node)
        if not (low < value < high or (with_low and value == low)):
            raise ValueError(f"{shown(node.value)} is not between {low:g} and {high:g}")
        return float(value)

    return read


def number(node: Node, wanted: str = "a number") -> int | float:
    """A number without quotes, finite; ambiguous spellings (010, 1_000, 1:30) are refused."""
    if not isinstance(node.value, str) or not node.is_plain:
        raise ValueError(f"expected {wanted}, found {kind_of(node)}")
    written = node.value
    if _WHOLE.fullmatch(written) and len(written) <= 18:
        return int(written)
    if _NUMBER.fullmatch(written) and math.isfinite(value := float(written)):
        return int(value) if value == int(value) and abs(value) <= 2**53 else value
    if yaml11_kind(written) is None and not _NUMBER.fullmatch(written):
        raise ValueError(f"expected {wanted}, found '{shown(written)}'")
    if re.fullmatch(r"[+-]?0[0-9]+", written):
        raise ValueError(f"{shown(written)} has a leading zero; write {int(written[:18])}")
    raise ValueError(f"expected {wanted} in plain decimal digits, found {shown(written)}")


def boolean(node: Node) -> bool:
    """true/false, also as on/off and yes/no, without quotes."""
    word = node.value.lower() if isinstance(node.value, str) and node.is_plain else ""
    if word not in BOOLEAN_WORDS:
        raise ValueError(f"expected true or false, found {kind_of(node)}")
    return BOOLEAN_WORDS[word]


def switch(node: Node) -> bool:
    """auto, which is the same as true, or false."""
    return node.value == "auto" or boolean(node)


def quantity(kind: str, *, above_zero: bool = True) -> Callable[[Node], float]:
    """A reader of quantities with their unit, in SI."""

    def read(node: Node) -> float:
        if not isinstance(node.value, str):
            raise ValueError(f"expected a {kind} with its unit, found {kind_of(node)}")
        value = parse_quantity(shown(node.value), kind)
        if value < 0 or (above_zero and value == 0):
            raise ValueError(
                f"{shown(node.value)} is not {'above' if above_zero else 'at least'} 0"
            )
        return value

    return read


def one_of(names: Iterable[str]) -> Callable[[Node], str]:
    """A reader of one of some words."""
    known = tuple(names)

    def read(node: Node) -> str:
        word = text(node)
        if word not in known:
            raise ValueError(f"unknown value '{shown(word)}'; {nearest(word, known)}")
        return word

    return read


def storage(node: Node) -> str:
    """journal, or the URL of a database."""
    word = text(node)
    if word != "journal" and "://" not in word:
        known = ("journal", "sqlite:///file.db", "postgresql+psycopg://user:password@host/database")
        raise ValueError(f"unknown value '{shown(word)}'; {nearest(word, known)}")
    return word


def nearest(word: str, known: Iterable[str]) -> str:
    """ "did you mean ...?", or all that is known where nothing is near."""
    names = tuple(known)
    key = word.lower().replace("-", "_").replace(" ", "_")
    inside = [n for n in names if len(key) > 2 and (key in n or n in key)]
    # Of several that end so, the first: p99 is meant as the one of the latency.
    ended = [n for n in names if n == key or (len(key) > 2 and n.endswith(f"_{key}"))]
    ended.sort(key=lambda name: name != key)
    close = ended or get_close_matches(key, names, n=1, cutoff=0.55) or sorted(inside, key=len)[:1]
    if close:
        return f"did you mean '{close[0]}'?"
    return f"known: {', '.join(names)}"


def free_value(node: Node) -> Scalar:
    """A value whose kind the schema does not know: a number, true/false, or text.

    on/off/yes/no stay text; spellings that YAML 1.1 would change need quotes.
    """
    written = text(node)
    if not node.is_plain:
        return written
    if _NUMBER.fullmatch(written):
        return number(node)
    if written.lower() in ("true", "false"):
        return BOOLEAN_WORDS[written.lower()]
    if (kind := yaml11_kind(written)) is not None:
        raise ValueError(f'{shown(written)} could be a {kind}; quote it: "{shown(written)}"')
    return written


def is_boolean_word(node: Node) -> bool:
    """True for what YAML 1.1 takes for a boolean."""
    return isinstance(node.value, str) and node.is_plain and node.value.lower() in BOOLEAN_WORDS


def _within(value: float, low: int, high: int, node: Node) -> float:
    if value < low:
        raise ValueError(f"{shown(node.value)} is below {low}")
    if value > high:
        raise ValueError(f"{shown(node.value)} is above {high}")
    return value
