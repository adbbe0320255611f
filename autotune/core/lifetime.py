"""Processes that end with the one that has started them, however that ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

PR_SET_PDEATHSIG = 1
MAX_PASSES = 20  # over processes that start others while they are looked for


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends; at once if it has ended.

    Strictly, when the parent's thread ends that started this process: it has to be one that waits
    for it, else `live_on` must follow.

    Args:
        parent: Process id of whoever started this process.
    """
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def live_on() -> None:
    """Take `die_with_parent` back, where this process sees to its end itself from now on."""
    _prctl(PR_SET_PDEATHSIG, 0)


def kill_all_with(variable: str, value: str) -> None:
    """Kill every process that was started with this variable in its environment.

    Whoever started it handed it on: so what somebody has left behind is found, whoever its parent
    is by now.
    """
    wanted = f"{variable}={value}".encode()
    for _ in range(MAX_PASSES):
        found = [pid for pid in _processes() if wanted in _environment(pid)]
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return


def _processes() -> list[int]:
    return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()]


def _environment(pid: int) -> list[bytes]:
    """As it was given to a process; nothing of one that has ended, or is another user's."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
