"""Profilers' tables: columns found by name, in every spelling, unit and language that is known."""

from __future__ import annotations

import csv
import functools
import gzip
import io
import itertools
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import IO, Literal

from autotune.measure.profile import US, Building, Profile, kind_of

TableKind = Literal["operations", "steps", "types", ""]

MAX_ROWS = 5_000_000
MAX_CELL_CHARS = 2**24  # of input shapes, which may be many
HEAD_BYTES = 2**16

csv.field_size_limit(MAX_CELL_CHARS)

MAX_TABLE_CHARS = 2**31
MAX_LINES_ABOVE = 20  # a header
_DELIMITERS = (",", "\t", ";", "|")

_UNITS_US = {
    "ns": 1e-3, "nsec": 1e-3, "nanoseconds": 1e-3, "纳秒": 1e-3,
    "us": 1.0, "μs": 1.0, "µs": 1.0, "usec": 1.0, "microseconds": 1.0, "微秒": 1.0,
    "ms": 1e3, "msec": 1e3, "milliseconds": 1e3, "毫秒": 1e3,
    "s": 1e6, "sec": 1e6, "seconds": 1e6, "秒": 1e6,
}  # fmt: skip
_UNIT_NAMES = "|".join(sorted(_UNITS_US, key=len, reverse=True))
_UNIT = re.compile(rf"[(\[_ /,]({_UNIT_NAMES})[)\]]?$")
_WITH_UNIT = re.compile(rf"^(.*\d)\s*({_UNIT_NAMES})$")
_NOTHING = {"", "n/a", "na", "nan", "-", "--", "null", "none"}

# Columns without case, spaces, signs and units; the first that is there counts.
_NAME = ("opname", "kernelname", "name", "operatorname", "taskname", "算子名称", "算子名", "名称")
_TYPE = ("optype", "type", "operatortype", "算子类型", "类型")
_CORE = (
    "acceleratorcore", "tasktype", "kerneltype", "coretype", "加速核", "加速核类型", "任务类型",
    "核类型",
)  # fmt: skip
_START = (
    "taskstarttime", "starttime", "taskstart", "start", "timestamp", "begintime", "任务开始时间",
    "开始时间", "起始时间",
)  # fmt: skip
_DURATION = (
    "taskduration", "duration", "tasktime", "elapsedtime", "totalduration", "任务耗时",
    "任务持续时间", "持续时间", "执行时间", "耗时",
)  # fmt: skip
_END = ("taskstop", "taskendtime", "taskend", "stoptime", "endtime", "end", "结束时间")
_BLOCKS = ("blocknum", "blockdim", "blockcount")
_DIRECTION = ("direction", "memcpydirection", "memcpykind", "copykind", "拷贝方向", "方向")
_STEP = ("stepid", "step", "iterationid", "iteration", "iterid", "步骤", "步数")
_DEVICE = ("deviceid", "device", "设备id", "设备")
_OF_THE_HOST = ("threadid", "processid", "pid", "tid")
"""Columns of a table of calls that the host made."""

_TOTAL = ("totaltime", "总耗时", "总时间")
_PARTS = {
    "computing": ("computing", "computation", "计算"),
    "free": ("free", "空闲"),
    "communication": (
        "communicationnotoverlapped", "exposedcommunication", "未掩盖通信", "未被掩盖的通信",
    ),
}  # fmt: skip

Cell = Callable[[list[str]], str]
"""A row's cell of one column, empty where the table or the row has none or says N/A."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table: how to read it, and the unit of its times in microseconds."""

    cell: Cell
    unit_us: float = 1.0


@dataclass(slots=True)
class Tables:
    """What tables of a profile add up to; slices of one table go into the same.

    Attributes:
        building: Single operations. `steps`: names of the steps that they are of.
        totals_s, type_times_s: As of `Profile`.
        odd: What was not read of the latest file, in words.
    """

    building: Building = field(default_factory=Building)
    steps: set[str] = field(default_factory=set)
    totals_s: dict[str, float] = field(default_factory=dict)
    type_times_s: dict[str, float] = field(default_factory=dict)
    odd: list[str] = field(default_factory=list)

    def profile(self) -> Profile:
        """All that was read."""
        made = self.building.profile(len(self.steps) or None)
        return replace(made, totals_s=self.totals_s, type_times_s=self.type_times_s)


def table_kind(file: Path) -> TableKind:
    """What a table is by its header, "" if it is none of ours."""
    return _kind(next(_rows(file), []))


