"""Who runs a trial, and whether that worker still lives.

A lease names its holder's process. Whoever shares that process's kernel looks whether it runs, and
knows at once. From elsewhere only the heart tells: the holder renews its lease every `BEAT_S`, and
one that has not been renewed for `GONE_S`, by the *observer's own* monotonic clock, is dead. So no
two clocks are ever compared, and none that is set back or forward changes anything.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from autotune.core.errors import AutotuneError
from autotune.search.process import is_alive, process_start

BEAT_S = 10.0  # between two renewals
GONE_S = 60.0  # without a renewal, after which a worker elsewhere is dead

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

Lease = Mapping[str, object]


def new_lease(worker: str) -> dict[str, str | int | float]:
    """What a worker writes onto a trial that it runs.

    Its `token` is its own; `beat` changes with every renewal, and is the wall clock for people.
    """
    pid = os.getpid()
    return {
        "token": uuid.uuid4().hex,
        "worker": worker,
        "host": socket.gethostname(),
        "boot_id": _read(_BOOT_ID),
        "pid_namespace": _link("/proc/self/ns/pid"),
        "pid": pid,
        "pid_start": process_start(pid),
        "beat": time.time(),
    }


def renewed(lease: Mapping[str, str | int | float]) -> dict[str, str | int | float]:
    """The same lease a beat later."""
    return {**lease, "beat": time.time()}


def is_holder_dead(lease: Lease) -> bool | None:
    """Whether the process that took a lease is gone; None where that cannot be seen from here."""
    if not lease:
        return True
    if lease.get("host") != socket.gethostname() or lease.get("boot_id") != _read(_BOOT_ID):
        return None  # another machine may have the same name
    if lease.get("pid_namespace") != _link("/proc/self/ns/pid"):
        return None
    return not is_alive(int(str(lease.get("pid", 0))), str(lease.get("pid_start", "")))


class LeaseWatch:
    """What one process sees of the leases of others.

    Args:
        now_s: A monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._seen: dict[str, tuple[object, float, bool]] = {}

    def is_dead(self, lease: Lease) -> bool | None:
        """True if its holder cannot finish any more, False if it lives; None: not known yet.

        What is not known yet is known `GONE_S` after the first look.
        """
        known = is_holder_dead(lease)
        if known is not None:
            return known
        key, beat = str(lease.get("token", lease)), lease.get("beat")
        before = self._seen.get(key)
        now_s = self._now_s()
        if before is None or before[0] != beat:
            self._seen[key] = (beat, now_s, before is not None)
            return None if before is None else False
        _, since_s, has_beaten = before
        if now_s - since_s > GONE_S:
            return True
        return False if has_beaten else None


class Heart:
    """Renews what this process holds, every `BEAT_S`, for as long as it holds anything.

    Args:
        every_s: Between two beats.
    """

    def __init__(self, every_s: float = BEAT_S) -> None:
        self._every_s = every_s
        self._renewals: dict[object, Callable[[], None]] = {}
        self._thread: threading.Thread | None = None
        self.lock = threading.RLock()
        """Held while a beat is written: whoever ends a lease holds it, so that none comes after."""

    def hold(self, key: object, renew: Callable[[], None]) -> None:
        """Call `renew` with every beat until `drop`."""
        with self.lock:
            self._renewals[key] = renew
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat, name="leases", daemon=True)
                self._thread.start()

    def drop(self, key: object) -> None:
        """Stop renewing; nothing happens if it was not held."""
        with self.lock:
            self._renewals.pop(key, None)

    def _beat(self) -> None:
        while True:
            time.sleep(self._every_s)
            with self.lock:
                if not self._renewals:
                    self._thread = None
                    return
                for renew in list(self._renewals.values()):
                    # A storage that is away for a moment is no reason to stop measuring.
                    with contextlib.suppress(AutotuneError):
                        renew()


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""
