"""Traces in Chrome's format: torch.profiler's on CPU and GPU, torch_npu's and msprof's."""

from __future__ import annotations

import bisect
import gzip
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from autotune.measure.profile import Building, Kind, Profile, kind_of

MAX_EVENTS = 5_000_000
MAX_TRACE_BYTES = 2**30  # unpacked
READ_BYTES = 2**20
CUT_OFF = "autotune: cut off"
"""Key of what `load_json` gives for a list of events that has no end."""

_ODD = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
"""What reading an event of another form ends in."""

COPY_MARK = "autotune: copies to the device"
"""Name of the stretch in which the harness copies inputs, where the device's own trace has none."""
STEP_MARK = "autotune: step "
"""Before the number of each run of the model."""

_KERNELS = re.compile(r"\bkernel\b|mem_?cpy|mem_?set|gpu_op|npu_op", re.IGNORECASE)
_OPERATORS = {"cpu_op", "operator"}
_LAUNCHES = re.compile(
    r"(cuda|npu|mlu|xpu|privateuse1|hip)_(runtime|driver)|^runtime$|^(de|en)queue$"
)
_DEVICE_PROCESS = re.compile(r"Ascend Hardware|Task Scheduler|昇腾硬件", re.IGNORECASE)
_GROUP_PROCESS = re.compile(r"^(HCCL|Communication)\b", re.IGNORECASE)
_GROUP_OPERATION = re.compile(r"^hcom_|^hccl", re.IGNORECASE)
_MARK = re.compile(r"^ms_?tx", re.IGNORECASE)  # a stretch with a name, drawn among the operators
_HOST_PROCESS = re.compile(r"^CANN\b|^AscendCL\b", re.IGNORECASE)
_HOST_COPY = re.compile(r"(aclrt|rt)Memcpy(?!\w*Async)|acl_memcpy_", re.IGNORECASE)
"""Copies in which the host waits: the device's own trace has none of them."""

_STEP_NAME = re.compile(rf"ProfilerStep[#\s*]*\d+|^step[ _#]*\d+$|^{STEP_MARK}\d+$", re.IGNORECASE)
_DIRECTION = re.compile(r"direction|copy_?kind|operation", re.IGNORECASE)
_COPIES = re.compile(r"aten::(copy_|_foreach_copy_)$")


@dataclass(slots=True)
class Trace:
    """Events as they are read; slices of one trace go into the same.

    Attributes:
        steps: Place and name of each step that was marked.
        odd: What was not read of the latest file, in words.
    """

    building: Building = field(default_factory=Building)
    steps: set[tuple[str, str]] = field(default_factory=set)
    operators: list[_Event] = field(default_factory=list)
    has_device: bool = False
    odd: list[str] = field(default_factory=list)

    @property
    def step_count(self) -> int:
        """Steps that were marked, of each device."""
        by_place = Counter(place for place, _ in self.steps)
        return sum(count * self.building.device_count(place) for place, count in by_place.items())

    def profile(self) -> Profile:
        """All that was read."""
        return self.building.profile(self.step_count or None, is_host=not self.has_device)

    def complete(self) -> None:
        """Add what can only be told when all was read.

        Without a device the host's operators are what ran. Copies in which the host waits are the
        device's if it shows none.
        """
        if not self.has_device:
            ran = _outermost(self.operators)
        elif not self.building.has("h2d", "d2h", "copy"):
            ran = _host_copies(self.operators)
        else:
            return
        for event, kind in ran:
            self.building.add(event.start, event.duration_us, kind, event.name, place=event.place)
        self.operators = []


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    name: str
    category: str
    thread: tuple[Any, Any]
    start: str
    duration_us: float
    place: str


def is_trace(content: Any) -> bool:
    """True if a JSON file's content is a trace."""
    return any(isinstance(event, dict) and "ph" in event for event in _events(content))


def load_json(file: Path) -> Any:
    """A JSON file's content, packed or not; numbers with a point as they are written.

    Of a list of events that is cut off, or not closed, which the format allows, the whole ones.

    Raises:
        ValueError: It is too large or no JSON.
    """
    with gzip.open(file, "rb") if file.suffix.lower() == ".gz" else file.open("rb") as stream:
        data = _as_far_as_it_goes(stream)
    text = data.decode(json.detect_encoding(data), "replace").lstrip("\ufeff")
    try:
        return json.loads(text, parse_float=str)
    except json.JSONDecodeError:
        events = _whole_events(text)
        if not events:
            raise
        return {"traceEvents": events, CUT_OFF: True}


