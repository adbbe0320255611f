"""The zygote: a process that has the framework imported, so that a trial starts in milliseconds.

It has imported modules and nothing more: no model is built in it, nothing is computed and no
device touched, since a child forked from a process that ran OpenMP hangs. It forks the processes
of a group, adopts whatever they leave behind, and dies with the tool: when the tool's end of the
socket closes it kills all its descendants. Each child in turn is killed by the kernel if the
zygote dies.

There is one zygote per distinct environment, because libraries read OMP_*, MALLOC_* and their
like when they are loaded.

A device's packages may be imported too, if that starts no thread and opens no device node: what a
package holds when it is imported, a fork would share. Where it does, the zygote starts its
children afresh instead, each of which imports everything itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from autotune.core.errors import TrialLost, UnavailableError
from autotune.core.lifetime import die_with_parent, kill_all_with, live_on
from autotune.trial.channel import Channel, Closed

PR_SET_CHILD_SUBREAPER = 36
MAX_START_S = 60.0
MAX_FORK_S = 10.0
KILL_WAIT_S = 2.0
MARK = "AUTOTUNE_WARM"
"""Variable of all that comes from a zygote; each has a value of its own."""


# --- messages ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ready:
    """The zygote has imported everything; `missing` maps a module to why it could not be."""

    missing: Mapping[str, str]


@dataclass(frozen=True)
class Fork:
    """Fork one process; its channel and its log's write end come along as file descriptors."""


@dataclass(frozen=True)
class Forked:
    """A process was forked."""

    pid: int


@dataclass(frozen=True)
class Kill:
    """Send a signal to processes and everything they started; unknown ones are ignored."""

    pids: tuple[int, ...]
    signal: int


@dataclass(frozen=True)
class Exited:
    """A process has ended; `status` as `os.waitpid` gives it."""

    pid: int
    status: int


_Message = TypeVar("_Message")

_CODE = "import sys; sys.path.append(sys.argv[1]); import autotune.trial.warm as w; w.{}()"
_DEVICE_MODULES = "--"  # stands before them among the arguments


# --- the tool's side ---------------------------------------------------------------------------


