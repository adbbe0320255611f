"""A recorded grid: a CSV file with one measured, or failed, configuration per line."""

from __future__ import annotations

import csv
import difflib
import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autotune.core.errors import UsageError
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, Scalar
from autotune.core.units import parse_quantity
from autotune.space.strict_yaml import shown_long

MAX_COLUMNS = 1000
MAX_MESSAGE_CHARS = 600
FILE_BYTES_LIMIT = 256 * 2**20

FIGURES = (
    "throughput_items_per_s", "latency_mean_s", "latency_p50_s", "latency_p90_s",
    "latency_p99_s", "latency_p999_s", "memory_peak_bytes", "power_w",
    "energy_per_item_j",
)  # fmt: skip
"""Columns that hold a figure of a measurement, under its name there."""

RECORD_COLUMNS = (*FIGURES, "throughput_spread_items_per_s", "status", "cost_s")
STATUSES = tuple(
    str(outcome)
    for outcome in (
        Outcome.OK, Outcome.OOM, Outcome.TIMEOUT, Outcome.COMPILE_ERROR, Outcome.CRASHED,
    )
)  # fmt: skip

_AT_LEAST_ONE = ("batch_size", "instance_count", "micro_batch_count")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was recorded of a configuration.

    Attributes:
        figures: Names of `FIGURES` to values; unknown ones are left out.
        cost_s: What the trial cost beyond its window.
        line: Line in the file.
    """

    status: Outcome
    figures: Mapping[str, float] = field(default_factory=dict)
    cost_s: float = 0.0
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A grid as read.

    Attributes:
        params: Names of the parameter columns, in the file's order.
        rows: What is recorded of each configuration; those not in it are not part of the space.
    """

    path: str
    params: tuple[str, ...]
    rows: Mapping[Config, Row]

    def choices(self, name: str) -> tuple[Scalar, ...]:
        """The distinct values of a parameter: numbers ascending, others as they come."""
        values = dict.fromkeys(config.as_dict()[name] for config in self.rows)
        numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
        return (*sorted(numbers), *(v for v in values if v not in numbers or isinstance(v, bool)))

    def lookup(self, config: Config) -> Row:
        """The row of a configuration.

        Raises:
            UsageError: The file has none.
        """
        row = self.rows.get(config)
        if row is None:
            shown = ", ".join(f"{name}={value}" for name, value in config.as_dict().items())
            raise UsageError(f"{self.path} has no row for {shown}")
        return row


def read_grid(path: str | Path) -> Grid:
    """Read a grid; a file that has not changed is read once per process.

    Raises:
        UsageError: No such file, or something in it is wrong; says line and column.
    """
    try:
        status = Path(path).stat()
    except OSError as error:
        raise UsageError(f"workload.replay: cannot read {path}: {error.strerror}") from error
    if status.st_size > FILE_BYTES_LIMIT:
        raise UsageError(
            f"workload.replay: {path} has {status.st_size} bytes; the limit is {FILE_BYTES_LIMIT}"
        )
    try:
        return _read(str(path), status.st_mtime_ns)
    except UsageError as error:  # it may quote a cell, however long that is
        raise UsageError(shown_long(str(error), MAX_MESSAGE_CHARS)) from None


@functools.lru_cache(maxsize=4)
def _read(path: str, changed_ns: int) -> Grid:
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            lines = list(_lines(path, csv.reader(file, strict=True)))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"workload.replay: cannot read {path}: {error}") from error
    if not lines:
        raise UsageError(f"workload.replay: {path} is empty")
    (header_line, header), *body = lines
    params = _parameter_columns(f"{path}:{header_line}", header)
    rows: dict[Config, Row] = {}
    for line, cells in body:
        place = f"{path}:{line}"
        if len(cells) != len(header):
            raise UsageError(f"{place}: {len(cells)} cells, but the header has {len(header)}")
        named = dict(zip(header, cells, strict=True))
        config = Config.from_dict({p: _parameter(place, p, named[p].strip()) for p in params})
        if config in rows:
            raise UsageError(f"{place}: the same configuration as in line {rows[config].line}")
        rows[config] = _row(place, line, named)
    if not rows:
        raise UsageError(f"workload.replay: {path} has a header but no rows")
    return Grid(path=path, params=params, rows=rows)


