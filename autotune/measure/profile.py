"""What ran on a device, when, and what it was: what every profiler's files are read into."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
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

COPIES: tuple[Kind, ...] = ("h2d", "d2h", "copy")
_WITHIN = [KINDS.index(kind) for kind in (*ON_DEVICE, "step")]
"""Of what a device's time is made."""

MAX_START_US = 10**17  # three thousand years: no clock is there
MAX_BLOCKS = 10**6  # no chip has so many cores
US = 1e-6

_TO = r"[\s_-]*(?:to|2|->|=>|→|到)[\s_-]*"
_HOST, _DEVICE = r"(?:host|cpu|主机)", r"(?:device|npu|gpu|设备)"
_CORES = re.compile(
    r"AI_?CORE|AI_?CPU|\bAI[CV]\b|AIVEC|AIV_SQE|AI_?VECTOR|MIX_AI[CV]|\bKERNEL_|FFTS_PLUS|\bDSA",
    re.IGNORECASE,
)
"""What a core or a task is called that computes, whatever its operator's name has in it."""

_COMMUNICATION = re.compile(r"hccl|hcom_|nccl|communication|lccl", re.IGNORECASE)
_WORDS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    # Inside the device it is memory traffic like any operator's.
    ("compute", re.compile(rf"DtoD|D2D|{_DEVICE}{_TO}{_DEVICE}|PtoP", re.IGNORECASE)),
    ("host", re.compile(rf"HtoH|H2H|{_HOST}{_TO}{_HOST}", re.IGNORECASE)),
    ("h2d", re.compile(rf"HtoD|H2D|{_HOST}{_TO}{_DEVICE}", re.IGNORECASE)),
    ("d2h", re.compile(rf"DtoH|D2H|{_DEVICE}{_TO}{_HOST}", re.IGNORECASE)),
    (
        "copy",
        re.compile(
            r"mem_?cpy|memory ?copy|(?<![a-z])(?:sdma|pcie_dma|async_?dma|ubdma)(?![a-z])",
            re.IGNORECASE,
        ),
    ),
    ("communication", _COMMUNICATION),
    (
        "wait",
        re.compile(
            r"(?:EVENT|NOTIFY|CAPTURE)[ _](?:RECORD|WAIT|RESET)|STREAM_(?:WAIT|SWITCH|ACTIVE)"
            r"|\bPLACE_?HOLDER|\bMODEL_(?:EXECUTE|MAINT|TASK_UPDATE|END)|\bPROFILING_"
            r"|\bLABEL_(?:SET|SWITCH|GOTO)|(?:WRITE|WAIT)_VALUE|\bNOP\b|\bTASK_FLIP|\bCOMMON_CMD"
            r"|\bUPDATE_ADDRESS|\bSQ_LOCK|\bCALLBACK_LAUNCH|(?:CREATE|DESTROY)_STREAM"
            r"|\bMAINTENANCE|\bEND_GRAPH|Synchronize",
            re.IGNORECASE,
        ),
    ),
)


