"""Asking another program: bounded in time and in what it prints, with nothing of it left behind."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import IO, cast

MAX_OUTPUT_BYTES = 4 * 2**20
KILL_WAIT_S = 2.0  # for what hangs in a driver even a kill may not end
_POLL_S = 0.05
_CHUNK_BYTES = 64 * 1024


def ask(
    words: Sequence[str], *, limit_s: float, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run a program without input; what it started and left behind is killed.

    Args:
        environment: This process's own if None.
    Raises:
        OSError: It cannot be started.
        subprocess.TimeoutExpired: It took longer, or printed without end.
    """
    until_s = time.monotonic() + limit_s
    child = subprocess.Popen(
        words,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    streams = (cast("IO[bytes]", child.stdout), cast("IO[bytes]", child.stderr))
    heard: dict[int, bytearray] = {stream.fileno(): bytearray() for stream in streams}
    try:
        if not _is_over(child, heard, until_s):
            raise subprocess.TimeoutExpired(words, limit_s)
    finally:
        _end(child)
        printed, errors = (bytes(heard[stream.fileno()]) for stream in streams)
        for stream in streams:
            stream.close()
    return subprocess.CompletedProcess(words, child.returncode, printed, errors)


def _is_over(
    child: subprocess.Popen[bytes], heard: Mapping[int, bytearray], until_s: float
) -> bool:
    """Listen until the child has ended; False if it will not in time, or says too much.

    What it has started may go on and keep its output open.
    """
    with selectors.DefaultSelector() as selector:
        for fd in heard:
            selector.register(fd, selectors.EVENT_READ)
        while time.monotonic() < until_s and sum(map(len, heard.values())) <= MAX_OUTPUT_BYTES:
            has_ended = child.poll() is not None
            if not selector.get_map():
                time.sleep(0 if has_ended else _POLL_S)
            ready = selector.select(_POLL_S) if selector.get_map() else []
            for key, _ in ready:
                chunk = os.read(key.fd, _CHUNK_BYTES)
                heard[key.fd].extend(chunk)
                if not chunk:
                    selector.unregister(key.fd)
            if has_ended and not ready:
                return True
    return False


def _end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=KILL_WAIT_S)
