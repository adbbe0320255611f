"""Traces in Chrome's format: torch.profiler's on CPU and GPU, torch_npu's and msprof's."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.measure.profile import Building, Kind, Profile, kind_of

MAX_EVENTS = 5_000_000
MAX_TRACE_BYTES = 2**30  # unpacked
COPY_MARK = "autotune: copies to the device"
"""Name of the stretch in which the harness copies inputs, where the device's own trace has none."""
STEP_MARK = "autotune: step "
"""Before the number of each run of the model."""

_KERNELS = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
_OPERATORS = {"cpu_op", "operator"}
_LAUNCHES = {"cuda_runtime", "cuda_driver", "runtime", "dequeue", "enqueue"}
_DEVICE_PROCESS = re.compile(r"Ascend Hardware", re.IGNORECASE)
_HOST_PROCESS = re.compile(r"^CANN\b", re.IGNORECASE)
_STEP_NAME = re.compile(rf"ProfilerStep[#\s*]*\d+|^step[ _#]*\d+$|^{STEP_MARK}\d+$", re.IGNORECASE)
_DIRECTION = re.compile(r"direction|copy_?kind", re.IGNORECASE)
_COPIES = re.compile(r"aten::(copy_|_foreach_copy_)$")


@dataclass(slots=True)
class Trace:
    """Events as they are read; slices of one trace go into the same."""

    building: Building = field(default_factory=Building)
    steps: set[str] = field(default_factory=set)
    operators: list[_Event] = field(default_factory=list)
    has_device: bool = False

    def profile(self) -> Profile:
        """All that was read. Without a device in it, the host's operators are what ran."""
        if not self.has_device:
            for event, kind in _outermost(self.operators):
                self.building.add(
                    event.start, event.duration_us, kind, event.name, device=event.place
                )
        return self.building.profile(len(self.steps) or None, is_host=not self.has_device)


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
    """A JSON file's content, packed or not.

    Raises:
        ValueError: It is too large or no JSON.
    """
    with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as stream:
        data = stream.read(MAX_TRACE_BYTES + 1)
    if len(data) > MAX_TRACE_BYTES:
        raise ValueError(f"more than {MAX_TRACE_BYTES} bytes of JSON")
    return json.loads(data.decode("utf-8-sig", "replace"))


def read_trace(content: Any, trace: Trace, *, place: str = "") -> None:
    """Add a trace's events.

    Args:
        place: Where it is from, if what it holds is apart from other traces of this name.
    Raises:
        ValueError, TypeError, AttributeError: They are not what a trace has.
    """
    events = _events(content)
    processes = _process_names(events)
    for event in _complete(events[:MAX_EVENTS]):
        name = str(event.get("name", ""))
        kind = _kind(event, name, processes.get(event.get("pid"), ""))
        start, duration_us = str(event.get("ts")), float(event["dur"])
        if kind == "step":
            trace.steps.add(f"{place} {name}")
        if kind in ("host", "annotation"):
            thread = (f"{place} {event.get('pid')}", event.get("tid"))
            category = str(event.get("cat", "")).lower()
            trace.operators.append(
                _Event(
                    name=name,
                    category=category,
                    thread=thread,
                    start=start,
                    duration_us=duration_us,
                    place=place,
                )
            )
        elif kind != "step":
            trace.has_device = True
        trace.building.add(start, duration_us, kind, name, device=place)


def _events(content: Any) -> list[Any]:
    found = content.get("traceEvents") if isinstance(content, dict) else content
    return found if isinstance(found, list) else []


def _process_names(events: Iterable[Any]) -> dict[Any, str]:
    return {
        event.get("pid"): str(event.get("args", {}).get("name", ""))
        for event in events
        if isinstance(event, dict) and event.get("name") == "process_name"
    }


def _complete(events: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    """Events with a duration; a begin and its end are made one."""
    open_: dict[tuple[Any, Any], list[Mapping[str, Any]]] = {}
    for event in events:
        if not isinstance(event, dict):
            continue
        phase, thread = event.get("ph"), (event.get("pid"), event.get("tid"))
        if phase == "X" and "dur" in event:
            yield event
        elif phase == "B":
            open_.setdefault(thread, []).append(event)
        elif phase == "E" and open_.get(thread):
            began = open_[thread].pop()
            yield {**began, "dur": float(event["ts"]) - float(began["ts"])}


def _kind(event: Mapping[str, Any], name: str, process: str) -> Kind:
    if _STEP_NAME.search(name):
        return "step"
    category = str(event.get("cat", "")).lower()
    args = event.get("args")
    task = str(args.get("Task Type", "")) if isinstance(args, Mapping) else ""
    if category in _KERNELS or task or _DEVICE_PROCESS.search(process):
        told = args.items() if isinstance(args, Mapping) else ()
        ways = " ".join(str(value) for key, value in told if _DIRECTION.search(str(key)))
        return kind_of(f"{task} {name} {ways}")
    if category in _OPERATORS | _LAUNCHES or _HOST_PROCESS.search(process):
        return "host"
    return "annotation"


def _outermost(events: Iterable[_Event]) -> Iterator[tuple[_Event, Kind]]:
    """Of the host's operators those that no other one called; copies where a mark says so."""
    by_thread: dict[tuple[Any, Any], list[_Event]] = {}
    for event in events:
        if event.category in _OPERATORS or event.name == COPY_MARK:
            by_thread.setdefault(event.thread, []).append(event)
    for own in by_thread.values():
        own.sort(key=lambda e: (float(e.start), -e.duration_us))
        busy_until = copying_until = float("-inf")
        for event in own:
            start_us = float(event.start)
            if event.name == COPY_MARK:
                copying_until = start_us + event.duration_us
            elif start_us >= busy_until:
                busy_until = start_us + event.duration_us
                is_copy = start_us < copying_until and _COPIES.search(event.name)
                yield event, "h2d" if is_copy else "compute"
