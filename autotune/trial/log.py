"""What a group's processes print: read all the time, the end of it kept."""

from __future__ import annotations

import os
import re
import select
import threading

from autotune.core.text import keepable

MAX_LOG_BYTES = 64 * 1024
TAIL_LINES = 40
POLL_S = 0.2
DRAIN_S = 0.5  # for what is still in the pipe when the processes are gone

_KERNEL = re.compile(r": (?:fallthrough )?registered at \S+ \[(?:kernel|backend fallback)\]$")
"""A line of torch's table of kernels: pages of them follow an operator that is missing."""


class LogPipe:
    """A pipe for the output of a group.

    A thread of its own empties it: a process whose output is not taken would stop in the middle
    of its window, whoever the tool is listening to at that moment.

    Attributes:
        write_fd: For the processes; close it here once they have it.
    """

    def __init__(self) -> None:
        self._read_fd, self.write_fd = os.pipe()
        self._data = bytearray()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._drain, name="trial log", daemon=True)
        self._thread.start()

    @property
    def tail(self) -> str:
        """The last lines printed so far."""
        lines = keepable(bytes(self._data).decode("utf-8", errors="replace")).splitlines()
        return "\n".join([line for line in lines if not _KERNEL.search(line)][-TAIL_LINES:])

    def close(self) -> None:
        """Take what is left and stop reading, though a process may still have the pipe."""
        self._thread.join(DRAIN_S)
        self._stop.set()
        self._thread.join()

    def _drain(self) -> None:
        try:
            while not self._stop.is_set():
                if not select.select([self._read_fd], [], [], POLL_S)[0]:
                    continue
                data = os.read(self._read_fd, MAX_LOG_BYTES)
                if not data:
                    return
                self._data += data
                del self._data[:-MAX_LOG_BYTES]
        finally:
            os.close(self._read_fd)
