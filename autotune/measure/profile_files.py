"""Profiles as files: what ran on a device, when, and what it was, from several profilers' tables.

Read are torch_npu's `kernel_details.csv`, `step_trace_time.csv` and `trace_view.json`, msprof's
`op_summary*.csv`, `op_statistic*.csv` and `task_time*.csv`, MindStudio's exports of these shapes,
and the Chrome traces of torch.profiler. Columns are found by name in every spelling that is known.
"""

from __future__ import annotations

import csv
import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from autotune.core.errors import UsageError
from autotune.core.records import Floats, Ints

Kind = Literal["compute", "h2d", "d2h", "copy", "communication", "host", "step"]
KINDS: tuple[Kind, ...] = ("compute", "h2d", "d2h", "copy", "communication", "host", "step")

MAX_FILES = 200
MAX_FILE_BYTES = 2**30
MAX_ROWS = 5_000_000
MAX_START_US = 10**17  # three thousand years: no clock is there
_US = 1e-6
_ODD = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    OverflowError,
    csv.Error,
    RecursionError,
)
"""What reading a file of another form ends in."""

_NAME = ("Name", "Op Name", "kernel_name", "OP Name")
_TYPE = ("Type", "OP Type", "Op Type")
_CORE = ("Accelerator Core", "Task Type", "kernel_type", "Core Type")
_START = ("Start Time(us)", "Task Start Time(us)", "Task Start Time", "task_start(us)")
_DURATION = ("Duration(us)", "Task Duration(us)", "task_time(us)")
_BLOCKS = ("Block Num", "Block Dim")
_STEP = ("Step Id", "Step ID")
_WORDS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("h2d", re.compile(r"HtoD|H2D|host[ _]?to[ _]?device|MEMCPY_HOST", re.IGNORECASE)),
    ("d2h", re.compile(r"DtoH|D2H|device[ _]?to[ _]?host", re.IGNORECASE)),
    ("copy", re.compile(r"memcpy|\bsdma\b", re.IGNORECASE)),
    ("communication", re.compile(r"hccl|hcom_|nccl|communication", re.IGNORECASE)),
)
_HOST_CATEGORIES = (
    "cpu_op",
    "python_function",
    "user_annotation",
    "cuda_runtime",
    "cpu_instant_event",
)
_DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
_STEP_NAME = re.compile(r"ProfilerStep#(\d+)|^step(?:[ _#]*\d+)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What ran, operation by operation, and tables that were summed up by the profiler.

    Attributes:
        start_s, duration_s: Of each operation, shape (operations,), from the first start on.
        kind: Index into `KINDS`. `label`: index into `labels`.
        blocks: Cores that each operation was spread over, 0 if not told.
        step_count: Steps (calls) the profiler marked, None if it did not.
        totals_s: "computing", "free", "communication" as the profiler summed them up, where only
            that is there. `type_times_s`: seconds by type of operator.
        files: What was read.
    """

    start_s: Floats = field(default_factory=lambda: np.empty(0))
    duration_s: Floats = field(default_factory=lambda: np.empty(0))
    kind: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    label: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    blocks: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    labels: tuple[str, ...] = ()
    step_count: int | None = None
    totals_s: Mapping[str, float] = field(default_factory=dict)
    type_times_s: Mapping[str, float] = field(default_factory=dict)
    files: tuple[str, ...] = ()

    def of_kind(self, *kinds: Kind) -> np.ndarray[Any, Any]:
        """Which operations are of these kinds, shape (operations,)."""
        return np.isin(self.kind, [KINDS.index(kind) for kind in kinds])


def read_profile(path: Path) -> Profile:
    """Everything known below a directory, or in one file.

    Where the same operations are in several files, the table that tells most is taken.

    Raises:
        UsageError: Nothing in it is a profile that is known.
    """
    files = [path] if path.is_file() else _files(path)
    found: dict[str, tuple[Profile, Path]] = {}
    for file in files:
        kind, profile = _read(file)
        if kind and kind not in found:
            found[kind] = (profile, file)
    if not found:
        known = "kernel_details.csv, op_summary*.csv, step_trace_time.csv, trace_view.json, …"
        raise UsageError(f"{path}: no profile in it; looked for {known}")
    return _together(found)


def _files(directory: Path) -> list[Path]:
    if not directory.is_dir():
        raise UsageError(f"{directory}: there is no such file or directory")
    wanted = (f for f in directory.rglob("*") if f.suffix in (".csv", ".json") and f.is_file())
    return sorted(wanted, key=lambda file: (len(file.parts), file.name))[:MAX_FILES]


def _read(file: Path) -> tuple[str, Profile]:
    """What a file is, "" if it is none of ours, and its content."""
    if file.stat().st_size > MAX_FILE_BYTES:
        raise UsageError(f"{file}: {file.stat().st_size} bytes; at most {MAX_FILE_BYTES} are read")
    try:
        if file.suffix == ".json":
            return _trace(file)
        return _table(file)
    except _ODD as error:
        raise UsageError(f"{file}: not understood: {error}") from None


def _together(found: Mapping[str, tuple[Profile, Path]]) -> Profile:
    order = ("operations", "trace")
    best = next((found[kind][0] for kind in order if kind in found), Profile())
    traced = found.get("trace", (Profile(), Path()))[0]
    if best is not traced and not best.of_kind("h2d", "d2h", "copy").any():
        # The table of operators has no copies; the trace may.
        best = traced if traced.of_kind("h2d", "d2h", "copy").any() else best
    steps = [profile.step_count for profile, _ in found.values() if profile.step_count]
    return replace(
        best,
        step_count=best.step_count or (steps[0] if steps else None),
        totals_s=found["steps"][0].totals_s if "steps" in found else {},
        type_times_s=found["types"][0].type_times_s if "types" in found else {},
        files=tuple(str(file) for _, file in found.values()),
    )


# --- tables ------------------------------------------------------------------------------------


Cell = Callable[[list[str]], str]
"""A row's cell of one column, empty where the table or the row has none."""


def _table(file: Path) -> tuple[str, Profile]:
    with file.open(newline="", encoding="utf-8-sig", errors="replace") as stream:
        rows = islice(csv.reader(stream), MAX_ROWS)
        header = [cell.strip() for cell in next(rows, [])]
        if "Computing" in header and "Free" in header:
            return "steps", _step_table(rows, header)
        if set(header).intersection(_START) and set(header).intersection(_DURATION):
            return "operations", _operations(rows, header)
        if "Total Time(us)" in header and set(header).intersection(_TYPE):
            return "types", _type_table(rows, header)
    return "", Profile()


def _cell(header: Sequence[str], names: Sequence[str]) -> Cell:
    index = next((header.index(name) for name in names if name in header), None)
    if index is None:
        return lambda row: ""
    return lambda row: row[index].strip() if index < len(row) else ""


def _operations(rows: Iterable[list[str]], header: Sequence[str]) -> Profile:
    columns = (_STEP, _NAME, _TYPE, _CORE, _START, _DURATION, _BLOCKS)
    step, name, type_, core, start, duration, blocks = (_cell(header, c) for c in columns)
    known_kind = functools.cache(kind_of)  # there are few names and many rows
    building, steps = _Building(), set()
    for row in rows:
        if start(row) in ("", "N/A") or duration(row) in ("", "N/A"):
            continue
        label = type_(row) or name(row)
        kind = known_kind(f"{core(row)} {label} {_plain(name(row))}")
        block_count = int(blocks(row)) if blocks(row).isdecimal() else 0
        building.add(start(row), float(duration(row)), kind, label, block_count)
        steps.add(step(row))
    return building.profile(len(steps - {""}) or None)


def _plain(name: str) -> str:
    """An operation's name without its running number."""
    return name.rstrip("0123456789")


def kind_of(words: str) -> Kind:
    """The kind of something that ran on the device, from its names."""
    return next((kind for kind, pattern in _WORDS if pattern.search(words)), "compute")


def _step_table(rows: Iterable[list[str]], header: Sequence[str]) -> Profile:
    """Sums over all steps and devices; times are in microseconds."""
    parts = {
        "computing": "Computing",
        "free": "Free",
        "communication": "Communication(Not Overlapped)",
    }
    cells = {part: _cell(header, (name,)) for part, name in parts.items()}
    what, step = _cell(header, ("Type",)), _cell(header, ("Step",))
    totals, steps = dict.fromkeys(parts, 0.0), set()
    for row in rows:
        if what(row) == "stage":
            continue  # a stage repeats its slowest rank
        steps.add(step(row))
        for part, cell in cells.items():
            totals[part] += float(cell(row) or 0.0) * _US
    return Profile(totals_s=totals, step_count=len(steps - {""}) or None)


def _type_table(rows: Iterable[list[str]], header: Sequence[str]) -> Profile:
    name, total = _cell(header, _TYPE), _cell(header, ("Total Time(us)",))
    times: dict[str, float] = {}
    for row in rows:
        times[name(row)] = times.get(name(row), 0.0) + float(total(row) or 0.0) * _US
    return Profile(type_times_s=times)


# --- traces ------------------------------------------------------------------------------------


def _trace(file: Path) -> tuple[str, Profile]:
    with file.open(encoding="utf-8", errors="replace") as stream:
        content = json.load(stream)
    events = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(events, list) or not any(isinstance(e, dict) and "ph" in e for e in events):
        return "", Profile()
    processes = _process_names(events)
    building = _Building()
    steps = set()
    for event in events[:MAX_ROWS]:
        if not isinstance(event, dict) or event.get("ph") != "X" or "dur" not in event:
            continue
        name = str(event.get("name", ""))
        if match := _STEP_NAME.search(name):
            steps.add(match.group())
            kind: Kind = "step"
        else:
            kind = _event_kind(event, name, processes.get(event.get("pid"), ""))
        building.add(str(event.get("ts")), float(event["dur"]), kind, name, 0)
    return "trace", building.profile(len(steps) or None)


def _process_names(events: Iterable[Any]) -> dict[Any, str]:
    return {
        event.get("pid"): str(event.get("args", {}).get("name", ""))
        for event in events
        if isinstance(event, dict) and event.get("name") == "process_name"
    }


def _event_kind(event: Mapping[str, Any], name: str, process: str) -> Kind:
    category = str(event.get("cat", ""))
    args = event.get("args")
    task = str(args.get("Task Type", "")) if isinstance(args, Mapping) else ""
    on_device = category in _DEVICE_CATEGORIES or task or "Ascend Hardware" in process
    if not on_device:
        return "host"
    return kind_of(f"{task} {name}")


class _Building:
    """Operations as they are read; starts are kept relative to the first, in full precision."""

    def __init__(self) -> None:
        self._base: int | None = None
        self._starts: list[float] = []
        self._durations: list[float] = []
        self._kinds: list[int] = []
        self._labels: list[int] = []
        self._blocks: list[int] = []
        self._names: dict[str, int] = {}

    def add(self, start_us: str, duration_us: float, kind: Kind, label: str, blocks: int) -> None:
        """Add one.

        A time since 1970 in microseconds with its fraction does not fit into a float: its whole
        part is taken relative to the first one's.
        """
        whole, point, fraction = start_us.strip().partition(".")
        if not whole.isdecimal() or not (fraction.isdecimal() or not fraction):
            whole, point, fraction = str(int(float(start_us))), "", ""
        if abs(int(whole)) > MAX_START_US:
            raise ValueError(f"a start at {start_us} us")
        if self._base is None:
            self._base = int(whole)
        if not np.isfinite(duration_us) or duration_us < 0:
            raise ValueError(f"a duration of {duration_us:g} us")
        self._starts.append(int(whole) - self._base + (float(f"0.{fraction}") if point else 0.0))
        self._durations.append(duration_us)
        self._kinds.append(KINDS.index(kind))
        self._labels.append(self._names.setdefault(label, len(self._names)))
        self._blocks.append(blocks)

    def profile(self, step_count: int | None) -> Profile:
        """All that were added."""
        starts = np.asarray(self._starts, dtype=np.float64)
        return Profile(
            start_s=(starts - (starts.min() if starts.size else 0.0)) * _US,
            duration_s=np.asarray(self._durations, dtype=np.float64) * _US,
            kind=np.asarray(self._kinds, dtype=np.int64),
            label=np.asarray(self._labels, dtype=np.int64),
            blocks=np.asarray(self._blocks, dtype=np.int64),
            labels=tuple(self._names),
            step_count=step_count,
        )