def read_table(file: Path, tables: Tables, *, place: str = "") -> None:
    """Add a table's rows.

    Args:
        place: Where it is from, if what it holds is apart from other tables of this name.
    Raises:
        ValueError, TypeError, csv.Error: A row is not what its header says.
    """
    rows = _rows(file)
    header = next(rows, [])
    body = _bounded((row for row in rows if row and row != header), tables)
    readers = {"operations": _operations, "steps": _step_table, "types": _type_table}
    readers[_kind(header)](body, header, tables, place)


def _kind(header: Sequence[str]) -> TableKind:
    names = {_plain(cell)[0] for cell in header}
    if names.intersection(_PARTS["computing"]) and names.intersection(_PARTS["free"]):
        return "steps"
    has_length = names.intersection(_DURATION) or names.intersection(_END)
    if names.intersection(_START) and has_length and names.intersection((*_NAME, *_TYPE, *_CORE)):
        is_host = names.intersection(_OF_THE_HOST) and not names.intersection(_CORE)
        return "" if is_host else "operations"
    if names.intersection(_TOTAL) and names.intersection(_TYPE) and names.intersection(_CORE):
        return "types"  # without cores it is one of communication
    return ""


# --- cells -------------------------------------------------------------------------------------


def _rows(file: Path) -> Iterator[list[str]]:
    """Rows of stripped cells, from the header on; what stands above it is passed over."""
    with _opened(file) as raw:
        head = raw.read(HEAD_BYTES)
        encoding = _encoding(head)
        delimiter, above = _shape(head.decode(encoding, "replace"))
    with _opened(file) as raw:
        text = io.TextIOWrapper(raw, encoding=encoding, errors="replace", newline="")
        rows = csv.reader(itertools.islice(_lines(text), above, None), delimiter=delimiter)
        for row in rows:
            cells = [cell.strip() for cell in row]
            if delimiter == ";":  # where it parts cells, a comma is that of a number
                cells = [_with_point(cell) for cell in cells]
            yield cells


def _lines(text: io.TextIOWrapper) -> Iterator[str]:
    chars = 0
    while line := text.readline(MAX_CELL_CHARS):
        chars += len(line)
        if chars > MAX_TABLE_CHARS:
            raise ValueError(f"more than {MAX_TABLE_CHARS:,} characters")
        yield line.replace("\0", "")  # which csv would not read on from


def _opened(file: Path) -> IO[bytes]:
    return gzip.open(file, "rb") if file.suffix.lower() == ".gz" else file.open("rb")  # type: ignore[return-value]


def _bounded(rows: Iterable[list[str]], tables: Tables) -> Iterator[list[str]]:
    """Rows up to a number, or to where a packed file is cut off."""
    number = 0
    try:
        for number, row in enumerate(rows, 1):
            yield row
            if number == MAX_ROWS:
                tables.odd.append(f"only its first {MAX_ROWS:,} rows were read")
                return
    except (EOFError, zlib.error):
        tables.odd.append(f"cut off: read as far as it goes, {number:,} rows")


def _shape(head: str) -> tuple[str, int]:
    """What parts the cells of a table, and how many lines stand above its header."""
    lines = head.splitlines()[:MAX_LINES_ABOVE]
    for above, line in enumerate(lines):
        for delimiter in _DELIMITERS:
            if delimiter in line and _kind(_cells_of(line, delimiter)):
                return delimiter, above
    filled = next((n for n, line in enumerate(lines) if line.strip()), 0)
    return max(_DELIMITERS, key=lines[filled].count) if lines else ",", filled


def _cells_of(line: str, delimiter: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter), [])]
    except csv.Error:
        return []


def _encoding(head: bytes) -> str:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    try:
        head.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:  # else a character that the head cuts
            return "gb18030"
    return "utf-8-sig"


def _with_point(cell: str) -> str:
    return cell.replace(",", ".") if re.fullmatch(r"-?\d+,\d+", cell) else cell


@functools.lru_cache(maxsize=1024)
def _plain(name: str) -> tuple[str, float]:
    """A column's name without case, spaces, signs and unit; and the unit in microseconds."""
    text = unicodedata.normalize("NFKC", name).strip().lower()
    unit_us, match = 1.0, _UNIT.search(text)
    if match is not None:
        unit_us, text = _UNITS_US[match[1]], text[: match.start()]
    return re.sub(r"[\W_]+", "", text), unit_us


def _column(header: Sequence[str], names: Sequence[str]) -> Column:
    """The column of the first of these names; of several alike the first cell that says something.

    A name may be there with and without its meaning in other tables, so all its columns count.
    """
    plain = [_plain(cell) for cell in header]
    for name in names:
        found = [i for i, (text, _) in enumerate(plain) if text == name]
        if found:
            return Column(cell=_cell(found), unit_us=plain[found[0]][1])
    return Column(cell=lambda row: "")


