"""One worker of a crew: a process that runs trials on a device of its own, and who looks after it.

The process gets its task on its standard input, which stays open: when it closes, whoever started
the worker is gone, and the worker stops as if interrupted.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from autotune.apps.resolve import prepare, resolve
from autotune.apps.samples import SampleKeeper
from autotune.apps.store import study_dir
from autotune.apps.view import View
from autotune.core.errors import AutotuneError, UnavailableError
from autotune.core.lifetime import live_on
from autotune.devices import find_devices
from autotune.devices.reserve import WAIT_S, Reservation
from autotune.search.conditions import fingerprint_of
from autotune.search.study import Study
from autotune.search.watch import Watch
from autotune.search.worker import run_trials
from autotune.space.search_space import SearchSpace
from autotune.trial.canary import open_canary
from autotune.trial.group import group_spec
from autotune.trial.log import LogPipe
from autotune.trial.session import Launcher
from autotune.workloads import WORKLOADS

MAX_RESTARTS = 20  # of a worker that is killed again and again
POLL_S = 0.2
STOP_S = 15.0  # to end a trial in good order
ORPHAN_S = 3.0  # that a worker may take to stop once the tool is gone
MAX_SAID = 5  # lines of a worker that are passed on

_CODE = (
    "import sys; sys.path.append(sys.argv[1]); import autotune.core.lifetime as l; "
    "l.die_with_parent(int(sys.argv[2])); import autotune.apps.member as m; m.main()"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a worker is to do.

    Attributes:
        devices: Takes the first of these that is free. cores: Runs on these alone; (): on any.
        left_s: Of the budget of time, None: no limit.
        stop: Name of a Dask event that ends it; empty: it is told by other means.
    """

    space: SearchSpace
    studies_dir: Path
    devices: tuple[str, ...] = ()
    cores: tuple[int, ...] = ()
    left_s: float | None = None
    stop: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a worker ended.

    Attributes:
        reason: A `StopReason`; empty if it ended by an error, a class of `core.errors`.
        said: What it had to say.
    """

    reason: str = ""
    error: str = ""
    message: str = ""
    virtual_s: float = 0.0
    said: tuple[str, ...] = ()


def supervise(task: Task, should_stop: Callable[[], bool] | None = None) -> Ended:
    """Run a worker to its end, in a process of its own; again if that is killed.

    Args:
        should_stop: Asked all the time; None: the task names what to ask.
    """
    should_stop = should_stop or _stop_of(task)
    began_s, said = time.monotonic(), []
    for _ in range(1 + MAX_RESTARTS):
        left_s = task.left_s
        if left_s is not None:
            left_s = max(left_s - (time.monotonic() - began_s), 0.0)
        status, ended, log_tail = _run_once(replace(task, left_s=left_s), should_stop)
        where = task.devices[0] + (f", cores {_shown(task.cores)}" if task.cores else "")
        said += [f"worker on {where}: {line}" for line in log_tail.splitlines()[-MAX_SAID:]]
        if ended is not None:
            return replace(ended, said=tuple(said))
        if should_stop():
            return Ended(reason="interrupted", said=tuple(said))
        said.append(f"worker on {where}: {_end_text(status)}, and was started again")
    message = f"the worker on {where} ended {MAX_RESTARTS + 1} times by itself: {_end_text(status)}"
    return Ended(error=UnavailableError.__name__, message=message, said=tuple(said))


def _run_once(task: Task, should_stop: Callable[[], bool]) -> tuple[int, Ended | None, str]:
    """Exit status, what the worker told of its end if it could, and the last lines of its log."""
    log = LogPipe()
    root = str(Path(__file__).resolve().parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", _CODE, root, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log.write_fd,
        start_new_session=True,  # a terminal's Ctrl-C is the tool's to handle
    ) as process:
        os.close(log.write_fd)
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(pickle.dumps(task))
            process.stdin.flush()
        until_s: float | None = None
        while process.poll() is None:
            if until_s is None and should_stop():
                process.terminate()
                until_s = time.monotonic() + STOP_S
            elif until_s is not None and time.monotonic() > until_s:
                process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
        told = process.stdout.read()
    log.close()
    try:
        data = json.loads(told.splitlines()[-1])
        ended = Ended(**{**data, "said": ()})
    except (IndexError, ValueError, TypeError):
        return process.returncode, None, log.tail
    return process.returncode, ended, log.tail


def _stop_of(task: Task) -> Callable[[], bool]:
    if not task.stop:
        return lambda: False
    from distributed import Event, get_worker

    event = Event(task.stop)
    try:
        worker = get_worker()
    except ValueError:
        worker = None  # joblib runs it in the tool's own process
    key = None if worker is None else worker.get_current_task()

    def is_set() -> bool:
        if worker is not None:
            # The scheduler drops what nobody waits for any more: the tool is gone.
            known = worker.state.tasks.get(key)
            if known is None or known.state == "cancelled":
                return True
        try:
            return bool(event.is_set())
        except (OSError, TimeoutError):
            return False  # the scheduler is away: what is running goes on

    return is_set


def _end_text(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _shown(cores: tuple[int, ...]) -> str:
    return ", ".join(map(str, cores))


# --- the worker's process ----------------------------------------------------------------------


def main() -> None:
    """Entry of the worker's process: does its task, and tells how it ended as JSON."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        task: Task = pickle.load(sys.stdin.buffer)  # from the tool that has started this process
        threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
        live_on()  # from here on it ends in good order
        ended = work(task)
    except KeyboardInterrupt:
        ended = Ended(reason="interrupted")
    except AutotuneError as error:
        ended = Ended(error=type(error).__name__, message=str(error))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdout.write(json.dumps(asdict(ended)) + "\n")
    sys.stdout.flush()


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _end_with_parent() -> None:
    """Stop when the other end of the standard input is gone: in good order, if that is soon."""
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_S)
    os._exit(1)  # what holds it up may be the storage; whoever comes next tidies up