def _as_far_as_it_goes(stream: gzip.GzipFile | io.BufferedReader) -> bytes:
    """What can be read of a file; a packed one may be cut off."""
    data = bytearray()
    while len(data) <= MAX_TRACE_BYTES:
        try:
            part = stream.read1(READ_BYTES)
        except EOFError:
            if not data:
                raise
            break
        if not part:
            break
        data += part
    if len(data) > MAX_TRACE_BYTES:
        raise ValueError(f"more than {MAX_TRACE_BYTES} bytes of JSON")
    return bytes(data)


def _whole_events(text: str) -> list[Any]:
    """Events of a list that is not closed, up to the first that is none."""
    begin = re.search(r'^\s*(?:\[|\{.*?"traceEvents"\s*:\s*\[)', text, re.DOTALL)
    if begin is None:
        return []
    decoder = json.JSONDecoder(parse_float=str)
    separator = re.compile(r"[\s,]*")
    events: list[Any] = []
    at = begin.end()
    while len(events) < MAX_EVENTS:
        at = separator.match(text, at).end()  # type: ignore[union-attr]
        try:
            event, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            break
        events.append(event)
    return events


def read_trace(content: Any, trace: Trace, *, place: str = "") -> None:
    """Add a trace's events.

    Args:
        place: Where it is from, if what it holds is apart from other traces of this name.
    Raises:
        ValueError: None of its events has a start and a duration.
    """
    events = _events(content)
    processes = _process_names(events)
    read, odd = 0, ""
    spans, without_end = _spans(events[:MAX_EVENTS])
    for event in spans:
        try:
            _read_event(event, processes.get(event.get("pid"), ""), trace, place)
            read += 1
        except _ODD as error:
            odd, without_end = odd or _why(error), without_end + 1
    if not read:
        raise ValueError(odd or "none of its events has a start and a duration")
    if isinstance(content, dict) and content.get(CUT_OFF):
        trace.odd.append(f"cut off, or not closed: read as far as it goes, {read:,} events")
    if without_end:
        reason = f", the first for {odd}" if odd else ": they have no end"
        trace.odd.append(f"{without_end:,} events were left out{reason}")
    if len(events) > MAX_EVENTS:
        trace.odd.append(f"only the first {MAX_EVENTS:,} of {len(events):,} events were read")


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)


def _read_event(event: Mapping[str, Any], process: str, trace: Trace, place: str) -> None:
    name = str(event.get("name", ""))
    kind = _kind(event, name, process)
    start, duration_us = str(event["ts"]).replace(",", ""), float(event["dur"])
    pid, is_ours = str(event.get("pid", "")), kind in ("host", "annotation", "step")
    told = event.get("args")
    own = told.get("device") if isinstance(told, Mapping) else None
    device = "" if is_ours else str(pid if own is None else own)
    trace.building.add(start, duration_us, kind, name, place=place, device=device)
    if kind == "step":
        trace.steps.add((place, name))
    elif is_ours:
        trace.operators.append(
            _Event(
                name=name,
                category=str(event.get("cat", "")).lower(),
                thread=(f"{place} {pid}", str(event.get("tid"))),
                start=start,
                duration_us=duration_us,
                place=place,
            )
        )
    else:
        trace.has_device = True


def _events(content: Any) -> list[Any]:
    found = content.get("traceEvents") if isinstance(content, dict) else content
    return found if isinstance(found, list) else []


def _process_names(events: Iterable[Any]) -> dict[Any, str]:
    found = {}
    for event in events:
        if isinstance(event, dict) and event.get("name") == "process_name":
            told = event.get("args")
            pid = event.get("pid")
            if isinstance(told, Mapping) and isinstance(pid, (int, str)):
                found[pid] = str(told.get("name", ""))
    return found


