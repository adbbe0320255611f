"""Processes that end with the one that has started them, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


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


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
