"""Whether a process that was seen once still lives."""

from __future__ import annotations

from pathlib import Path

_START_FIELD = 19  # of /proc/PID/stat after the command: starttime, field 22


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
