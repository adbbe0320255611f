"""A group of processes under supervision: every wait is bounded, every end is explained."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from autotune.core import errors
from autotune.core.errors import (
    AutotuneError,
    OutOfMemory,
    TrialCrashed,
    TrialError,
    TrialKilled,
    TrialLost,
    TrialTimeout,
)
from autotune.trial import messages
from autotune.trial.channel import Channel, Closed
from autotune.trial.log import LogPipe
from autotune.trial.warm import Zygote

CLOSE_WAIT_S = 1.0
TERM_WAIT_S = 0.5  # between asking a process to end and killing it
KILL_WAIT_S = 5.0
MAX_TAILS = 4  # processes whose last words are shown where several hang
EXIT_WAIT_S = 2.0  # between a channel closing and its process being reaped

_Reply = TypeVar("_Reply")


class Group:
    """The processes of one trial.

    Args:
        zygote: Forks them.
        count: How many.
        noun: What one of them is called in messages; each then has a log of its own, so that the
            last lines are those of the one that failed.
        close_wait_s: How long they may take to end by themselves.
    """

    def __init__(
        self,
        zygote: Zygote,
        count: int,
        noun: str = "",
        *,
        close_wait_s: float = CLOSE_WAIT_S,
    ) -> None:
        self._zygote, self._close_wait_s = zygote, close_wait_s
        self._noun = noun
        self._logs = [LogPipe() for _ in range(count if noun else 1)]
        self._channels: list[Channel] = []
        self._pids: list[int] = []
        self._oom_kills = _oom_kill_count()
        try:
            for index in range(count):
                channel, theirs = Channel.pair()
                self._channels.append(channel)
                with theirs:
                    self._pids.append(zygote.fork(theirs, self._log_of(index).write_fd))
        except BaseException:
            self.kill()
            raise
        finally:
            for log in self._logs:
                os.close(log.write_fd)

    @property
    def log_tail(self) -> str:
        """The last lines that the processes printed, the first one's where each has its own."""
        return self._logs[0].tail

    @property
    def size(self) -> int:
        """Number of processes, 0 when they are gone."""
        return len(self._channels)

    def send(
        self, requests: Sequence[object], fds: Sequence[int] = (), *, only: int | None = None
    ) -> None:
        """Send each process its request, and file descriptors with it.

        A process that is gone is found by `gather`.

        Args:
            only: Of the first so many processes; None: of all.
        """
        for channel, request in zip(self._channels[:only], requests, strict=True):
            with contextlib.suppress(Closed):
                channel.send(request, fds)

    def gather(
        self, kind: type[_Reply], *, until_s: float, only: int | None = None
    ) -> list[_Reply]:
        """Wait for a reply of every process; on any failure the whole group is killed.

        Args:
            until_s: Deadline on the monotonic clock.
            only: Of the first so many processes; None: of all.
        Raises:
            TrialTimeout: A process did not answer in time.
            TrialError, UsageError, UnavailableError: What a process reported, or how it ended.
        """
        replies: dict[int, _Reply] = {}
        limit_s = until_s - time.monotonic()
        with selectors.DefaultSelector() as selector:
            asked = self._channels[:only]
            for index, channel in enumerate(asked):
                selector.register(channel, selectors.EVENT_READ, index)
            while len(replies) < len(asked):
                ready = selector.select(until_s - time.monotonic())
                if time.monotonic() >= until_s:
                    silent = self._silent([i for i in range(len(asked)) if i not in replies])
                    error = TrialTimeout(f"no answer within {limit_s:.3g} s{silent[1]}")
                    raise self._failed(error, *silent[0])
                for key, _ in ready:
                    if (reply := self._read_reply(key.data, kind)) is not None:
                        replies[key.data] = reply
                        selector.unregister(key.fileobj)
        return [replies[index] for index in range(len(asked))]

    def close(self) -> None:
        """Let the processes end by themselves, kill what does not, leave nothing behind."""
        if not self._channels:
            return
        self.send([messages.Close()] * len(self._channels))
        self._wait_exits(self._close_wait_s)
        self._signal_and_wait(signal.SIGKILL, KILL_WAIT_S)
        self._close_files()

    def kill(self) -> None:
        """End the processes now: a chance to tidy up, then the kill that cannot be refused."""
        if not self._channels:
            return
        self._signal_and_wait(signal.SIGTERM, TERM_WAIT_S)
        self._signal_and_wait(signal.SIGKILL, KILL_WAIT_S)
        self._close_files()

    def _read_reply(self, index: int, kind: type[_Reply]) -> _Reply | None:
        message: Any
        try:
            arrived, message = self._channels[index].poll()
        except Closed:
            raise self._failed(self._explain_end(index), index) from None
        if not arrived:
            return None
        if isinstance(message, messages.Failed):
            reason = f"{self._name(index)}{message.reason}"
            raise self._failed(self._by_memory(getattr(errors, message.error)(reason)), index)
        if isinstance(message, kind):
            return message
        what = f"{self._name(index)}answered with {type(message).__name__}"
        raise self._failed(TrialCrashed(what), index)

    def _name(self, index: int) -> str:
        return f"{self._noun} {index}: " if self._noun else ""

    def _log_of(self, index: int) -> LogPipe:
        return self._logs[index % len(self._logs)]

    def _silent(self, missing: Sequence[int]) -> tuple[Sequence[int], str]:
        """Whose last words to show of those that did not answer, and what to say of them.

        Where several wait for each other, one that has been stopped is the one to name.
        """
        stopped = [index for index in missing if _is_stopped(self._pids[index])]
        shown = ", ".join(str(index) for index in stopped or missing)
        if not self._noun:
            return missing[:1], ""
        state = " was stopped" if stopped else " did not answer"
        return stopped or missing, f"; {self._noun} {shown}{state}"

    def _failed(self, error: AutotuneError, *indexes: int) -> AutotuneError:
        """End the group; returns the error to raise, with those processes' last words."""
        self.kill()
        if isinstance(error, TrialError):
            tails = {i: tail for i in indexes[:MAX_TAILS] if (tail := self._log_of(i).tail)}
            named = (
                f"{self._noun} {i}:\n{tail}" if len(tails) > 1 else tail
                for i, tail in tails.items()
            )
            error.log_tail = "\n".join(named)
        return error

    def _explain_end(self, index: int) -> AutotuneError:
        self._wait_exits(EXIT_WAIT_S, [self._pids[index]])
        status = self._zygote.exit_status(self._pids[index])
        if status is None and not self._zygote.is_alive():
            return TrialLost("the warm process that held the trial has died")
        if status is None:
            return TrialCrashed(f"{self._name(index)}a process of the trial closed its channel")
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            kind = TrialKilled if name == "SIGKILL" else TrialCrashed
            return self._by_memory(kind(f"{self._name(index)}killed by {name}", signal_name=name))
        code = os.WEXITSTATUS(status)
        what = f"{self._name(index)}ended by itself with exit status {code}"
        return TrialCrashed(what, exit_code=code)

    def _by_memory(self, error: AutotuneError) -> AutotuneError:
        """The error, or that it was the kernel that killed, for want of memory."""
        if isinstance(error, TrialKilled) and _oom_kill_count() > self._oom_kills:
            return OutOfMemory(f"the kernel ran out of memory: {error}")
        return error

    def _signal_and_wait(self, signal_number: int, limit_s: float) -> None:
        running = [pid for pid in self._pids if self._zygote.exit_status(pid) is None]
        if running:
            self._zygote.kill(running, signal_number)
            self._wait_exits(limit_s, running)

    def _wait_exits(self, limit_s: float, pids: Sequence[int] | None = None) -> None:
        until_s = time.monotonic() + limit_s
        waited_for = self._pids if pids is None else pids
        while any(self._zygote.exit_status(pid) is None for pid in waited_for):
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not self._zygote.is_alive():
                return
            select.select([self._zygote], [], [], left_s)

    def _close_files(self) -> None:
        for channel in self._channels:
            channel.close()
        self._channels = []
        for log in self._logs:
            log.close()


def _is_stopped(pid: int) -> bool:
    """True of a process that a signal has stopped; its name, in brackets, may hold anything."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    return False


def _oom_kill_count() -> int:
    """Processes that the kernel has killed for memory since it started, on the whole machine."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
