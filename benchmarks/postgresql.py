"""A PostgreSQL server of one's own, on a socket in a temporary directory, that can be killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

START_ATTEMPTS = 20


class Server:
    """Started with `with`; nothing of it is left behind.

    Args:
        durable: Whether what is committed outlives a crash of the machine, at the cost of time.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))  # a socket's path must be short
        self.url = f"postgresql+psycopg://postgres@/postgres?host={self.home}"
        self._sync = "on" if durable else "off"

    @staticmethod
    def program() -> str | None:
        """Where PostgreSQL's `pg_ctl` is; None if it is not installed."""
        binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
        return str(binaries[-1]) if binaries else shutil.which("pg_ctl")

    def start(self) -> None:
        """Start it, or start it again; it answers when this returns."""
        options = f"-k {self.home} -c listen_addresses= -c fsync={self._sync}"
        self._run("pg_ctl", "-w", "-l", self.home / "log", "-o", options, "start")

    def start_again(self) -> None:
        """Start it after a kill or a stop, once what was left of it has gone."""
        for attempt in range(START_ATTEMPTS):
            try:
                return self.start()
            except subprocess.CalledProcessError:
                if attempt == START_ATTEMPTS - 1:
                    raise
                time.sleep(0.5)
        raise AssertionError("unreachable")

    def stop(self) -> None:
        """Stop it without asking anybody."""
        self._run("pg_ctl", "-w", "-m", "immediate", "stop")

    def kill(self) -> None:
        """SIGKILL to its first process, which takes the others down."""
        pid = int((self.home / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)

    def __enter__(self) -> Server:
        if os.getuid() == 0:  # the server refuses to run as root
            shutil.chown(self.home, "postgres", "postgres")
            self.home.chmod(0o755)  # its socket is for everybody
        self._run("initdb", "-A", "trust", "-U", "postgres", "--no-sync")
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self.home, ignore_errors=True)

    def _run(self, program: str, *words: str | Path) -> None:
        found = self.program()
        assert found, "PostgreSQL is not installed"
        as_user = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
        command = [*as_user, str(Path(found).parent / program), "-D", self.home / "data", *words]
        subprocess.run(
            command,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
