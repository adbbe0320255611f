"""What `npu-smi` prints, in its several layouts, as readings per chip.

The layouts drift between versions and products: widths change, columns come and go, a figure may
be "NA" or "-". Columns are therefore found by their names and numbers by their shape; what is not
there is None.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from autotune.devices.readings import Reading

MAX_CHARS = 1_000_000
MAX_LINE_CHARS = 1000  # what is longer is no line of it
MAX_CHIPS = 4096
_MB = 2**20
_PAIR = re.compile(r"(\d+)\s*/\s*(\d+)")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_ABSENT = ("NA", "N/A", "-", "")
_MAX_FIGURE = 1e15  # beyond this a figure is a fault of the text
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_COMMAND = re.compile(r"\s*#|.*\bnpu-smi info\b")  # of a transcript, with any prompt
_OTHER_CHIPS = ("mcu", "3559")  # of the board: its controller, its processor


class NotUnderstoodError(ValueError):
    """The text is no output of npu-smi that is known; the message says what was looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One chip as npu-smi tells of it.

    Attributes:
        npu, chip: Its numbers there. `physical_id`: the framework's device index, None if the
            layout has no such column.
        health: Such as "OK", empty if not told.
    """

    npu: int
    chip: int
    physical_id: int | None = None
    name: str = ""
    health: str = ""
    bus: str = ""
    reading: Reading = Reading()


def parse(text: str) -> tuple[Chip, ...]:
    """The chips in any output of npu-smi info, info -t ..., or info watch.

    Raises:
        NotUnderstoodError: No chip was found in it.
    """
    if len(text) > MAX_CHARS:
        raise NotUnderstoodError(f"{len(text)} characters; at most {MAX_CHARS} are read")
    lines = [_COLOURS.sub("", line) for line in text.splitlines() if len(line) <= MAX_LINE_CHARS]
    if any(_is_head(_cells(line)) for line in lines):
        chips = tuple(_table(lines))
    elif any(line.lstrip().startswith("NpuID(Idx)") for line in lines):
        chips = tuple(_watch(lines))
    else:
        chips = tuple(_merged(_keys(lines)))
    if not chips:
        raise NotUnderstoodError(
            "no chip in it: neither a table with NPU and Name, nor 'NPU ID : n', nor NpuID(Idx)"
        )
    return chips[:MAX_CHIPS]


def version_of(text: str) -> str | None:
    """The version in the table's head, None if there is none."""
    match = re.search(r"npu-smi\s+(\S+)\s+Version:\s*(\S+)", text)
    return match.group(2) if match else None


# --- npu-smi info ------------------------------------------------------------------------------


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _is_head(cells: Sequence[str]) -> bool:
    """True for the first line of the chips' header: "NPU   Name | ...", "NPU ID | Name | ..."."""
    words = [word for cell in cells[:2] for word in cell.split()]
    return words[:2] == ["NPU", "Name"] or words[:3] == ["NPU", "ID", "Name"]


def _table(lines: Iterable[str]) -> Iterator[Chip]:
    """Two lines per chip; the second header tells the memories' columns.

    Where a card is one chip (since npu-smi 25.6) its number and its name have a cell each, and
    the second line begins with two empty ones.
    """
    memories: tuple[str, ...] = ("Memory-Usage",)
    above: list[str] | None = None
    has_chips = True
    for line in lines:
        cells = _cells(line)
        if _is_head(cells):
            has_chips = cells[0] != "NPU ID"
        if not has_chips and len(cells) == 4:
            cells = [f"{cells[0]} {cells[1]}".strip(), *cells[2:]]
        if len(cells) != 3:
            above = None
            continue
        if "-Usage(MB)" in cells[2]:
            memories = tuple(re.findall(r"(\S*-Usage)", cells[2]))
        words = cells[0].split()
        is_second = above is not None and (has_chips or not words)
        if words and not words[0].isdecimal():
            above = None  # a header, a process table
        elif words and not is_second:
            above = cells
        elif above is not None and is_second:
            chip = _two_lines(above, cells, memories)
            above = None
            if chip is not None:
                yield chip


def _two_lines(above: Sequence[str], below: Sequence[str], memories: Sequence[str]) -> Chip | None:
    npu, name = _first_number(above[0]), " ".join(above[0].split()[1:])
    ids = [_whole(word) for word in below[0].split()] or [0]
    figures = above[2].split()
    if npu is None or ids[0] is None or len(figures) < 2:
        return None
    pairs = dict(zip(memories, _PAIR.findall(below[2]), strict=False))
    used, total = _memory(pairs)
    return Chip(
        npu=npu,
        chip=ids[0],
        physical_id=ids[1] if len(ids) > 1 else None,
        name=name,
        health=above[1],
        bus=below[1],
        reading=Reading(
            power_w=_figure(figures[0]),
            temperature_c=_figure(figures[1]),
            utilisation_ratio=_share(below[2].split()[0] if below[2].split() else ""),
            memory_used_bytes=used,
            memory_total_bytes=total,
        ),
    )


