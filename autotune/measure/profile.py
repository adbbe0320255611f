"""What ran on a device, when, and what it was: what every profiler's files are read into."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from autotune.core.records import Floats, Ints

Kind = Literal[
    "compute", "h2d", "d2h", "copy", "communication", "host", "step", "wait", "annotation"
]
KINDS: tuple[Kind, ...] = (
    "compute", "h2d", "d2h", "copy", "communication", "host", "step", "wait", "annotation",
)  # fmt: skip
"""`copy`: its direction is not told. `host`: the host launches or works for the framework. `wait`:
the device waits for an event. `annotation`: stretches with a name, in which anything may happen."""

ON_DEVICE: tuple[Kind, ...] = ("compute", "h2d", "d2h", "copy", "communication")

MAX_START_US = 10**17  # three thousand years: no clock is there
MAX_BLOCKS = 10**6  # no chip has so many cores
US = 1e-6

_TO = r"[\s_-]*(?:to|2|->|=>|→|到)[\s_-]*"
_HOST, _DEVICE = r"(?:host|主机)", r"(?:device|npu|gpu|设备)"
_WORDS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    # Inside the device it is memory traffic like any operator's.
    ("compute", re.compile(rf"DtoD|D2D|{_DEVICE}{_TO}{_DEVICE}|PtoP", re.IGNORECASE)),
    ("h2d", re.compile(rf"HtoD|H2D|{_HOST}{_TO}{_DEVICE}|MEMCPY_HOST", re.IGNORECASE)),
    ("d2h", re.compile(rf"DtoH|D2H|{_DEVICE}{_TO}{_HOST}", re.IGNORECASE)),
    ("copy", re.compile(r"mem_?cpy|memory ?copy|\bsdma\b", re.IGNORECASE)),
    ("communication", re.compile(r"hccl|hcom_|nccl|communication|lccl", re.IGNORECASE)),
    (
        "wait",
        re.compile(
            r"\b(EVENT|NOTIFY)[ _](RECORD|WAIT|RESET)|\bCAPTURE[ _](RECORD|WAIT)|\bPLACE_?HOLDER"
            r"|\bMODEL_(EXECUTE|MAINTAIN?A?NCE)|\bPROFILING_(ENABLE|DISABLE)|\bLABEL_SET",
            re.IGNORECASE,
        ),
    ),
)


def kind_of(words: str) -> Kind:
    """The kind of something that ran on the device, from its names."""
    return next((kind for kind, pattern in _WORDS if pattern.search(words)), "compute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What ran, operation by operation, and tables that were summed up by the profiler.

    Attributes:
        start_s, duration_s: Of each operation, shape (operations,), from the first start on.
        kind: Index into `KINDS`. `label`: index into `labels`.
        blocks: Cores that each operation was spread over, 0 if not told.
        step_count: Steps (calls) the profiler marked, None if it did not.
        is_host: The device is the host: its operations are the framework's on the CPU.
        totals_s: "computing", "free", "communication" as the profiler summed them up, where only
            that is there. `type_times_s`: seconds by type of operator.
        files: What was read. `unread`: what was not understood, and why.
    """

    start_s: Floats = field(default_factory=lambda: np.empty(0))
    duration_s: Floats = field(default_factory=lambda: np.empty(0))
    kind: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    label: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    blocks: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    labels: tuple[str, ...] = ()
    step_count: int | None = None
    is_host: bool = False
    totals_s: Mapping[str, float] = field(default_factory=dict)
    type_times_s: Mapping[str, float] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    def of_kind(self, *kinds: Kind) -> np.ndarray[Any, Any]:
        """Which operations are of these kinds, shape (operations,)."""
        return np.isin(self.kind, [KINDS.index(kind) for kind in kinds])


class Building:
    """Operations as they are read.

    Starts are kept relative to the first, in full precision: a time since 1970 in microseconds with
    its fraction does not fit into a float, so its whole part is taken as an integer. Devices are
    laid one after the other, so that shares of the time are means over them.
    """

    def __init__(self) -> None:
        self._base: int | None = None
        self._starts: list[float] = []
        self._durations: list[float] = []
        self._kinds: list[int] = []
        self._labels: list[int] = []
        self._blocks: list[int] = []
        self._devices: list[int] = []
        self._names: dict[str, int] = {}
        self._device_names: dict[str, int] = {}

    def add(
        self,
        start: str,
        duration_us: float,
        kind: Kind,
        label: str,
        *,
        blocks: int = 0,
        device: str = "",
        unit_us: float = 1.0,
    ) -> None:
        """Add one.

        Args:
            start: In units of `unit_us` microseconds, as it was written.
        Raises:
            ValueError: No clock tells such a start, no operation lasts so long.
        """
        start_us = self._relative_us(start, unit_us)
        if not np.isfinite(duration_us) or duration_us < 0:
            raise ValueError(f"a duration of {duration_us:g} us")
        self._starts.append(start_us)
        self._durations.append(duration_us)
        self._kinds.append(KINDS.index(kind))
        self._labels.append(self._names.setdefault(label, len(self._names)))
        self._blocks.append(min(blocks, MAX_BLOCKS))
        self._devices.append(self._device_names.setdefault(device, len(self._device_names)))

    def _relative_us(self, start: str, unit_us: float) -> float:
        whole, point, fraction = start.strip().partition(".")
        if not whole.isdecimal() or not (fraction.isdecimal() or not fraction):
            whole, point, fraction = str(int(float(start))), "", ""
        if abs(int(whole)) * min(unit_us, 1.0) > MAX_START_US:
            raise ValueError(f"a start at {start} us")
        if self._base is None:
            self._base = int(whole)
        offset = int(whole) - self._base + (float(f"0.{fraction}") if point else 0.0)
        return offset * unit_us

    def profile(self, step_count: int | None = None, *, is_host: bool = False) -> Profile:
        """All that were added."""
        starts = np.asarray(self._starts, dtype=np.float64)
        durations = np.asarray(self._durations, dtype=np.float64)
        devices = np.asarray(self._devices, dtype=np.int64)
        if len(self._device_names.keys() - {""}) > 1:
            # What tells no device, such as communication, counts to the first one that is told.
            unknown = self._device_names.get("", -1)
            devices = np.where(devices == unknown, int(unknown == 0), devices)
            starts = _one_after_the_other(starts, durations, devices)
        starts = starts - (starts.min() if starts.size else 0.0)
        return Profile(
            start_s=starts * US,
            duration_s=durations * US,
            kind=np.asarray(self._kinds, dtype=np.int64),
            label=np.asarray(self._labels, dtype=np.int64),
            blocks=np.asarray(self._blocks, dtype=np.int64),
            labels=tuple(self._names),
            step_count=step_count,
            is_host=is_host,
        )


def _one_after_the_other(starts: Floats, durations: Floats, devices: Ints) -> Floats:
    """Starts, each device's after the end of the one before."""
    moved: Floats = starts.copy()
    end = 0.0
    for device in np.unique(devices):
        own = devices == device
        moved[own] += end - starts[own].min()
        end = float((moved[own] + durations[own]).max())
    return moved
