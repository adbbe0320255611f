"""The CPU: instances are bound to cores, copies go into plain host memory."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from autotune.core.errors import TrialCrashed
from autotune.core.records import Config, InputSpec
from autotune.core.text import describe
from autotune.devices import topology
from autotune.devices.base import Device, DeviceInfo, Discovery, Mark, Seat, Staging
from autotune.devices.staging import TorchStaging
from autotune.devices.torch_profile import torch_trace

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""Whether torch loads a vendor's plug-in by itself; vendors' images set it, and it may fail."""

PINNED_ENVIRONMENT: dict[str, str] = {
    # glibc moves these thresholds by itself, which makes a model fault its memory in anew at
    # each call or not, by chance. 32 MiB is the highest mmap threshold that glibc accepts.
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
    # OpenMP threads that wait by spinning take the cores of whatever else runs: two instances
    # on the same two cores then come to a standstill. Sleeping costs an undisturbed
    # two-thread instance some 10 %.
    "OMP_WAIT_POLICY": "PASSIVE",
    AUTOLOAD: "0",
    "LC_NUMERIC": "C",
}
"""What a child on the CPU starts with unless the user sets it otherwise."""

CORES_RULE = "cores_per_instance == 'all' or instance_count * cores_per_instance <= core_count"
"""Cores are bound, so there must be enough of them; instances on "all" cores share them."""

OUT_OF_MEMORY = re.compile(
    r"DefaultCPUAllocator|(?:not enough|insufficient) memory|cannot allocate memory|MemoryError"
    r"|out[ _]?of[ _]?(?:host[ _]|device[ _])?memory|bad_alloc|bad allocation|BFC ?Arena"
    r"|(?:failed|unable) to allocate(?! (?:an? )?(?:address|port))|_ALLOC_FAILED|\bEL0004\b",
    re.IGNORECASE,
)
"""How libraries and runtimes say that an allocation failed, whichever memory it was of."""


class CpuKind:
    """The host's own cores."""

    collectives = "gloo"
    is_exclusive = False

    def __init__(self, root: Path = topology.ROOT) -> None:
        self._root = root

    def discover(self) -> Discovery:
        """The cores this process may use, as one device."""
        found = topology.read_topology(self._root)
        count = found.core_count
        text = f"{count} core{'s' if count > 1 else ''} in {_nodes(len(found.cores))}"
        info = DeviceInfo(
            name="cpu",
            kind="cpu",
            description="; ".join([text, *found.notes]),
            core_count=count,
            cores=found.cores,
            memory_total_bytes=found.memory_total_bytes,
            facts={"core_count": count},
            core_ladder=_core_ladder(count),
            rules=(CORES_RULE,),
            versions={"cpu": _cpu_model(self._root), "kernel": platform.release()},
        )
        return Discovery(kind="cpu", devices=(info,))

    def assign_cores(self, config: Config, info: DeviceInfo) -> tuple[tuple[int, ...], ...]:
        """Consecutive cores per instance; "all" gives each instance the whole set.

        Raises:
            UsageError: The instances need more cores than there are.
        """
        return topology.assign_cores(info.cores, config.instance_count, config.cores_per_instance)

    def environment(self, config: Config, info: DeviceInfo) -> dict[str, str]:
        """The pinned settings; what the user's shell or the configuration sets wins."""
        return effective_environment(config, os.environ)

    def framework_device(self, name: str) -> str:
        """Always "cpu"."""
        return "cpu"

    def open(self, name: str, seat: Seat | None = None) -> Device:
        """The child's side."""
        return CpuDevice()


def effective_environment(config: Config, outside: Mapping[str, str]) -> dict[str, str]:
    """The pinned variables as they will hold in a child, and those the configuration sets.

    Args:
        outside: The environment the tool itself was started with.
    """
    recorded = {*PINNED_ENVIRONMENT, "GOMP_SPINCOUNT"} - {AUTOLOAD}
    users = {name: outside[name] for name in recorded if name in outside} | config.environment()
    pinned = dict(PINNED_ENVIRONMENT)
    if "GOMP_SPINCOUNT" in users:
        del pinned["OMP_WAIT_POLICY"]  # the user has set the same thing in the other way
    return {**pinned, **users}


def is_out_of_memory(error: BaseException) -> bool:
    """True for a failed allocation of host memory, whichever library made it."""
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, Exception) and OUT_OF_MEMORY.search(describe(error)) is not None