def kind_of(words: str, *, core: str = "") -> Kind:
    """The kind of something that ran on the device, from its names.

    Args:
        core: The kind of core or task that it ran as, where that is told.
    """
    if _CORES.search(core):
        return "communication" if _COMMUNICATION.search(words) else "compute"
    said = f"{core} {words}"
    return next((kind for kind, pattern in _WORDS if pattern.search(said)), "compute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What ran, operation by operation, and tables that were summed up by the profiler.

    Attributes:
        start_s, duration_s: Of each operation, shape (operations,), from the first start on.
        kind: Index into `KINDS`. `label`: index into `labels`.
        blocks: Cores that each operation was spread over, 0 if not told.
        device_starts_s: Where each device's operations begin: they are laid one after the other.
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
    device_starts_s: Floats = field(default_factory=lambda: np.empty(0))
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

    Starts are kept whole, in picoseconds: a time since 1970 in microseconds with its fraction does
    not fit into a float. Devices are laid one after the other, so that shares of the time are means
    over them.
    """

    def __init__(self) -> None:
        self._starts_ps: list[int] = []
        self._durations: list[float] = []
        self._kinds: list[int] = []
        self._labels: list[int] = []
        self._blocks: list[int] = []
        self._devices: list[int] = []
        self._names: dict[str, int] = {}
        self._device_names: dict[tuple[str, str], int] = {}

    def add(
        self,
        start: str,
        duration_us: float,
        kind: Kind,
        label: str,
        *,
        blocks: int = 0,
        place: str = "",
        device: str = "",
        unit_us: float = 1.0,
    ) -> None:
        """Add one.

        Args:
            start: In units of `unit_us` microseconds, as it was written.
            place: What it is from, a file as a rule. `device`: there; what tells none is of all
                that the place has if the host did it, else of the first.
        Raises:
            ValueError: No clock tells such a start, no operation lasts so long.
        """
        start_ps = _picoseconds(start, unit_us)
        if not np.isfinite(duration_us) or duration_us < 0:
            raise ValueError(f"a duration of {duration_us:g} us")
        self._starts_ps.append(start_ps)
        self._durations.append(duration_us)
        self._kinds.append(KINDS.index(kind))
        self._labels.append(self._names.setdefault(label, len(self._names)))
        self._blocks.append(min(blocks, MAX_BLOCKS))
        key = (place, device)
        self._devices.append(self._device_names.setdefault(key, len(self._device_names)))

    def has(self, *kinds: Kind) -> bool:
        """True if something of these kinds was added."""
        return any(KINDS.index(kind) in self._kinds for kind in kinds)

    def take(self, other: Building, *kinds: Kind) -> None:
        """Add another's operations of these kinds, by the same clock, to the first device."""
        wanted, labels = {KINDS.index(kind) for kind in kinds}, list(other._names)
        for index, kind in enumerate(other._kinds):
            if kind in wanted:
                label = labels[other._labels[index]]
                self._starts_ps.append(other._starts_ps[index])
                self._durations.append(other._durations[index])
                self._kinds.append(kind)
                self._labels.append(self._names.setdefault(label, len(self._names)))
                self._blocks.append(other._blocks[index])
                self._devices.append(self._devices[0])

    def device_count(self, place: str) -> int:
        """How many devices a place has, those that compute; at least one."""
        own = {self._device_names[key] for key in self._device_names if key[0] == place}
        return max(len(own & set(self._computing())), 1)

    def _computing(self) -> list[int]:
        compute = KINDS.index("compute")
        found = (d for d, kind in zip(self._devices, self._kinds, strict=True) if kind == compute)
        return sorted(set(found))

    def profile(self, step_count: int | None = None, *, is_host: bool = False) -> Profile:
        """All that were added."""
        taken, devices = self._by_device()
        kinds = np.asarray(self._kinds, dtype=np.int64)[taken]
        starts, durations, begins = _one_after_the_other(
            self._starts_us()[taken],
            np.asarray(self._durations, dtype=np.float64)[taken],
            devices,
            np.isin(kinds, _WITHIN),
        )
        kept = np.isfinite(starts)
        taken = taken[kept]
        return Profile(
            start_s=starts[kept] * US,
            duration_s=durations[kept] * US,
            kind=kinds[kept],
            label=np.asarray(self._labels, dtype=np.int64)[taken],
            blocks=np.asarray(self._blocks, dtype=np.int64)[taken],
            labels=tuple(self._names),
            device_starts_s=begins * US,
            step_count=step_count,
            is_host=is_host,
        )

    def _starts_us(self) -> Floats:
        """Starts relative to the first of what a device's time is made of."""
        within = [
            s for s, kind in zip(self._starts_ps, self._kinds, strict=True) if kind in _WITHIN
        ]
        base = min(within or self._starts_ps, default=0)
        return np.asarray([(start - base) * 1e-6 for start in self._starts_ps], dtype=np.float64)

    def _by_device(self) -> tuple[Ints, Ints]:
        """Which operations count, some several times, and for which device each does.

        A device is one that computes. What the host did counts for each device of its place; what
        else tells no device that computes, such as communication, for the first of them.
        """
        devices = np.asarray(self._devices, dtype=np.int64)
        every = np.arange(devices.size)
        computing = self._computing()
        if len(computing) < 2:
            return every, np.zeros_like(devices)
        places = [place for place, _ in self._device_names]
        hosts = np.isin(
            np.asarray(self._kinds), [KINDS.index(kind) for kind in ("host", "step", "annotation")]
        )
        is_computing = np.isin(devices, computing)
        taken, owners = [every[is_computing]], [devices[is_computing]]
        for number in sorted(set(range(len(places))) - set(computing)):
            own = devices == number
            here = [d for d in computing if places[d] == places[number]] or computing[:1]
            for which, targets in ((own & hosts, here), (own & ~hosts, here[:1])):
                for device in targets:
                    taken.append(every[which])
                    owners.append(np.full(int(which.sum()), device))
        return np.concatenate(taken), np.concatenate(owners)


def _picoseconds(start: str, unit_us: float) -> int:
    try:
        start_us = Decimal(start.strip()) * Decimal(repr(unit_us))
    except InvalidOperation:
        raise ValueError(f"a start at {start[:40]!r}") from None
    if not abs(start_us) <= MAX_START_US:
        raise ValueError(f"a start at {start[:40]} us")
    return int(start_us * 10**6)


def _one_after_the_other(
    starts: Floats, durations: Floats, devices: Ints, is_within: np.ndarray[Any, Any]
) -> tuple[Floats, Floats, Floats]:
    """Starts and durations, each device's behind those of the one before, and where each begins.

    Args:
        is_within: Of which operations a device's time is made; of the others what lies outside of
            it is cut off, and their start is NaN if nothing is left.
    """
    numbers = np.unique(devices)
    if numbers.size < 2:
        return starts, durations, np.empty(0)
    moved, lengths = starts.copy(), durations.copy()
    end, begins = 0.0, []
    for device in numbers:
        own = devices == device
        inside = own & is_within
        first, last = starts[inside].min(), (starts + durations)[inside].max()
        low, high = np.maximum(starts[own], first), np.minimum((starts + durations)[own], last)
        moved[own] = np.where(low <= high, low - first + end, np.nan)
        lengths[own] = high - low
        begins.append(end)
        end += last - first
    return moved, lengths, np.asarray(begins)
