"""Several workers on one study: one process per device, on this machine or, by Dask, on others.

The tool itself measures nothing while they search. A worker's process has devices, or CPU cores, of
its own; it is started again when it is killed, and ends when the tool does.
"""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.apps.member import Ended, Task, supervise
from autotune.core import errors
from autotune.core.errors import AutotuneError, UnavailableError, UsageError
from autotune.core.records import TrialRecord
from autotune.devices import find_devices
from autotune.devices.base import DeviceInfo
from autotune.devices.reserve import Reservation
from autotune.devices.topology import assign_cores
from autotune.measure.noise import MIN_CANARY_RATIO
from autotune.search.study import StopReason
from autotune.space.search_space import SearchSpace
from autotune.workloads import WORKLOADS

MAX_WORKERS = 256
DEVICES = "device_count"
LOOK_S = 1.0  # between two looks at what the workers have finished
STOP_WAIT_S = 30.0
NEEDED_FOR_NOTE = 5  # readings of the canary


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a worker runs.

    Attributes:
        devices: It takes the first of these that is free. cores: Its own, of a CPU; (): any.
    """

    devices: tuple[str, ...]
    cores: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """How the trials of a study are shared out.

    Attributes:
        places: One per worker.
        dask: A scheduler's address, or a `distributed.Client`; None: all on this machine.
    """

    places: tuple[Place, ...]
    dask: Any = None

    @property
    def cores(self) -> tuple[int, ...]:
        """The cores of one worker, on which the proof is measured too; (): any."""
        return self.places[0].cores

    def search(
        self, task: Task, *, look: Callable[[], None], say: Callable[[str], None]
    ) -> tuple[StopReason, float]:
        """Let all workers run trials until there is nothing left to do.

        Args:
            task: What each is to do; devices and cores are filled in.
            look: Called every now and then meanwhile.
            say: Told of what the workers had to say.
        Returns:
            Why they stopped, and the virtual seconds of the one that had most.
        Raises:
            AutotuneError: A worker cannot go on. KeyboardInterrupt: After all have stopped.
        """
        tasks = [replace(task, devices=p.devices, cores=p.cores) for p in self.places]
        running = _by_dask(tasks, self.dask, say) if self.dask else _here(tasks)
        ended = _watched(running, look)
        for text in dict.fromkeys(line for one in ended for line in one.said):
            say(text)
        for one in ended:
            if one.error:
                kind: type[AutotuneError] = getattr(errors, one.error)
                raise kind(one.message)
        return _reason(ended), max(one.virtual_s for one in ended)


def make_crew(space: SearchSpace, count: int, dask: Any = None) -> Crew:
    """Find places for so many workers.

    Raises:
        UsageError: There are not so many devices, or cores.
        UnavailableError: There are, but others measure on them; or Dask is not installed.
    """
    if not 1 <= count <= MAX_WORKERS:
        raise UsageError(f"--workers {count}: from 1 to {MAX_WORKERS}")
    most = max((int(c) for p in space.params if p.name == DEVICES for c in p.choices), default=1)
    if most > 1:
        raise UsageError(f"--workers {count}: each has one device, but {DEVICES} goes up to {most}")
    if space.device == "auto" and not WORKLOADS[space.workload.kind].is_real:
        return Crew(places=(Place(devices=("simulated",)),) * count, dask=dask)
    infos = find_devices(space.device)
    if dask:
        _check_dask(dask)
        names = tuple(info.name for info in infos) if ":" in space.device else (infos[0].kind,)
        return Crew(places=(Place(devices=names),) * count, dask=dask)
    if infos[0].kind == "cpu":
        return Crew(places=_cpu_places(infos[0], count))
    return Crew(places=_device_places(infos, count, by_index=":" in space.device))


@contextlib.contextmanager
def bound(cores: Sequence[int]) -> Iterator[None]:
    """Stay on some cores; () stands for those of now."""
    before = os.sched_getaffinity(0)
    try:
        if cores:
            os.sched_setaffinity(0, cores)
        yield
    finally:
        os.sched_setaffinity(0, before)


def core_names(cores: Sequence[int]) -> tuple[str, ...]:
    """What a reservation calls these cores."""
    return tuple(f"core:{core}" for core in cores)


def interference(records: Sequence[TrialRecord], count: int) -> str:
    """A word about how much the workers of one machine slow each other down; empty if they don't.

    By the canary, whose reference was taken before they began.
    """
    measured = [r.measurement for r in records if r.measurement is not None]
    ratios = [m.canary_ratio for m in measured if m.canary_ratio is not None]
    if count < 2 or len(ratios) < NEEDED_FOR_NOTE:
        return ""
    usual = statistics.median(ratios)
    if usual >= MIN_CANARY_RATIO:
        return ""
    return (
        f"the {count} workers disturb each other: a core did its work at {100 * usual:.0f} % "
        f"of the speed that it has alone (median of {len(ratios)} trials); the proof is measured "
        "alone, but a search that can be relied on has fewer workers"
    )


# --- places ------------------------------------------------------------------------------------


def _cpu_places(info: DeviceInfo, count: int) -> tuple[Place, ...]:
    each = info.core_count // count
    if not each:
        raise UsageError(
            f"--workers {count}: each has cores of its own, and of {info.name} there are "
            f"{info.core_count}"
        )
    slices = assign_cores(info.cores, count, each)
    with Reservation() as free:  # the workers take them for good; here it is said at once
        free.add(core_names([core for cores in slices for core in cores]), wait_s=0.0)
    return tuple(Place(devices=(info.name,), cores=cores) for cores in slices)


def _device_places(infos: Sequence[DeviceInfo], count: int, *, by_index: bool) -> tuple[Place, ...]:
    peers = () if by_index else infos[0].peers
    names = list(dict.fromkeys(info.name for info in (*infos, *peers)))
    if count > len(names):
        raise UsageError(
            f"--workers {count}: one per device, and there are {len(names)}: {', '.join(names)}"
        )
    free, taken = [], []
    for name in names:
        with Reservation() as reserved:
            try:
                reserved.add([name], wait_s=0.0)
                free.append(name)
            except UnavailableError as error:
                taken.append(str(error).partition(";")[0])
        if len(free) == count:
            return tuple(Place(devices=(name,)) for name in free)
    raise UnavailableError(
        f"--workers {count}: {len(free)} of {len(names)} devices are free; {'; '.join(taken)}"
    )


# --- running them ------------------------------------------------------------------------------


class _Running:
    """Workers that run in a thread's keeping.

    Args:
        parallel: Runs them all. stop: Makes them end.
    """

    def __init__(self, parallel: Callable[[], list[Ended]], stop: Callable[[], None]) -> None:
        self._parallel, self.stop = parallel, stop
        self.ended: list[Ended] = []
        self.failure: BaseException | None = None
        # A thread whose join() was interrupted passes for ended in some versions of Python.
        self.done = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="crew", daemon=True).start()

    def _run(self) -> None:
        try:
            self.ended = self._parallel()
        except BaseException as error:
            self.failure = error
        finally:
            self.done.set()


def _watched(running: _Running, look: Callable[[], None]) -> list[Ended]:
    running.start()
    try:
        while not running.done.wait(LOOK_S):
            look()
    finally:
        if not running.done.is_set():  # an interruption, or an error of the look
            running.stop()
            running.done.wait(STOP_WAIT_S)
    if running.failure is not None:
        raise running.failure
    return running.ended


def _here(tasks: Sequence[Task]) -> _Running:
    from joblib import Parallel, delayed

    stop = threading.Event()

    def parallel() -> list[Ended]:
        # A thread per worker, which only waits for the worker's process.
        many = Parallel(n_jobs=len(tasks), backend="threading", batch_size=1, pre_dispatch="all")
        return list(many(delayed(supervise)(task, stop.is_set) for task in tasks))

    return _Running(parallel, stop.set)


def _by_dask(tasks: Sequence[Task], dask: Any, say: Callable[[str], None]) -> _Running:
    from distributed import CancelledError, Event, KilledWorker
    from joblib import Parallel, delayed, parallel_config

    name = f"autotune stop {uuid.uuid4().hex}"
    client = _client(dask)
    stop = Event(name, client=client)
    room = sum(client.nthreads().values())
    if room < len(tasks):
        say(f"Dask has room for {room} of {len(tasks)} workers; the others wait for more")

    def parallel() -> list[Ended]:
        ours = contextlib.nullcontext() if client is dask else contextlib.closing(client)
        with ours, client.as_current(), parallel_config(backend="dask", n_jobs=len(tasks)):
            many = Parallel(batch_size=1, pre_dispatch="all")
            stoppable = [replace(task, stop=name) for task in tasks]
            try:
                if room == 1:  # joblib would run it here
                    return list(client.gather(client.map(supervise, stoppable, pure=False)))
                return list(many(delayed(supervise)(task) for task in stoppable))
            except (OSError, TimeoutError, CancelledError, KilledWorker) as error:
                text = next(iter(str(error).splitlines()), "") or type(error).__name__
                raise UnavailableError(f"--dask: its workers are gone ({text})") from None

    return _Running(parallel, stop.set)


def _client(dask: Any) -> Any:
    from distributed import Client

    if isinstance(dask, Client):
        return dask
    try:
        return Client(dask, timeout=10, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise UnavailableError(f"--dask {dask}: no scheduler there ({error})") from None


def _check_dask(dask: Any) -> None:
    try:
        import distributed  # noqa: F401
    except ImportError:
        raise UnavailableError(
            "--dask needs the package distributed: pip install 'autotune-npu[dask]'"
        ) from None
    if isinstance(dask, str) and not re.fullmatch(r"(\w+://)?[^/\s]+:\d+", dask):
        raise UsageError(f"--dask {dask!r}: write the scheduler's address, as tcp://host:8786")


def _reason(ended: Sequence[Ended]) -> StopReason:
    """Why the crew stopped: what kept any of them from going on, else what all came to."""
    reasons = [StopReason(one.reason) for one in ended]
    order = (StopReason.CRASHES, StopReason.INTERRUPTED, StopReason.TIME)
    return next((reason for reason in order if reason in reasons), reasons[0])