class CpuDevice:
    """One instance on its cores.

    Bound from a process's main thread, the whole process is bound; bound from another thread,
    which is then an instance of its own, only that thread and those it starts.
    """

    def __init__(self) -> None:
        self._was_bound = False

    def bind(self, cores: tuple[int, ...]) -> None:
        """Bind to `cores`, and the framework's threads with it; call it again after foreign code.

        Raises:
            TrialCrashed: The system does not let this process have these cores.
        """
        is_process = threading.current_thread() is threading.main_thread()
        for task in _tasks() if is_process else [threading.get_native_id()]:
            try:
                os.sched_setaffinity(task, cores)
            except ProcessLookupError:
                continue  # a thread that has ended meanwhile
            except OSError as error:
                raise TrialCrashed(f"cannot bind to cores {list(cores)}: {error}") from error
        bound = os.sched_getaffinity(0)
        if bound != set(cores):
            raise TrialCrashed(f"asked for cores {list(cores)}, but got {sorted(bound)}")
        self._limit_threads(len(cores))
        self._was_bound = True

    def _limit_threads(self, count: int) -> None:
        torch = sys.modules.get("torch")
        if torch is None:
            return  # loaded later, it takes its thread count from the affinity mask
        if self._was_bound and torch.get_num_interop_threads() != 1:
            # Once per process, and the model's code may want to: it goes first.
            with contextlib.suppress(RuntimeError):
                torch.set_num_interop_threads(1)
        torch.set_num_threads(count)

    def thread_count(self) -> int | None:
        """Threads torch computes with now, None without torch."""
        torch = sys.modules.get("torch")
        return None if torch is None else int(torch.get_num_threads())

    def stage(
        self, inputs: Sequence[InputSpec], requests: Sequence[Sequence[Any]], config: Config
    ) -> Staging:
        """Copies between plain host buffers; memory is not pinned, which needs an accelerator."""
        return TorchStaging(inputs, requests, config, device="cpu")

    def synchronize(self) -> None:
        """CPU work is done when its call returns."""

    def reset_memory_peak(self) -> None:
        """Let the kernel's high-water mark start again from the present size."""
        # 5: reset the peak resident size of this process (Linux, proc_pid_clear_refs).
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    def memory_peak_bytes(self) -> int | None:
        """Peak of the process's private memory since the reset.

        The private memory of now, plus what has been given back since the peak of the resident
        size. Pages still shared with the process it was forked from do not count; those it has
        written to since do. Memory given back is taken to have been private.
        """
        private = sum(_kilobytes("/proc/self/smaps_rollup", "Private_Clean", "Private_Dirty"))
        peak, now = _kilobytes("/proc/self/status", "VmHWM", "VmRSS")
        return (private + max(0, peak - now)) * 1024

    def is_out_of_memory(self, error: BaseException) -> bool:
        """True for a failed allocation, whichever library made it."""
        return is_out_of_memory(error)

    def explain(self, error: BaseException) -> str:
        """Errors speak for themselves."""
        return ""

    def facts(self) -> Mapping[str, str]:
        """Nothing beyond its cores, which the group records."""
        return {}

    def profile(self, folder: Path) -> AbstractContextManager[Mark] | None:
        """By torch's own profiler, where torch is what computes."""
        return torch_trace(folder, "cpu") if "torch" in sys.modules else None

    def wait_for_memory(self, limit_s: float) -> str:
        """The system takes memory back when a process ends."""
        return ""

    def close(self) -> None:
        """Nothing is held."""


def _tasks() -> list[int]:
    """Thread ids of this process."""
    return [int(task.name) for task in Path("/proc/self/task").iterdir()]


def _kilobytes(path: str, *names: str) -> list[int]:
    """Fields of a /proc file whose lines read "Name:  123 kB"."""
    fields = {}
    for line in Path(path).read_text(encoding="ascii", errors="replace").splitlines():
        name, _, rest = line.partition(":")
        if name in names:
            fields[name] = int(rest.split()[0])
    return [fields[name] for name in names]


def _core_ladder(count: int) -> tuple[int, ...]:
    """1, 2, 4, ... and all of them."""
    powers = [2**i for i in range(count.bit_length()) if 2**i < count]
    return (*powers, count)


def _nodes(count: int) -> str:
    return "1 NUMA node" if count == 1 else f"{count} NUMA nodes"


def _cpu_model(root: Path) -> str:
    """The processor's name as the kernel prints it, else the architecture."""
    try:
        text = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.machine()
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.machine()