def _memory(pairs: Mapping[str, tuple[str, str]]) -> tuple[int | None, int | None]:
    """Used and total of the memory that models live in: HBM where there is some, else DDR."""
    for name in ("HBM-Usage", "Memory-Usage"):
        used, total = (_whole(word) for word in pairs.get(name, ("", "")))
        if used is not None and total:
            return used * _MB, total * _MB
    return None, None


# --- npu-smi info -t usages, common, memory, power, temp ---------------------------------------


def _keys(lines: Iterable[str]) -> Iterator[Chip]:
    """Lines of "Key : Value"; a chip's figures stand before or behind its "Chip ID"."""
    npu: int | None = None
    figures: dict[str, str] = {}
    for key, value in [*_pairs(lines), ("npu id", "end")]:
        # Behind its number the next chip begins with a key that this one had, or with a name.
        is_next = "chip id" in figures and (key in figures or key == "chip name")
        if key == "npu id" or is_next:
            if npu is not None and (chip := _of_keys(npu, figures)) is not None:
                yield chip
            figures = {}
            npu = _whole(value) if key == "npu id" else npu
        figures.setdefault(key, value)


def _merged(chips: Iterable[Chip]) -> Iterable[Chip]:
    """What several questions told of the same chip, as one."""
    found: dict[tuple[int, int], Chip] = {}
    for chip in chips:
        before = found.get((chip.npu, chip.chip), chip)
        told = {f.name: getattr(chip.reading, f.name) for f in fields(Reading)}
        reading = replace(before.reading, **{k: v for k, v in told.items() if v is not None})
        found[chip.npu, chip.chip] = replace(before, name=chip.name or before.name, reading=reading)
    return found.values()


def _pairs(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        if _COMMAND.match(line):
            # What follows may be of another question.
            match = re.search(r"-i\s+(\d+)", line)
            yield ("npu id", match.group(1) if match else "end")
            continue
        key, colon, value = line.partition(":")
        if colon and key.strip():
            yield re.sub(r"\([^()]*\)", "", key).strip().casefold(), value.strip()


def _of_keys(npu: int, known: Mapping[str, str]) -> Chip | None:
    if known.get("chip name", "").casefold() in _OTHER_CHIPS:
        return None
    capacity = _figure(known.get("hbm capacity", "")) or _figure(known.get("ddr capacity", ""))
    used = known.get("hbm usage rate", "") if _figure(known.get("hbm capacity", "")) else ""
    share = _share(used or known.get("ddr usage rate", "") or known.get("memory usage rate", ""))
    total = None if not capacity else round(capacity * _MB)
    power = known.get("power dissipation", "") or known.get("npu real-time power", "")
    temperature = known.get("temperature", "") or known.get("npu temperature", "")
    return Chip(
        npu=npu,
        chip=_whole(known.get("chip id", "0")) or 0,
        name=known.get("chip name", ""),
        reading=Reading(
            utilisation_ratio=_share(known.get("aicore usage rate", "")),
            memory_used_bytes=None if share is None or total is None else round(share * total),
            memory_total_bytes=total,
            temperature_c=_figure(temperature or known.get("hbm temperature", "")),
            power_w=_figure(power),
        ),
    )


# --- npu-smi info watch ------------------------------------------------------------------------


def _watch(lines: Iterable[str]) -> Iterator[Chip]:
    """A header and then a line of figures each time; the last line of each chip counts."""
    names: list[str] = []
    last: dict[tuple[int, int], Chip] = {}
    for line in lines:
        if line.lstrip().startswith("NpuID"):
            heads = re.findall(r"([^()]+)\([^()]*\)", line)
            names = [head.strip().casefold() for head in heads]
            continue
        words = line.split()
        if len(words) != len(names):
            continue
        row = dict(zip(names, words, strict=True))
        npu, chip = _whole(row.get("npuid", "")), _whole(row.get("chipid", "0"))
        if npu is None or chip is None:
            continue
        last[npu, chip] = Chip(
            npu=npu,
            chip=chip,
            reading=Reading(
                utilisation_ratio=_share(row.get("ai core", row.get("npu util", ""))),
                temperature_c=_figure(row.get("temp", "")),
                power_w=_figure(row.get("pwr", "")),
            ),
        )
    yield from last.values()


# --- words -------------------------------------------------------------------------------------


def _figure(word: str) -> float | None:
    if word.strip() in _ABSENT or not _NUMBER.fullmatch(word.strip()):
        return None
    value = float(word)
    return value if abs(value) < _MAX_FIGURE else None


def _share(word: str) -> float | None:
    value = _figure(word)
    return None if value is None or not 0 <= value <= 100 else value / 100


def _whole(word: str) -> int | None:
    value = _figure(word)
    return None if value is None or value < 0 or value != int(value) else int(value)


def _first_number(cell: str) -> int | None:
    words = cell.split()
    return _whole(words[0]) if words else None