def _cell(indices: Sequence[int]) -> Cell:
    if len(indices) == 1:
        (only,) = indices
        return lambda row: _said(row[only]) if only < len(row) else ""
    return lambda row: next(filter(None, (_said(row[i]) for i in indices if i < len(row))), "")


def _said(cell: str) -> str:
    return "" if cell.lower() in _NOTHING else cell


def _plain_number(text: str) -> str:
    """A number without what parts its thousands."""
    if text.replace(".", "", 1).isdecimal():
        return text
    return re.sub(r"[,\s'’_]", "", text)


def _us(text: str, unit_us: float) -> float:
    """A cell's time in microseconds; a unit in the cell itself counts before the header's."""
    try:
        return float(text) * unit_us
    except ValueError:
        if match := _WITH_UNIT.match(text):
            text, unit_us = match[1], _UNITS_US[match[2]]
        return float(_plain_number(text)) * unit_us


# --- tables ------------------------------------------------------------------------------------


def _operations(
    rows: Iterable[list[str]], header: Sequence[str], tables: Tables, place: str
) -> None:
    names = (
        _STEP, _NAME, _TYPE, _CORE, _DIRECTION, _START, _DURATION, _END, _BLOCKS, _DEVICE,
    )  # fmt: skip
    step, name, type_, core, direction, start, duration, end, blocks, device = (
        _column(header, group) for group in names
    )
    known_kind = functools.cache(kind_of)  # there are few names and many rows
    read, left_out, reason = 0, 0, ""
    for row in rows:
        began, count = start.cell(row), blocks.cell(row)
        try:
            length_us = _length_us(row, began, start, duration, end)
            if not began or length_us is None:
                continue
            label = type_.cell(row) or name.cell(row)
            words = f"{direction.cell(row)} {label} {_without_number(name.cell(row))}"
            tables.building.add(
                _plain_number(began),
                length_us,
                known_kind(words, core=core.cell(row)),
                label or core.cell(row),
                blocks=int(count) if count.isdecimal() else 0,
                place=place,
                device=device.cell(row),
                unit_us=start.unit_us,
            )
        except (ValueError, ArithmeticError) as error:
            left_out, reason = left_out + 1, reason or str(error)
            continue
        read += 1
        if marked := step.cell(row):
            tables.steps.add(f"{place} {device.cell(row)} {marked}")
    if left_out and not read:
        raise ValueError(reason)
    if left_out:
        whole = read + left_out
        tables.odd.append(f"{left_out:,} of {whole:,} rows were left out, the first for {reason}")


def _length_us(
    row: list[str], began: str, start: Column, duration: Column, end: Column
) -> float | None:
    """How long an operation took; None if the row does not tell."""
    if said := duration.cell(row):
        return _us(said, duration.unit_us)
    ended = end.cell(row)
    if not ended or not began:
        return None
    # A time since 1970 does not fit into a float.
    units = [Decimal(repr(column.unit_us)) for column in (start, end)]
    times = [Decimal(_plain_number(text)) for text in (began, ended)]
    return float(times[1] * units[1] - times[0] * units[0])


def _without_number(name: str) -> str:
    """An operation's name without its running number."""
    return name.rstrip("0123456789")


def _step_table(
    rows: Iterable[list[str]], header: Sequence[str], tables: Tables, place: str
) -> None:
    """Sums over all steps and devices."""
    columns = {part: _column(header, names) for part, names in _PARTS.items()}
    what, step = _column(header, ("type",)).cell, _column(header, _STEP).cell
    device = _column(header, _DEVICE).cell
    for row in rows:
        if what(row) == "stage":
            continue  # a stage repeats its slowest rank
        if marked := step(row):
            tables.steps.add(f"{place}{device(row)} {marked}")
        for part, column in columns.items():
            seconds = _us(column.cell(row) or "0", column.unit_us) * US
            tables.totals_s[part] = tables.totals_s.get(part, 0.0) + seconds


def _type_table(
    rows: Iterable[list[str]], header: Sequence[str], tables: Tables, _place: str
) -> None:
    name, total = _column(header, _TYPE).cell, _column(header, _TOTAL)
    for row in rows:
        seconds = _us(total.cell(row) or "0", total.unit_us) * US
        tables.type_times_s[name(row)] = tables.type_times_s.get(name(row), 0.0) + seconds
