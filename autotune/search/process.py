"""Who runs a trial: enough of a process's identity to know later whether it still lives."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_START_FIELD = 19  # of /proc/PID/stat after the command: starttime, field 22
CLOCK_SLACK_S = 60.0  # by how much the clocks of two hosts may differ


def process_start(pid: int) -> str:
    """When a process started, in ticks since boot; "" if there is no such process.

    With the pid it names a process for good, since pids are used again. A zombie is dead.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return ""
    fields = stat[stat.rfind(")") + 2 :].split()
    return "" if fields[0] in ("Z", "X") else fields[_START_FIELD]


def is_alive(pid: int, start: str) -> bool:
    """True if the process that started then still runs."""
    return bool(start) and process_start(pid) == start


def new_lease(worker: str, lasts_s: float) -> dict[str, str | int | float]:
    """What a worker writes onto a trial that it runs.

    Args:
        lasts_s: Seconds within which the trial is over whatever happens. A worker on another
            host can only go by this, since it cannot look at the process.
    """
    pid = os.getpid()
    return {
        "worker": worker,
        "host": socket.gethostname(),
        "boot_id": _read(_BOOT_ID),
        "pid_namespace": _link("/proc/self/ns/pid"),
        "pid": pid,
        "pid_start": process_start(pid),
        "expires_at_s": time.time() + lasts_s,
    }


def is_lease_dead(lease: Mapping[str, object], now_s: float | None = None) -> bool:
    """True if the worker that took this lease cannot finish its trial any more."""
    same_host = lease.get("host") == socket.gethostname()
    same_boot = lease.get("boot_id") == _read(_BOOT_ID)
    if same_host and not same_boot:
        return True
    if same_host and lease.get("pid_namespace") == _link("/proc/self/ns/pid"):
        return not is_alive(int(str(lease.get("pid", 0))), str(lease.get("pid_start", "")))
    now_s = time.time() if now_s is None else now_s
    return now_s > float(str(lease.get("expires_at_s", 0.0))) + CLOCK_SLACK_S


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