class Zygote:
    """Handle of a running zygote.

    Args:
        environment: Variables set on top of the tool's own.
        modules: Imported before the first fork; one that is missing is not an error here.
        device_modules: Likewise, but forks are given up if importing them was more than that.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        modules: Sequence[str],
        device_modules: Sequence[str] = (),
    ) -> None:
        self._channel, theirs = Channel.pair()
        self._exits: dict[int, int] = {}
        self._missing: Mapping[str, str] | None = None
        self._mark = uuid.uuid4().hex
        package_root = str(Path(__file__).resolve().parents[2])
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-c", _CODE.format("main")),
                    *(package_root, str(theirs.fileno()), str(os.getpid())),
                    *(*modules, _DEVICE_MODULES, *device_modules),
                ],
                env={**os.environ, **environment, MARK: self._mark},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C is the tool's to handle
            )

    def fileno(self) -> int:
        return self._channel.fileno()

    def fork(self, channel: socket.socket, log_fd: int) -> int:
        """Fork a process that serves `channel`; returns its pid.

        Raises:
            UnavailableError: The zygote did not start.
            TrialLost: It has died, or does not answer and was ended.
        """
        self.wait_ready()
        try:
            self._send(Fork(), [channel.fileno(), log_fd])
            pid = self._wait_for(Forked, MAX_FORK_S).pid
        except UnavailableError as error:
            self._process.kill()
            raise TrialLost(str(error)) from None
        self._exits.pop(pid, None)  # of an earlier process that had the same number
        return pid

    def wait_ready(self) -> None:
        """Wait until the imports are done.

        Raises:
            UnavailableError: They took too long, or the process died of it.
            TrialLost: It was killed.
        """
        if self._missing is None:
            self._missing = self._wait_for(Ready, MAX_START_S).missing

    def exit_status(self, pid: int) -> int | None:
        """How a process ended, as `os.waitpid` gives it; None while it runs."""
        self._read_exits()
        return self._exits.get(pid)

    def is_alive(self) -> bool:
        """False once the zygote itself has ended."""
        return self._process.poll() is None

    def kill(self, pids: Sequence[int], signal_number: int) -> None:
        """Signal processes with all they started; the zygote does it, so no pid is stale."""
        with contextlib.suppress(UnavailableError, TrialLost):
            self._send(Kill(tuple(pids), signal_number))

    def close(self) -> None:
        """End the zygote and everything under it."""
        self._channel.close()
        if self._missing is None:
            self._process.kill()  # still importing: it has started nothing, and would not hear us
        try:
            self._process.wait(timeout=KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode:  # it had no chance to see to what others had started
            kill_all_with(MARK, self._mark)

    def _send(self, message: object, fds: Sequence[int] = ()) -> None:
        try:
            self._channel.send(message, fds)
        except Closed:
            raise self._died() from None

    def _wait_for(self, kind: type[_Message], limit_s: float) -> _Message:
        left = select.select([self._channel], [], [], limit_s)
        try:
            while left[0]:
                arrived, message = self._channel.poll()
                if arrived and isinstance(message, kind):
                    return message
                if arrived:
                    self._note(message)
                else:
                    left = select.select([self._channel], [], [], limit_s)
        except Closed:
            raise self._died() from None
        raise UnavailableError(f"the warm process gave no answer within {limit_s:.0f} s")

    def _read_exits(self) -> None:
        with contextlib.suppress(Closed):
            while True:
                arrived, message = self._channel.poll()
                if not arrived:
                    return
                self._note(message)

    def _note(self, message: object) -> None:
        if isinstance(message, Exited):
            self._exits[message.pid] = message.status

    def _died(self) -> UnavailableError | TrialLost:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=KILL_WAIT_S)
        code = self._process.returncode
        if code in (-signal.SIGKILL, -signal.SIGTERM):  # by somebody else: no fault of what it does
            return TrialLost(f"the warm process was killed by {signal.Signals(-code).name}")
        return UnavailableError(f"the warm process ended unexpectedly (exit status {code})")


# --- the zygote itself -------------------------------------------------------------------------


def main() -> None:
    """Entry of the zygote's process: argv is package root, socket, the tool's pid, modules."""
    die_with_parent(int(sys.argv[3]))  # imports take seconds, in which it would not notice
    if "" in sys.path:
        sys.path.remove("")  # a user's random.py must not shadow the library's
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    sock = socket.socket(fileno=int(sys.argv[2]))
    modules = sys.argv[4:]
    border = modules.index(_DEVICE_MODULES)
    importlib.import_module("autotune.trial.child")
    # First, as other packages may import a device's as well.
    before = _holdings()
    missing = _import_all(modules[border + 1 :])
    forks = _holdings() == before
    missing |= _import_all(modules[:border])
    gc.collect()
    gc.freeze()
    live_on()  # the tool's end of the socket tells from here on
    with contextlib.suppress(Closed):
        _Server(sock, missing, forks=forks).run()
    _kill_all_descendants()
    os._exit(0)


def _import_all(modules: Sequence[str]) -> dict[str, str]:
    missing = {}
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # a broken package may raise anything on import
            missing[name] = f"{type(error).__name__}: {error}"
    return missing


def _holdings() -> tuple[int, frozenset[str]]:
    """What a fork would share or lose: the number of threads, and the device nodes held open."""
    held = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            held.add(str(link.readlink()))
    tasks = sum(1 for _ in Path("/proc/self/task").iterdir())
    return tasks, frozenset(path for path in held if path.startswith("/dev/"))


def start_afresh() -> None:
    """Entry of a child that is not forked: argv is package root, socket."""
    if "" in sys.path:
        sys.path.remove("")
    from autotune.trial.child import serve

    serve(Channel(socket.socket(fileno=int(sys.argv[2]))))


class _Server:
    """The zygote's loop: forks on request, reports ends, leaves nothing running."""

    def __init__(self, sock: socket.socket, missing: Mapping[str, str], *, forks: bool) -> None:
        self._forks = forks
        self._socket = sock
        self._channel = Channel(sock)
        self._children: set[int] = set()
        self._wakeup_read, self._wakeup_write = os.pipe()
        for fd in (self._wakeup_read, self._wakeup_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._channel.send(Ready(missing))

    def run(self) -> None:
        """Serve until the tool closes its end, which raises `Closed`."""
        sources = [self._channel.fileno(), self._wakeup_read]
        while True:
            ready, _, _ = select.select(sources, [], [])
            if self._wakeup_read in ready:
                self._reap()
            arrived, message = self._channel.poll()
            if arrived:
                self._handle(message)

    def _handle(self, message: object) -> None:
        if isinstance(message, Fork):
            self._fork(*self._channel.take_fds())
        elif isinstance(message, Kill):
            for pid in self._children.intersection(message.pids):
                _kill_tree(pid, message.signal)

    def _fork(self, channel_fd: int, log_fd: int) -> None:
        zygote_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                self._become_child(zygote_pid, channel_fd, log_fd)
            finally:
                os._exit(70)  # never reached: the child's loop ends by itself
        os.close(channel_fd)
        os.close(log_fd)
        self._children.add(pid)
        self._channel.send(Forked(pid))

    def _become_child(self, zygote_pid: int, channel_fd: int, log_fd: int) -> None:
        os.setsid()
        die_with_parent(zygote_pid)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._socket.close()
        os.close(self._wakeup_read)
        os.close(self._wakeup_write)
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        os.close(log_fd)
        if not self._forks:
            os.set_inheritable(channel_fd, True)
            code = _CODE.format(start_afresh.__name__)
            os.execv(sys.executable, [sys.executable, "-c", code, sys.argv[1], str(channel_fd)])
        from autotune.trial.child import serve

        serve(Channel(socket.socket(fileno=channel_fd)))

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup_read, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._children:
                self._children.discard(pid)
                _kill_orphans(self._children)
                self._channel.send(Exited(pid, status))


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _children_of(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def _kill_tree(pid: int, signal_number: int) -> None:
    """Signal a process and its descendants, the process first so that it starts no more."""
    descendants = _children_of(pid)
    for parent in descendants:
        descendants += _children_of(parent)
    for each in (pid, *descendants):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(each, signal_number)


def _kill_orphans(children: set[int]) -> None:
    """Kill what ended children left behind: as subreaper the zygote is now its parent."""
    for pid in set(_children_of(os.getpid())) - children:
        _kill_tree(pid, signal.SIGKILL)


def _kill_all_descendants() -> None:
    for pid in _children_of(os.getpid()):
        _kill_tree(pid, signal.SIGKILL)
    # What a killed child had started is ours now.
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
            _kill_orphans(set())
