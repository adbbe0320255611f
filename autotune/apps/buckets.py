"""`autotune buckets`: the sizes to compile for, from a file of lengths."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from autotune.core.codec import to_json_dict
from autotune.core.errors import UsageError
from autotune.core.units import format_duration, format_size, parse_quantity
from autotune.measure.buckets import BucketCosts, Buckets, BucketSet, choose_buckets

MAX_LENGTH = 10**9
MAX_ROWS = 10_000_000
MAX_CURVE_ROWS = 10_000
MAX_LINE_CHARS = 10_000
SHAPES: dict[str, float] = {"linear": 1.0, "quadratic": 2.0}
"""How the time of an item grows with its length, as a power."""

COLUMNS = {"lengths": ("length", "count"), "cost": ("length", "seconds")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What the command line says of the costs, texts with units; empty: not said.

    Attributes:
        cost: A key of `SHAPES`, or a CSV file of measured seconds per item by length.
        item_time: Of an item of the greatest length, where `cost` is a shape.
        memory, memory_per_size: Bytes of a bucket, and what each unit of its size adds.
    """

    multiple_of: int = 1
    cost: str = "linear"
    item_time: str = ""
    compile_time: str = ""
    item_count: float | None = None
    memory: str = ""
    memory_per_size: str = ""
    memory_limit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketsResult:
    """What was chosen.

    Attributes:
        in_seconds: Whether costs are seconds; else they have no unit.
    """

    buckets: Buckets
    in_seconds: bool

    def lines(self) -> Iterator[str]:
        """For a person."""
        found = self.buckets
        yield f"buckets: {', '.join(map(str, found.best.sizes))}"
        named = {"these": found.best, "powers of two": found.powers_of_two, "one": found.single}
        for name, buckets in named.items():
            yield f"  {name:<14}{self._figures(buckets) if buckets else 'do not fit the memory'}"

    def to_json(self) -> dict[str, Any]:
        """For a program."""
        return to_json_dict(
            {"schema": 1, "unit": "s" if self.in_seconds else None, **to_json_dict(self.buckets)}
        )

    def _figures(self, found: BucketSet) -> str:
        ratio = found.cost / self.buckets.unpadded_cost if self.buckets.unpadded_cost else math.inf
        parts = [
            f"{len(found.sizes)} bucket{'s' * (len(found.sizes) > 1)}",
            f"{100 * found.padding:.1f} % padding",
            f"cost {ratio:.3f} × that without padding",
        ]
        if self.in_seconds:
            compiling = f", {format_duration(found.compile_s)} compiling" if found.compile_s else ""
            parts.append(f"{format_duration(found.cost)}{compiling}")
        if found.memory_bytes is not None:
            parts.append(format_size(found.memory_bytes))
        return "; ".join(parts)


def buckets(lengths: Path, max_buckets: int, ask: Ask) -> BucketsResult:
    """Choose buckets for a file of lengths.

    Args:
        lengths: CSV with the column `length` and perhaps `count`; without a header, the first
            column is the length and the second, if there is one, the count. Tabs and semicolons
            may stand for the commas.
    Raises:
        UsageError: A file or an option is wrong, or no set fits the memory.
    """
    counts: dict[int, float] = {}
    for place, row in _rows(lengths, COLUMNS["lengths"], MAX_ROWS):
        length, count = row[0], row[1] if len(row) > 1 else 1.0
        if not 1 <= length <= MAX_LENGTH or length != int(length) or count < 0:
            raise UsageError(
                f"{place}: length {length:g}, count {count:g}: a whole number from 1 to "
                f"{MAX_LENGTH}, and none below 0"
            )
        counts[int(length)] = counts.get(int(length), 0.0) + count
    item, in_seconds = _item_cost(ask, max(counts, default=1))
    return BucketsResult(
        buckets=choose_buckets(
            counts, max_buckets, multiple_of=ask.multiple_of, costs=_costs(ask, item, in_seconds)
        ),
        in_seconds=in_seconds,
    )