def work(task: Task) -> Ended:
    """Run trials of a study until there is nothing left to do.

    Raises:
        AutotuneError: It cannot go on. KeyboardInterrupt: It was stopped; the running trial is
            kept as interrupted.
    """
    if task.cores:
        os.sched_setaffinity(0, task.cores)
    with Reservation() as reserved:
        device = _take(task, reserved)
        resolved = resolve(replace(task.space, device=device))
        space, info = resolved.space, resolved.info
        prepare(resolved, View())
        with Launcher(reserved) as launcher:
            study = Study.open(
                space,
                study_dir(task.studies_dir, space.study),
                fingerprint=fingerprint_of(space, info),
            )
            watch = Watch(study, open_canary(space.workload, info, launcher))
            launcher.prepare(group_spec(space.baseline, space, info))
            reason = run_trials(
                study,
                space,
                info,
                launcher,
                on_result=SampleKeeper(study.directory).keep,
                watch=watch,
                time_s=task.left_s,
            )
            return Ended(reason=str(reason), virtual_s=launcher.virtual_s)


def _take(task: Task, reserved: Reservation) -> str:
    """The device that is now this worker's.

    Raises:
        UnavailableError: Others have all of them.
    """
    if not WORKLOADS[task.space.workload.kind].is_real:
        return task.devices[0]
    if task.cores:
        reserved.add([f"core:{core}" for core in task.cores])
        return task.devices[0]
    return take_free(task.devices, reserved)


def take_free(devices: tuple[str, ...], reserved: Reservation) -> str:
    """Reserve the first device that is free, of what these names stand for.

    Raises:
        UnavailableError: None of them becomes free within `reserve.WAIT_S`.
    """
    names = [info.name for device in devices for info in find_devices(device)]
    until_s = time.monotonic() + WAIT_S
    while True:
        last = time.monotonic() > until_s
        for name in names:
            try:
                reserved.add([name], wait_s=0.0)
            except UnavailableError as error:
                why = error
            else:
                return name
        if last:
            raise why
        time.sleep(POLL_S)
