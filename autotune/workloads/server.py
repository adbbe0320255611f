"""A server of the user's: started for a trial, waited for, and seen to be gone.

What is sent to it is another matter: `http_client` and `measure.requests`.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from autotune.core.errors import TrialCrashed, TrialError, TrialTimeout, UsageError
from autotune.core.records import GroupSpec, Scalar, WorkloadSpec
from autotune.core.text import keepable
from autotune.space.command import fill
from autotune.workloads import command
from autotune.workloads.http_client import HttpClient, import_aiohttp
from autotune.workloads.payloads import headers_of, payloads

POLL_S = 0.05
PROBE_LIMIT_S = 2.0  # for one look whether it is ready
KILL_WAIT_S = 5.0
MAX_OUTPUT_BYTES = 64 * 1024
MAX_STATUS_BYTES = 1024  # of the first line of an answer
PR_SET_CHILD_SUBREAPER = 36
_STATUS = re.compile(rb"HTTP/[0-9.]+ +([0-9]{3})\b")


def check(spec: WorkloadSpec) -> None:
    """Find what is wrong before anything is started.

    Raises:
        UsageError: There is no such program, a file of requests cannot be read, a header's variable
            is missing, or the port is taken. UnavailableError: The HTTP client is missing.
    """
    import_aiohttp()
    command.check(spec)
    request = _request(spec)
    headers_of(request)
    payloads(request, {}, 0)
    url = str(spec.options["url"])
    if "{port}" not in url:
        _refuse_taken(url)


def preload(spec: WorkloadSpec) -> tuple[str, ...]:
    """The HTTP client, so that no trial waits for its import."""
    return ("aiohttp",)


def _request(spec: WorkloadSpec) -> Mapping[str, Any]:
    request = spec.options["request"]
    assert isinstance(request, Mapping)
    return request


class ServerProcess:
    """A server that runs.

    Args:
        spec: Its command is started with the configuration's values.
    Raises:
        UsageError: It cannot be started, or something listens on its port already.
    """

    def __init__(self, spec: GroupSpec) -> None:
        options = spec.workload.options
        port = free_port() if "{port}" in str(options["url"]) else None
        self.url = fill([str(options["url"])], {"port": port or 0})[0]
        self.host, self.port = _address(self.url)
        if port is None:
            _refuse_taken(self.url)
        self._values = _values(spec, self.port)
        words, line, environment = command.command_line(spec, self._values)
        self._spec, self.command_line = spec, line
        self._kept = bytearray()
        _become_subreaper()
        self._process = command.start(words, spec, environment, stderr=subprocess.STDOUT)
        self._reader = threading.Thread(target=self._read, name="server output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def client(self) -> HttpClient:
        """What sends this workload's requests."""
        request, seed = _request(self._spec.workload), self._spec.seed
        request = {**request, "path": fill([str(request["path"])], self._values)[0]}
        return HttpClient(
            self.url,
            request,
            payloads(request, self._values, seed),
            headers_of(request),
            is_streamed="openai" in request,
        )

    def wait_ready(self) -> float:
        """Wait until it answers; returns the seconds that took.

        Raises:
            TrialTimeout: It did not in time. TrialCrashed, OutOfMemory: It ended.
        """
        options = self._spec.workload.options
        limit_s, began_s = float(str(options["start_timeout_s"])), time.monotonic()
        path, why = str(options["ready"]), ""
        while time.monotonic() - began_s < limit_s:
            self.check()
            why = _not_ready(self.host, self.port, path)
            if not why:
                return time.monotonic() - began_s
            time.sleep(POLL_S)
        where = f"{self.url}{path}" if path else f"{self.host}:{self.port}"
        raise TrialTimeout(
            f"the server was not ready at {where} within {limit_s:.3g} s "
            f"(start_timeout, within trial.timeout): {why}"
            f"{self._last_line()}; to see it again: {self.command_line}"
        )

    def check(self) -> None:
        """Raise what its end means, if it has ended.

        Raises:
            TrialCrashed, OutOfMemory: It has.
        """
        status = self._process.poll()
        if status is None:
            return
        self._reader.join(command.DRAIN_S)
        if status == 0:
            error: TrialError = TrialCrashed(
                f"the server ended by itself with exit status 0{self._last_line()}", exit_code=0
            )
        else:
            error = command.ended_badly(status, self._text(), what="the server")
        raise type(error)(f"{error}; to see it again: {self.command_line}")

    def stop(self) -> None:
        """End it and all it started: asked first, then killed; returns when they are gone.

        Raises:
            TrialCrashed: Something of it cannot be ended, or its port is still taken.
        """
        limit_s = float(str(self._spec.workload.options["stop_timeout_s"]))
        _signal_group(self.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(limit_s)
        left = _kill_descendants(os.getpid(), KILL_WAIT_S)
        self._process.wait(KILL_WAIT_S)
        self._reader.join(command.DRAIN_S)
        if left:
            raise TrialCrashed(f"processes of the server cannot be ended: {sorted(left)}")
        if is_taken(self.host, self.port):
            raise TrialCrashed(f"the server is gone, but {self.host}:{self.port} is still taken")

    def memory_bytes(self) -> int | None:
        """Memory of its own and its descendants' that they do not share with others."""
        sizes = [_private_bytes(pid) for pid in (self.pid, *_descendants(self.pid))]
        known = [size for size in sizes if size is not None]
        return sum(known) if known else None

    def _read(self) -> None:
        """Pass its output on to the trial's log and keep the end of it."""
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            while data := os.read(self._process.stdout.fileno(), MAX_OUTPUT_BYTES):
                with contextlib.suppress(OSError):
                    os.write(1, data)
                self._kept += data
                del self._kept[:-MAX_OUTPUT_BYTES]

    def _text(self) -> str:
        return bytes(self._kept).decode("utf-8", errors="replace")

    def _last_line(self) -> str:
        lines = keepable(self._text()).strip().splitlines()
        return f": {lines[-1].strip()[:300]}" if lines else ""


def _values(spec: GroupSpec, port: int) -> dict[str, Scalar]:
    """What the placeholders stand for: the parameters, and facts of the trial."""
    return {
        **spec.config.as_dict(),
        "port": port,
        "device": spec.devices[0],
        "device_index": int(spec.devices[0].partition(":")[2] or 0),
        "seed": spec.seed,
    }


# --- ports -------------------------------------------------------------------------------------


def free_port() -> int:
    """A port of the loopback interface that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_taken(host: str, port: int) -> bool:
    """True if something listens there."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), PROBE_LIMIT_S):
        return True
    return False


def _refuse_taken(url: str) -> None:
    host, port = _address(url)
    if is_taken(host, port):
        raise UsageError(
            f"workload.server.url: something listens on {host}:{port} already; end it, or write "
            "{port} for a free one there and in the command"
        )


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "127.0.0.1", parts.port or 80


def _not_ready(host: str, port: int, path: str) -> str:
    """Why it is not ready; empty if it is. A look takes `PROBE_LIMIT_S` at most."""
    if not path:
        return "" if is_taken(host, port) else "nothing listens there"
    until_s = time.monotonic() + PROBE_LIMIT_S
    name = f"[{host}]" if ":" in host else host
    asked = f"GET {path} HTTP/1.1\r\nHost: {name}:{port}\r\nConnection: close\r\n\r\n"
    try:
        with socket.create_connection((host, port), PROBE_LIMIT_S) as connection:
            connection.sendall(asked.encode())
            status = _STATUS.match(_first_line(connection, until_s))
    except OSError as error:
        return str(error) or type(error).__name__
    if status is None:
        return "its answer is no HTTP"
    return "" if status.group(1).startswith(b"2") else f"it answers {status.group(1).decode()}"


def _first_line(connection: socket.socket, until_s: float) -> bytes:
    """The first line of an answer, however slowly it comes.

    Raises:
        OSError: It was not there in time, or the connection broke.
    """
    data = b""
    while b"\n" not in data and len(data) < MAX_STATUS_BYTES:
        if (left_s := until_s - time.monotonic()) <= 0:
            raise TimeoutError("timed out")
        connection.settimeout(left_s)
        if not (piece := connection.recv(MAX_STATUS_BYTES)):
            break
        data += piece
    return data


# --- processes ---------------------------------------------------------------------------------


def _become_subreaper() -> None:
    """What the server starts and leaves behind becomes a child of this process."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _kill_descendants(pid: int, limit_s: float) -> set[int]:
    """Kill all below a process, those that come while it is done too; returns what is left."""
    until_s = time.monotonic() + limit_s
    while left := set(_descendants(pid)):
        for each in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(each, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if time.monotonic() > until_s:
            return left
        time.sleep(0.01)
    return set()


def _descendants(pid: int) -> Iterator[int]:
    """All processes below one, those that have ended apart."""
    for child in _children(pid):
        if not _has_ended(child):
            yield child
        yield from _descendants(child)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (OSError, IndexError):
        return True


def _private_bytes(pid: int) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
