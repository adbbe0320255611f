"""The queue of a closed load of clients: each sends its next request when its last is answered.

The arrivals are not known beforehand, as those of `request_queue` are: an answer makes the next
one. What instances share is therefore a ring with the times of the requests that wait, at most
one per client, and two counts: how many were ever sent, and how many of them were taken.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import numpy as np

from autotune.core.clock import Clock
from autotune.core.records import Floats, Load
from autotune.measure.arrivals import MAX_ARRIVALS
from autotune.measure.request_queue import (
    Batch,
    Cursor,
    LocalCursor,
    SharedCursors,
    shared_file,
)

POLL_S = 200e-6  # how often an instance that waits looks whether another one has answered
_COUNTS = struct.Struct("qq")
_SLOT_BYTES = 8


class ClientState(Protocol):
    """What the instances of a group share; read and changed only while `changing` is held.

    Attributes:
        times_s: Ring of one slot per client: request n was sent at `times_s[n % clients]`.
        taking: Held by the instance that collects a batch, waiting included.
        changing: Held for a moment by whoever looks or sends.
    """

    @property
    def times_s(self) -> Floats: ...
    @property
    def taking(self) -> AbstractContextManager[object]: ...
    @property
    def changing(self) -> AbstractContextManager[object]: ...
    def counts(self) -> tuple[int, int]:
        """Requests taken and requests sent so far."""
        ...

    def set_counts(self, taken: int, sent: int) -> None: ...


class LocalClients:
    """The state for the instances of one process, threads included."""

    def __init__(self, clients: int) -> None:
        self.times_s = np.zeros(clients)
        self.taking, self.changing = threading.Lock(), threading.Lock()
        self._counts = (0, 0)

    def counts(self) -> tuple[int, int]:
        return self._counts

    def set_counts(self, taken: int, sent: int) -> None:
        self._counts = (taken, sent)


def local_state(load: Load) -> Cursor | ClientState:
    """The state of one window's queue for the instances of one process."""
    return LocalCursor() if load.clients is None else LocalClients(load.clients)


def shared_states(fd: int, load: Load) -> SharedCursors | SharedClients:
    """The states of a plan's windows for instances in several processes.

    Args:
        fd: From `shared_states_file`; owned.
    """
    return SharedCursors(fd) if load.clients is None else SharedClients(fd, load.clients)


def shared_states_file(load: Load, window_count: int) -> int:
    """A file without a name that holds the states of `window_count` windows, all at zero."""
    if load.clients is None:
        return shared_file(window_count)
    fd, clients = os.memfd_create("autotune-clients"), load.clients
    os.ftruncate(fd, window_count * _state_bytes(clients))
    return fd


def _state_bytes(clients: int) -> int:
    return _COUNTS.size + _SLOT_BYTES * clients


class SharedClients:
    """The states of a plan's windows, shared by processes that have the same open file.

    Args:
        fd: From `shared_states_file`; owned.
    """

    def __init__(self, fd: int, clients: int) -> None:
        self._fd, self._clients = fd, clients
        # One mapping for all windows: closing any would let go of this process's locks.
        self._memory = mmap.mmap(fd, os.fstat(fd).st_size)

    def state(self, window: int) -> ClientState:
        """The state of a window."""
        return _SharedState(self._fd, self._memory, window, self._clients)

    def close(self) -> None:
        os.close(self._fd)


class _SharedState:
    """The locks are the kernel's record locks, which go with a process that dies."""

    def __init__(self, fd: int, memory: mmap.mmap, window: int, clients: int) -> None:
        self._fd, self._memory = fd, memory
        self._offset = window * _state_bytes(clients)
        begin = self._offset + _COUNTS.size
        self.times_s: Floats = np.frombuffer(memory, np.float64, clients, begin)

    @property
    def taking(self) -> AbstractContextManager[object]:
        return self._locked(self._offset)

    @property
    def changing(self) -> AbstractContextManager[object]:
        return self._locked(self._offset + 1)

    def counts(self) -> tuple[int, int]:
        taken, sent = _COUNTS.unpack_from(self._memory, self._offset)
        return taken, sent

    def set_counts(self, taken: int, sent: int) -> None:
        _COUNTS.pack_into(self._memory, self._offset, taken, sent)

    @contextmanager
    def _locked(self, byte: int) -> Iterator[None]:
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, byte)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, byte)


