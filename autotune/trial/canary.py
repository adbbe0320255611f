"""The canary: a fixed piece of work, done between trials, that tells how fast the machine is now.

What should be measured is the state of the machine and nothing of the study: the work is a kernel
in the tool's own process, which idles between trials. A session of the baseline kept open beside
the trials would hold memory and a device that a candidate needs, and one opened anew each time
costs as much as a trial. The kernel does what models on these cores live on, arithmetic in the
cache and traffic beyond it, and its *CPU time* is taken: clocks that fall, a busy sibling thread,
a neighbour on the caches make each piece take longer, while waiting for a core, which the run queue
already tells, does not count. It does not see an accelerator's clocks; those are telemetry's.

A reading takes some ten milliseconds, about one per cent of a trial of two seconds.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from autotune.core.records import WorkloadSpec
from autotune.devices.base import DeviceInfo
from autotune.trial.session import Launcher
from autotune.workloads import WORKLOADS
from autotune.workloads.disturbance import Disturbance

MAX_CORES = 4  # looked at, spread over those that trials may use
REPEATS = 9  # of the work, per core: the median tells
DISCARDED = 3  # while an idle core's clock rises and its caches fill
CACHED_ELEMENTS = 8192  # 32 KiB of float32: the first cache
PASSES = 40
STREAMED_ELEMENTS = 4 * 2**20  # 16 MiB, read and written


class Canary(Protocol):
    """Something that tells how long the fixed work takes now."""

    def read(self) -> float:
        """CPU seconds of the work, of the slowest core that was looked at."""
        ...


class HostCanary:
    """The kernel on real cores.

    Args:
        cores: Those that trials may use.
    """

    def __init__(self, cores: Sequence[int]) -> None:
        step = max(1, len(cores) // MAX_CORES)
        self._cores = tuple(cores[::step][:MAX_CORES])
        self._cached = np.ones(CACHED_ELEMENTS, dtype=np.float32)
        self._streamed = np.ones(STREAMED_ELEMENTS, dtype=np.float32)

    def read(self) -> float:
        return max(self._read(core) for core in self._cores) if self._cores else self._read(None)

    def _read(self, core: int | None) -> float:
        with _on(core):
            times_s = [self._work_s() for _ in range(DISCARDED + REPEATS)]
        return statistics.median(times_s[DISCARDED:])

    def _work_s(self) -> float:
        began_s = time.thread_time()
        for _ in range(PASSES):
            np.sqrt(self._cached, out=self._cached)
            np.multiply(self._cached, 1.0001, out=self._cached)
        np.add(self._streamed, 1.0, out=self._streamed)
        return time.thread_time() - began_s


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredCanary:
    """What the kernel would say of a machine whose disturbance is declared."""

    disturbance: Disturbance
    launcher: Launcher

    def read(self) -> float:
        return 1e-3 / self.disturbance.speed(self.launcher.virtual_s)


def open_canary(workload: WorkloadSpec, info: DeviceInfo, launcher: Launcher) -> Canary | None:
    """The canary of a study; None where time is not real and no disturbance is declared."""
    if WORKLOADS[workload.kind].is_real:
        allowed = os.sched_getaffinity(0)
        return HostCanary([core for node in info.cores for core in node if core in allowed])
    disturbance = Disturbance.of(workload.options)
    if disturbance is None:
        return None
    return DeclaredCanary(disturbance=disturbance, launcher=launcher)


@contextlib.contextmanager
def _on(core: int | None) -> Iterator[None]:
    """Bind this thread to a core for a moment; stay where it is if that is not allowed."""
    before = os.sched_getaffinity(0)
    try:
        with contextlib.suppress(OSError):
            if core is not None:
                os.sched_setaffinity(0, {core})
        yield
    finally:
        os.sched_setaffinity(0, before)
