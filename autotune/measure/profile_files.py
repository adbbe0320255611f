"""Profiles as files: what ran on a device, when, and what it was, from several profilers' tables.

Read are torch_npu's `kernel_details.csv`, `step_trace_time.csv` and `trace_view.json`, msprof's
`op_summary*.csv`, `op_statistic*.csv`, `task_time*.csv` and `msprof*.json`, whole or in slices,
MindStudio's exports of these shapes, and the Chrome traces of torch.profiler, packed or not.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.core.errors import UsageError
from autotune.measure.profile import COPIES, Building, Kind, Profile
from autotune.measure.profile_tables import Tables, read_table, table_kind
from autotune.measure.trace_files import Trace, is_trace, load_json, read_trace

MAX_FILES = 200
MAX_FILE_BYTES = 2**30
MAX_LISTED = 10_000  # files in a folder without a profile
MAX_TABLES = 8  # of operations that are read in search of one with copies

_PACKED = (".csv", ".json", ".tsv", ".txt")
_ENDINGS = (*_PACKED, *(f"{ending}.gz" for ending in _PACKED))
_ODD = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    csv.Error,
    gzip.BadGzipFile,
    zlib.error,
    RecursionError,
)
"""What reading a file of another form ends in."""

_SLICE = re.compile(r"slice|(?<![a-z])part(?![a-z])", re.IGNORECASE)
_NUMBER = re.compile(r"(?<!\d)\d{1,3}(?!\d)")  # of a rank or an iteration; longer ones are times
_DIGITS = re.compile(r"\d+|(?<=_)[A-Z]{6,}$")  # msprof's folders end in random letters
_ONE_OF_SEVERAL = re.compile(
    r"rank|device|npu|gpu|card|PROF_|ascend_(pt|ms)|worker|node|instance|proc", re.IGNORECASE
)
"""What a folder is called that has one process's or device's share of a run."""

_PROCESS_TRACE = re.compile(r"\.pt\.trace\.json(\.gz)?$")  # HOST_PROCESS.TIME.pt.trace.json


@dataclass(slots=True)
class _Source:
    """What files of one kind and name add up to."""

    kind: str = ""
    tables: Tables = field(default_factory=Tables)
    trace: Trace = field(default_factory=Trace)
    files: list[Path] = field(default_factory=list)

    @property
    def building(self) -> Building:
        """Its operations."""
        return self.trace.building if self.kind == "trace" else self.tables.building

    @property
    def step_count(self) -> int:
        """Steps that it tells of."""
        return self.trace.step_count if self.kind == "trace" else len(self.tables.steps)

    def has(self, *kinds: Kind) -> bool:
        """True if operations of these kinds are in it."""
        return self.building.has(*kinds)

    def profile(self) -> Profile:
        """All of it."""
        return self.trace.profile() if self.kind == "trace" else self.tables.profile()


def read_profile(path: Path) -> Profile:
    """Everything known below a directory, or in one file.

    Where the same operations are in several files, the table that tells most is taken; slices of
    one table count together, and so do folders of several processes or devices.

    Raises:
        UsageError: Nothing in it is a profile that is known.
    """
    unread: list[str] = []
    files = [path] if path.is_file() else _files(path, unread)
    found: list[_Source] = []
    read: dict[tuple[int, str], Path] = {}
    for group in _groups(files):
        key = (len(group[0].parts), re.sub(r"\d+", "", group[0].name))
        if key in read:
            unread.append(f"{group[0]}: left out: another run than {read[key]}, or the same again")
            continue
        source = _read(group, unread, found)
        if source.kind:
            found.append(source)
            read[key] = group[0]
    if not found:
        known = "kernel_details.csv, op_summary*.csv, step_trace_time.csv, trace_view.json, …"
        if unread:
            raise UsageError(unread[0])
        raise UsageError(f"{path}: no profile in it; looked for {known}{_other_forms(path)}")
    return replace(_together(found), unread=tuple(unread))


def _other_forms(path: Path) -> str:
    """What to do about a profile that is there in a form that is not read; empty: none is."""
    inside = [path] if path.is_file() else path.rglob("*")
    names = [file.name for file in itertools.islice(inside, MAX_LISTED)]
    if any(name.endswith(".db") for name in names):
        return (
            "; databases are not read: export as text (msprof --export=on --type=text, or "
            "export_type text in torch_npu's profiler)"
        )
    if any(
        name.startswith(("PROF_", "FRAMEWORK")) or name.endswith("_ascend_pt") for name in names
    ):
        return "; what was recorded has not been analysed yet: msprof --export=on --output=DIR"
    return ""


def _files(directory: Path, unread: list[str]) -> list[Path]:
    if not directory.is_dir():
        raise UsageError(f"{directory}: there is no such file or directory")
    wanted = [f for f in directory.rglob("*") if f.name.lower().endswith(_ENDINGS) and f.is_file()]
    if len(wanted) > MAX_FILES:
        unread.append(f"{directory}: {len(wanted):,} files; the first {MAX_FILES} were looked at")
    return sorted(wanted, key=lambda f: (len(f.parts), str(f.parent), f.name))[:MAX_FILES]


def _groups(files: Iterable[Path]) -> Iterator[list[Path]]:
    """Files whose names differ in numbers alone: slices of one table, or ranks, in their folders.

    Tables of another time in the same folder are another run, or the same one written out again.
    """
    groups: dict[tuple[tuple[str, ...], str], list[Path]] = {}
    for file in files:
        is_timed = _SLICE.search(file.name) or _PROCESS_TRACE.search(file.name)
        pattern = _DIGITS if is_timed else _NUMBER
        folders = tuple(
            _DIGITS.sub("", name) if _ONE_OF_SEVERAL.search(name) else name
            for name in file.parent.parts
        )
        name = re.sub(r"\.gz$", "", file.name, flags=re.IGNORECASE)
        groups.setdefault((folders, pattern.sub("", name)), []).append(file)
    yield from groups.values()


def _place(file: Path, group: Sequence[Path]) -> str:
    """Slices share a clock and a device; what is otherwise named is laid apart."""
    folder = str(file.parent) if len({other.parent for other in group}) > 1 else ""
    return folder if _SLICE.search(file.name) else f"{folder} {file.name}"


def _read(files: list[Path], unread: list[str], found: Sequence[_Source]) -> _Source:
    """What the slices of a file add up to; of no kind if they are none of ours, or not wanted."""
    source = _Source()
    for file in files:
        try:
            size = file.stat().st_size
            if size > MAX_FILE_BYTES:
                raise ValueError(f"{size:,} bytes; at most {MAX_FILE_BYTES:,} are read")
            kind = _read_one(file, source, found, _place(file, files))
        except _ODD as error:
            unread.append(f"{file}: not understood: {error}")
            continue
        if kind:
            source.kind = kind
            source.files.append(file)
        for odd in (source.tables.odd, source.trace.odd):
            unread += [f"{file}: {one}" for one in odd]
            odd.clear()
    return source


def _read_one(file: Path, source: _Source, found: Sequence[_Source], place: str) -> str:
    """Add a file to what was read of its like; returns what it is, "" if it is none of ours."""
    name = file.name.lower().removesuffix(".gz")
    if name.endswith(".json"):
        if not _is_wanted("trace", found):
            return ""
        content = load_json(file)
        if not is_trace(content):
            return ""
        read_trace(content, source.trace, place=place)
        return "trace"
    kind = table_kind(file)
    if not kind or (source.kind or kind) != kind or not _is_wanted(kind, found):
        return ""
    read_table(file, source.tables, place=place)
    return kind


def _is_wanted(kind: str, found: Sequence[_Source]) -> bool:
    """One of each kind, but of operations as many as it takes to have operators and copies."""
    alike = [source for source in found if source.kind == kind]
    if kind == "operations":
        told = all(any(source.has(*kinds) for source in alike) for kinds in (("compute",), COPIES))
        return len(alike) < MAX_TABLES and not told
    return not alike


def _together(found: Sequence[_Source]) -> Profile:
    """The source that tells most, with copies from another one if it has none itself."""
    for source in found:
        source.trace.complete()
    single = [source for source in found if source.kind in ("operations", "trace")]
    best = max(single, key=_worth, default=None)
    if best is not None and not best.has(*COPIES):
        # The table of operators has no copies; another table or the trace may.
        other = next((source for source in single if source.has(*COPIES)), None)
        if other is not None:
            best.building.take(other.building, *COPIES)
    made = Profile() if best is None else best.profile()
    steps = next((source.step_count for source in found if source.step_count), None)
    sums = {source.kind: source.tables for source in found}
    return replace(
        made,
        step_count=made.step_count or steps,
        totals_s=sums["steps"].totals_s if "steps" in sums else {},
        type_times_s=sums["types"].type_times_s if "types" in sums else {},
        files=tuple(str(file) for source in found for file in source.files),
    )


def _worth(source: _Source) -> tuple[bool, bool, bool]:
    """Of two sources the one to take: that has operators, then copies, then is a table."""
    return source.has("compute"), source.has(*COPIES), source.kind == "operations"