def _costs(ask: Ask, item: Callable[[float], float], in_seconds: bool) -> BucketCosts:
    compile_s = _read(ask.compile_time, "duration", "--compile-time")
    if compile_s and not in_seconds:
        raise UsageError(
            "--compile-time can be weighed only against seconds: give --item-time, or --cost FILE"
        )
    limit = _read(ask.memory_limit, "size", "--memory-limit") if ask.memory_limit else None
    own, per_size = (
        _read(ask.memory, "size", "--memory"),
        _read(ask.memory_per_size, "size", "--memory-per-size"),
    )
    if limit is not None and not (own or per_size):
        raise UsageError("--memory-limit needs --memory or --memory-per-size: what a bucket takes")
    return BucketCosts(
        item=item,
        compile_s=compile_s,
        item_count=ask.item_count,
        memory=(lambda size: own + per_size * size) if own or per_size else None,
        memory_limit_bytes=limit,
    )


def _item_cost(ask: Ask, longest: int) -> tuple[Callable[[float], float], bool]:
    """Time of an item by its size, and whether it is in seconds."""
    if ask.cost in SHAPES:
        power = SHAPES[ask.cost]
        if not ask.item_time:
            return (lambda size: size**power), False
        longest_s = _read(ask.item_time, "duration", "--item-time")
        if not longest_s:
            raise UsageError(f"--item-time {ask.item_time}: must be above 0")
        return (lambda size: longest_s * (size / longest) ** power), True
    if ask.item_time:
        raise UsageError("--item-time and --cost FILE say the same thing; leave one out")
    return _measured_cost(Path(ask.cost)), True


def _measured_cost(path: Path) -> Callable[[float], float]:
    """Measured seconds by length, in between along a straight line."""
    if not path.is_file():
        raise UsageError(
            f"--cost {path}: neither {' nor '.join(SHAPES)}, and there is no such file"
        )
    points = sorted(
        (row[0], row[1]) for _, row in _rows(path, COLUMNS["cost"], MAX_CURVE_ROWS, least=2)
    )
    lengths, seconds = (np.array(column) for column in zip(*points, strict=True))
    if (np.diff(lengths) <= 0).any() or (seconds <= 0).any():
        raise UsageError(f"{path}: every length once, with seconds above 0")

    def cost(size: float) -> float:
        if not lengths[0] <= size <= lengths[-1]:
            raise UsageError(
                f"{path}: measured from length {lengths[0]:g} to {lengths[-1]:g}; a bucket of "
                f"{size:g} is beyond that"
            )
        return float(np.interp(size, lengths, seconds))

    return cost


def _rows(
    path: Path, columns: tuple[str, str], most: int, *, least: int = 1
) -> Iterator[tuple[str, list[float]]]:
    """The rows of a CSV file as numbers, each with its place; a header is skipped."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            order: list[int] | None = None
            for number, row in enumerate(csv.reader(file, delimiter=_delimiter(file)), 1):
                if number > most:
                    raise UsageError(f"{path}: more than {most} rows")
                cells = [cell.strip() for cell in row]
                if not any(cells):
                    continue
                if order is None:
                    names = [cell.casefold() for cell in cells]
                    order = _order(names, columns, path, least)
                    if columns[0] in names:
                        continue
                yield f"{path}:{number}", _numbers(cells, order, f"{path}:{number}")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read ({error})") from None


def _delimiter(file: IO[str]) -> str:
    """What parts the columns: a comma, unless the first line has none and a tab or semicolon."""
    line = file.readline(MAX_LINE_CHARS)
    file.seek(0)
    return next((mark for mark in "\t;" if mark in line and "," not in line), ",")


def _order(first: list[str], columns: tuple[str, str], path: Path, least: int) -> list[int]:
    """Places of the columns: by the header if there is one, else the first ones."""
    if set(columns[:least]) <= set(first):
        return [first.index(name) for name in columns if name in first]
    if len(first) < least or _is_text(first[0]):
        raise UsageError(
            f"{path}: needs the columns {' and '.join(columns)}, by these names or without any; "
            f"found {', '.join(first)[:80]}"
        )
    return list(range(min(len(first), len(columns))))


def _is_text(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return True
    return False


def _numbers(cells: list[str], order: list[int], place: str) -> list[float]:
    try:
        numbers = [float(cells[index]) for index in order]
    except (ValueError, IndexError):
        raise UsageError(f"{place}: {','.join(cells)!r} is not made of numbers") from None
    if not all(map(math.isfinite, numbers)):
        raise UsageError(f"{place}: a number that is not finite")
    return numbers


def _read(text: str, kind: str, option: str) -> float:
    if not text:
        return 0.0
    try:
        value = parse_quantity(text, kind)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    if value < 0:
        raise UsageError(f"{option}: {text} is below 0")
    return value