class ClientQueue:
    """Requests of clients, put together by the rule of `RequestQueue`.

    Each client sends its first request when the window starts, and its next one at the moment
    the last is answered, until the window ends.

    Args:
        start_s, end_s: Of the window, on the clock of those who take.
        closing_s: From then on nothing more is taken.
        count: Requests in all; None: as many as there is time for.
    """

    def __init__(
        self,
        state: ClientState,
        *,
        start_s: float,
        end_s: float,
        closing_s: float,
        max_batch: int,
        max_delay_s: float,
        count: int | None = None,
    ) -> None:
        self._state = state
        self._end_s, self._closing_s = end_s, closing_s
        self._max_batch, self._max_delay_s = max_batch, max_delay_s
        self._most = min(count or MAX_ARRIVALS, MAX_ARRIVALS)
        self._taken: list[tuple[int, Floats]] = []
        with state.changing:
            if state.counts() == (0, 0):  # whoever comes first lets all clients begin
                state.times_s[:] = start_s
                state.set_counts(0, min(state.times_s.size, self._most))

    def take(self, clock: Clock) -> Batch | None:
        """Wait for the next batch and take it; None when no more is to be served."""
        with self._state.taking:
            asked_s = clock.now_s()
            if asked_s >= self._closing_s:
                return None
            while True:
                with self._state.changing:
                    due_s = self._due_s()
                    now_s = clock.now_s()
                    if due_s <= now_s:
                        return self._pop(now_s, max(due_s, asked_s))
                    if self._is_over(due_s, now_s):
                        return None
                clock.sleep_until(min(due_s, now_s + POLL_S))

    def answered(self, batch: Batch, end_s: float) -> None:
        """The clients of a batch have their answers, and send again."""
        if end_s >= self._end_s:
            return
        with self._state.changing:
            taken, sent = self._state.counts()
            times_s = self._state.times_s
            for number in range(sent, min(sent + batch.items, self._most)):
                # In order of time: instances on virtual clocks end their calls ahead of others.
                slot = number
                while slot > taken and times_s[(slot - 1) % times_s.size] > end_s:
                    times_s[slot % times_s.size] = times_s[(slot - 1) % times_s.size]
                    slot -= 1
                times_s[slot % times_s.size] = end_s
                sent = number + 1
            self._state.set_counts(taken, sent)

    def arrivals_s(self) -> Floats:
        """When each request was sent; NaN for those that other processes took."""
        with self._state.changing:
            taken, sent = self._state.counts()
            waiting = self._state.times_s[np.arange(taken, sent) % self._state.times_s.size]
        arrivals_s = np.full(sent, np.nan)
        arrivals_s[taken:] = waiting
        for first, times_s in self._taken:
            arrivals_s[first : first + times_s.size] = times_s
        return arrivals_s

    def _due_s(self) -> float:
        """When the next batch is full or has waited long enough; infinite with nothing to take."""
        taken, sent = self._state.counts()
        if sent == taken:
            return math.inf
        times_s = self._state.times_s
        due_s = float(times_s[taken % times_s.size]) + self._max_delay_s
        if sent - taken < self._max_batch:
            return due_s
        return min(due_s, float(times_s[(taken + self._max_batch - 1) % times_s.size]))

    def _is_over(self, due_s: float, now_s: float) -> bool:
        none_to_come = now_s >= self._end_s or self._state.counts()[1] >= self._most
        return math.isinf(due_s) and none_to_come

    def _pop(self, now_s: float, ready_s: float) -> Batch:
        taken, sent = self._state.counts()
        last = min(sent, taken + self._max_batch)
        slots = np.arange(taken, last) % self._state.times_s.size
        times_s = self._state.times_s[slots]
        times_s = times_s[: int(np.searchsorted(times_s, now_s, side="right"))]
        self._state.set_counts(taken + times_s.size, sent)
        self._taken.append((taken, times_s))
        return Batch(taken, times_s.size, float(times_s[0]), ready_s)