def _spans(events: Iterable[Any]) -> tuple[list[Mapping[str, Any]], int]:
    """Events with a duration, a begin and its end made one; and how many have no end."""
    whole: list[Mapping[str, Any]] = []
    ends: dict[tuple[str, str], list[tuple[Decimal, bool, int, Mapping[str, Any]]]] = {}
    lost = 0
    for number, event in enumerate(events):
        if not isinstance(event, dict):
            continue
        phase = event.get("ph")
        if phase == "X":
            whole.append(event)
        elif phase in ("B", "E"):
            try:
                at = Decimal(str(event["ts"]))
            except (KeyError, InvalidOperation):
                lost += 1
                continue
            thread = (str(event.get("pid")), str(event.get("tid")))
            # An end comes before a begin at the same time; a file may hold them in any order.
            ends.setdefault(thread, []).append((at, phase == "B", number, event))
    for own in ends.values():
        paired, alone = _paired(own)
        whole += paired
        lost += alone
    return whole, lost


def _paired(
    ends: list[tuple[Decimal, bool, int, Mapping[str, Any]]],
) -> tuple[list[Mapping[str, Any]], int]:
    """Begins with their ends on one thread, innermost first; and how many are without the other."""
    open_: list[tuple[Decimal, Mapping[str, Any]]] = []
    found: list[Mapping[str, Any]] = []
    alone = 0
    for at, is_begin, _, event in sorted(ends, key=lambda end: end[:3]):
        if is_begin:
            open_.append((at, event))
        elif open_:
            began, first = open_.pop()
            found.append({**event, **first, "dur": float(at - began)})
        else:
            alone += 1
    return found, alone + len(open_)


def _kind(event: Mapping[str, Any], name: str, process: str) -> Kind:
    if _STEP_NAME.search(name):
        return "step"
    category = str(event.get("cat", "")).lower()
    args = event.get("args")
    told = args if isinstance(args, Mapping) else {}
    task = str(told.get("Task Type", ""))
    if category == "gpu_user_annotation" or _MARK.search(name):
        return "annotation"
    if _KERNELS.search(category) or task or _DEVICE_PROCESS.search(process):
        ways = " ".join(str(value) for key, value in told.items() if _DIRECTION.search(str(key)))
        return kind_of(f"{name} {ways}", core=task)
    if _GROUP_PROCESS.search(process):
        return "communication" if _GROUP_OPERATION.search(name) else "annotation"
    if category in _OPERATORS or _LAUNCHES.search(category) or _HOST_PROCESS.search(process):
        return "host"
    return "annotation"


def _host_copies(events: Iterable[_Event]) -> Iterator[tuple[_Event, Kind]]:
    """Copies in which the host waits; of several levels of a call the outermost one."""
    for event in _not_within([e for e in events if _HOST_COPY.search(e.name)]):
        kind = kind_of(event.name)
        yield event, kind if kind in ("h2d", "d2h", "copy") else "copy"


def _not_within(events: Iterable[_Event]) -> Iterator[_Event]:
    """Events that lie in no other one of their thread."""
    by_thread: dict[tuple[Any, Any], list[_Event]] = {}
    for event in events:
        by_thread.setdefault(event.thread, []).append(event)
    for own in by_thread.values():
        busy_until = Decimal("-Infinity")
        for event in sorted(own, key=lambda e: (Decimal(e.start), -e.duration_us)):
            if Decimal(event.start) >= busy_until:
                busy_until = Decimal(event.start) + Decimal(repr(event.duration_us))
                yield event


def _outermost(events: Iterable[_Event]) -> Iterator[tuple[_Event, Kind]]:
    """Of the host's operators those that no other one called; copies where a mark says so."""
    chosen = list(events)
    marks: dict[tuple[Any, Any], list[tuple[Decimal, Decimal]]] = {}
    for event in chosen:
        if event.name == COPY_MARK:
            start = Decimal(event.start)
            end = start + Decimal(repr(event.duration_us))
            marks.setdefault(event.thread, []).append((start, end))
    for own in marks.values():
        own.sort()
    for event in _not_within(e for e in chosen if e.category in _OPERATORS):
        is_copy = _COPIES.search(event.name) and _is_in(event, marks.get(event.thread, []))
        yield event, "h2d" if is_copy else "compute"


def _is_in(event: _Event, stretches: list[tuple[Decimal, Decimal]]) -> bool:
    start = Decimal(event.start)
    number = bisect.bisect_right(stretches, (start, Decimal("Infinity"))) - 1
    return number >= 0 and start < stretches[number][1]
