"""The queue of an open load: requests that have arrived, taken in batches by several instances.

There is no list of waiting requests, only the arrival times and one shared number: the index of
the first request that nobody has taken.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
from bisect import bisect_right
from types import TracebackType
from typing import NamedTuple, Protocol, runtime_checkable

from autotune.core.clock import Clock
from autotune.core.records import Floats

_INDEX = struct.Struct("q")


class Batch(NamedTuple):
    """Requests taken together.

    Attributes:
        first: Index of the oldest. `items`: how many.
        due_s: Arrival of the oldest.
        ready_s: When they could have been taken; later is the load generator's own delay.
    """

    first: int
    items: int
    due_s: float
    ready_s: float


class Queue(Protocol):
    """Where the instances of a group take their requests from."""

    def take(self, clock: Clock) -> Batch | None:
        """Wait for the next batch and take it; None when no more is to be served."""
        ...

    def answered(self, batch: Batch, end_s: float) -> None:
        """A batch that was taken has been served."""
        ...

    def arrivals_s(self) -> Floats:
        """Arrivals of all requests, once nothing more is taken; NaN where others know it."""
        ...


@runtime_checkable
class Cursor(Protocol):
    """The index of the next request, held while a batch is collected."""

    position: int

    def __enter__(self) -> Cursor: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class LocalCursor:
    """A cursor for the instances of one process, threads included."""

    def __init__(self) -> None:
        self.position = 0
        self._lock = threading.Lock()

    def __enter__(self) -> LocalCursor:
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class SharedCursors:
    """Cursors for the windows of a plan, shared by processes that have the same open file.

    The lock is the kernel's record lock: it is the process's own, so that it goes with a
    process that is killed while it holds it, and the file has no name that could be left over.

    Args:
        fd: From `shared_file`; owned.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._memory = mmap.mmap(fd, os.fstat(fd).st_size)

    def state(self, window: int) -> Cursor:
        """The cursor of a window."""
        return _SharedCursor(self._fd, self._memory, window * _INDEX.size)

    def close(self) -> None:
        self._memory.close()
        os.close(self._fd)


def shared_file(window_count: int) -> int:
    """A file without a name that holds the cursors of `window_count` windows, all at zero."""
    fd = os.memfd_create("autotune-arrivals")
    os.ftruncate(fd, _INDEX.size * window_count)
    return fd


class _SharedCursor:
    def __init__(self, fd: int, memory: mmap.mmap, offset: int) -> None:
        self._fd, self._memory, self._offset = fd, memory, offset

    @property
    def position(self) -> int:
        return int(_INDEX.unpack_from(self._memory, self._offset)[0])

    @position.setter
    def position(self, value: int) -> None:
        _INDEX.pack_into(self._memory, self._offset, value)

    def __enter__(self) -> _SharedCursor:
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN)


class RequestQueue:
    """Requests by arrival time, and the rule by which they are put together.

    A batch is due when it is full or its oldest request has waited for `max_delay_s`. Whoever
    is free waits for that with the cursor held, then takes all that have arrived, at most
    `max_batch`. Instances are served in the order in which they ask.

    Args:
        arrivals_s: Ascending, on the clock of those who take.
        closing_s: From then on nothing more is taken.
    """

    def __init__(
        self,
        arrivals_s: Floats,
        cursor: Cursor,
        *,
        max_batch: int,
        max_delay_s: float,
        closing_s: float,
    ) -> None:
        self._array = arrivals_s
        self._arrivals_s: list[float] = arrivals_s.tolist()  # bisecting an array is slow
        self._cursor = cursor
        self._max_batch, self._max_delay_s = max_batch, max_delay_s
        self._closing_s = closing_s

    def take(self, clock: Clock) -> Batch | None:
        """Wait for the next batch and take it; None when no more is to be served."""
        arrivals_s = self._arrivals_s
        with self._cursor as cursor:
            asked_s = clock.now_s()
            first = cursor.position
            if first >= len(arrivals_s) or asked_s >= self._closing_s:
                return None
            oldest_s = arrivals_s[first]
            full = first + self._max_batch
            due_s = oldest_s + self._max_delay_s
            if full <= len(arrivals_s):
                due_s = min(due_s, arrivals_s[full - 1])
            if due_s > asked_s:
                clock.sleep_until(due_s)
                now_s = clock.now_s()
            else:
                due_s = now_s = asked_s
            end = bisect_right(arrivals_s, now_s, first + 1, min(full, len(arrivals_s)))
            cursor.position = end
        return Batch(first, end - first, oldest_s, due_s)

    def answered(self, batch: Batch, end_s: float) -> None:
        """Arrivals do not wait for answers."""

    def arrivals_s(self) -> Floats:
        """All arrivals, as scheduled."""
        return self._array