def _lines(path: str, reader: Iterator[list[str]]) -> Iterator[tuple[int, list[str]]]:
    """The file's lines that are not blank, each with its number."""
    number = 0
    try:
        for cells in reader:
            number = getattr(reader, "line_num", number + 1)
            if any(cell.strip() for cell in cells):
                yield number, cells
    except csv.Error as error:
        raise UsageError(f"{path}:{number + 1}: {error}") from error


def _parameter_columns(place: str, header: list[str]) -> tuple[str, ...]:
    """The columns before the first figure; all after it must be known."""
    if len(header) > MAX_COLUMNS:
        raise UsageError(f"{place}: {len(header)} columns; at most {MAX_COLUMNS}")
    header[:] = [name.strip() for name in header]
    doubled = next((name for name in header if header.count(name) > 1), None)
    if doubled is not None:
        raise UsageError(f"{place}: column {doubled!r} is there twice")
    if "throughput_items_per_s" not in header or "status" not in header:
        raise UsageError(
            f"{place}: a grid needs the columns throughput_items_per_s and status; "
            f"found {', '.join(header)}"
        )
    first = next(i for i, name in enumerate(header) if name in RECORD_COLUMNS)
    for name in header[first:]:
        if name not in RECORD_COLUMNS:
            nearest = difflib.get_close_matches(name, RECORD_COLUMNS, n=1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise UsageError(
                f"{place}: unknown column {name!r}{hint} (parameters come before the figures)"
            )
    if first == 0 or not all(header[:first]):
        raise UsageError(f"{place}: the parameters' columns must come first, each with a name")
    return tuple(header[:first])


def _parameter(place: str, name: str, text: str) -> Scalar:
    """One cell of a parameter, as a space file would give the value."""
    if not text:
        raise UsageError(f"{place}: column {name}: a parameter cannot be empty")
    if name.startswith("env."):
        return text  # an environment holds text only
    value = _scalar(text)
    if name in _AT_LEAST_ONE or (name == "cores_per_instance" and not isinstance(value, str)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise UsageError(f"{place}: column {name}: {text!r} is not a whole number")
        if value < 1:
            raise UsageError(f"{place}: column {name}: {value} is below 1")
    if name == "batched_h2d" and not isinstance(value, bool):
        raise UsageError(f"{place}: column {name}: {text!r} is neither true nor false")
    if name == "max_queue_delay":
        try:
            return parse_quantity(f"{text}s" if not isinstance(value, str) else text, "duration")
        except ValueError as error:
            raise UsageError(f"{place}: column {name}: {error}") from error
    return value


def _scalar(text: str) -> Scalar:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def _row(place: str, line: int, cells: Mapping[str, str]) -> Row:
    text = cells["status"].strip()
    if text not in STATUSES:
        raise UsageError(f"{place}: column status: {text!r} is not one of {', '.join(STATUSES)}")
    status = Outcome(text)
    figures = {}
    for name in FIGURES:
        value = _number(place, name, cells.get(name, ""))
        if value is not None:
            figures[name] = value
    if status is Outcome.OK and figures.get("throughput_items_per_s", 0.0) <= 0:
        raise UsageError(
            f"{place}: column throughput_items_per_s: a row that is ok needs one above 0"
        )
    _number(place, "throughput_spread_items_per_s", cells.get("throughput_spread_items_per_s", ""))
    cost_s = _number(place, "cost_s", cells.get("cost_s", "")) or 0.0
    return Row(status=status, figures=figures, cost_s=cost_s, line=line)


def _number(place: str, name: str, text: str) -> float | None:
    """A figure's cell; None if it is empty."""
    text = text.strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"{place}: column {name}: {text!r} is not a number") from None
    if not math.isfinite(value) or value < 0:
        raise UsageError(f"{place}: column {name}: {text} is not a finite number from 0 on")
    return value
