"""Profiles as files: what ran on a device, when, and what it was, from several profilers' tables.

Read are torch_npu's `kernel_details.csv`, `step_trace_time.csv` and `trace_view.json`, msprof's
`op_summary*.csv`, `op_statistic*.csv`, `task_time*.csv` and `msprof*.json`, whole or in slices,
MindStudio's exports of these shapes, and the Chrome traces of torch.profiler, packed or not.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from autotune.core.errors import UsageError
from autotune.measure.profile import Profile
from autotune.measure.profile_tables import Tables, read_table, table_kind
from autotune.measure.trace_files import Trace, is_trace, load_json, read_trace

MAX_FILES = 200
MAX_FILE_BYTES = 2**30

_ENDINGS = (".csv", ".json", ".json.gz", ".tsv", ".txt")
_ODD = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    OverflowError,
    csv.Error,
    RecursionError,
)
"""What reading a file of another form ends in."""

_SLICE = re.compile(r"slice|part", re.IGNORECASE)
_NUMBER = re.compile(r"(?<!\d)\d{1,3}(?!\d)")  # of a rank or an iteration; longer ones are times


def read_profile(path: Path) -> Profile:
    """Everything known below a directory, or in one file.

    Where the same operations are in several files, the table that tells most is taken; slices of
    one table count together.

    Raises:
        UsageError: Nothing in it is a profile that is known.
    """
    found: dict[str, tuple[Profile, tuple[Path, ...]]] = {}
    unread: list[str] = []
    for group in _groups([path] if path.is_file() else _files(path)):
        kind, profile, read = _read(group, unread, found)
        if kind and read and kind not in found:
            found[kind] = (profile, read)
    if not found:
        known = "kernel_details.csv, op_summary*.csv, step_trace_time.csv, trace_view.json, …"
        if unread:
            raise UsageError(unread[0])
        raise UsageError(f"{path}: no profile in it; looked for {known}")
    return replace(_together(found), unread=tuple(unread))


def _files(directory: Path) -> list[Path]:
    if not directory.is_dir():
        raise UsageError(f"{directory}: there is no such file or directory")
    wanted = (f for f in directory.rglob("*") if f.name.endswith(_ENDINGS) and f.is_file())
    return sorted(wanted, key=lambda f: (len(f.parts), str(f.parent), f.name))[:MAX_FILES]


def _groups(files: Iterable[Path]) -> Iterator[list[Path]]:
    """Files of one directory whose names differ in numbers alone: slices of one table, or ranks.

    Tables of another time are another run, or the same one written out again.
    """
    groups: dict[tuple[Path, str], list[Path]] = {}
    for file in files:
        pattern = re.compile(r"\d+") if _SLICE.search(file.name) else _NUMBER
        groups.setdefault((file.parent, pattern.sub("", file.name)), []).append(file)
    yield from groups.values()


def _place(file: Path) -> str:
    """Slices share a clock and a device; what is otherwise named is laid apart."""
    return "" if _SLICE.search(file.name) else file.name


def _read(
    files: list[Path], unread: list[str], found: Mapping[str, object]
) -> tuple[str, Profile, tuple[Path, ...]]:
    """What the slices of a file are, "" if none of ours, their content, and those understood."""
    tables, trace, kind = Tables(), Trace(), ""
    read: list[Path] = []
    for file in files:
        try:
            size = file.stat().st_size
            if size > MAX_FILE_BYTES:
                raise ValueError(f"{size} bytes; at most {MAX_FILE_BYTES} are read")
            one = _read_one(file, tables, trace, skip=found if not read else {})
        except _ODD as error:
            unread.append(f"{file}: not understood: {error}")
            continue
        if one:
            kind = kind or one
            read.append(file)
    profile = trace.profile() if kind == "trace" else tables.profile()
    return kind, profile, tuple(read)


def _read_one(file: Path, tables: Tables, trace: Trace, *, skip: Iterable[str]) -> str:
    """Add a file to what was read of its like; returns what it is, "" if it is none of ours."""
    if file.name.endswith((".json", ".json.gz")):
        if "trace" in skip:
            return ""
        content = load_json(file)
        if not is_trace(content):
            return ""
        read_trace(content, trace, place=_place(file))
        return "trace"
    kind = table_kind(file)
    if not kind or kind in skip:
        return ""
    read_table(file, tables, place=_place(file))
    return kind


def _together(found: Mapping[str, tuple[Profile, tuple[Path, ...]]]) -> Profile:
    best = next((found[kind][0] for kind in ("operations", "trace") if kind in found), Profile())
    traced = found["trace"][0] if "trace" in found else Profile()
    if best is not traced and not best.of_kind("h2d", "d2h", "copy").any():
        # The table of operators has no copies; the trace may.
        best = traced if traced.of_kind("h2d", "d2h", "copy").any() else best
    steps = [profile.step_count for profile, _ in found.values() if profile.step_count]
    return replace(
        best,
        step_count=best.step_count or (steps[0] if steps else None),
        totals_s=found["steps"][0].totals_s if "steps" in found else {},
        type_times_s=found["types"][0].type_times_s if "types" in found else {},
        files=tuple(str(file) for _, files in found.values() for file in files),
    )
