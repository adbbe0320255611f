"""The journal file: its lock, and the repair of a line that a killed writer left unfinished."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optuna.storages.journal import BaseJournalBackend

from autotune.core.errors import StorageError
from autotune.search.process import is_alive, process_start

log = logging.getLogger(__name__)

SAY_AFTER_S = 1.0
GRACE_S = 5.0  # a healthy writer holds the lock for milliseconds
LOCK_WAIT_S = 60.0
MAX_SLEEP_S = 0.1

_decode = json.JSONDecoder().decode


class JournalLock:
    """An exclusive lock file that needs neither links nor locking of the file system.

    It names its holder: the lock of a dead process of this host is taken over at once, that of
    an unknown holder once it has not changed for `grace_s`. Whoever waits says so.
    """

    def __init__(self, journal: Path, *, grace_s: float = GRACE_S) -> None:
        # Optuna's own locks use the same name, so that its dashboard waits for us too.
        self.path = journal.with_name(journal.name + ".lock")
        self._grace_s = grace_s
        self._token = ""

    def acquire(self) -> None:
        """Wait for the lock.

        Raises:
            StorageError: A live process held it for `LOCK_WAIT_S`, or it cannot be made.
        """
        began_s = time.monotonic()
        seen, seen_since_s, said, sleep_s = "", began_s, False, 0.001
        while not self._try():
            now_s = time.monotonic()
            holder = self._holder()
            if holder != seen:
                seen, seen_since_s = holder, now_s
            alive = _is_holder_alive(holder)
            if not said and now_s - began_s > SAY_AFTER_S:
                said = True
                log.warning("waiting for the lock %s: %s", self.path, _likely_cause(alive))
            if alive is False or (alive is None and now_s - seen_since_s > self._grace_s):
                self._break(holder)
            elif now_s - began_s > LOCK_WAIT_S:
                raise StorageError(
                    f"{self.path}: held for {LOCK_WAIT_S:.0f} s by a live process ({holder})"
                )
            time.sleep(sleep_s)
            sleep_s = min(2 * sleep_s, MAX_SLEEP_S)

    def release(self) -> None:
        """Give the lock back, unless another process took it over meanwhile."""
        if self._token and self._read() == self._token:
            self.path.unlink(missing_ok=True)
        self._token = ""

    def _try(self) -> bool:
        token = f"{socket.gethostname()} {os.getpid()} {process_start(os.getpid())} {uuid.uuid4()}"
        try:
            handle = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:
            return False
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be written ({error.strerror})") from error
        self._token = token
        try:
            os.write(handle, token.encode())
        except OSError as error:
            self.path.unlink(missing_ok=True)  # without a name in it others would wait for nobody
            raise StorageError(f"{self.path}: cannot be written ({error.strerror})") from error
        finally:
            os.close(handle)
        return True

    def _read(self) -> str:
        try:
            return "" if self.path.is_symlink() else self.path.read_text("utf-8", "replace")
        except OSError:
            return ""

    def _holder(self) -> str:
        """Who holds the lock; a foreign lock is known by its age alone; "" if it is gone."""
        try:
            return self._read() or f"foreign {self.path.lstat().st_mtime_ns}"
        except OSError:
            return ""

    def _break(self, holder: str) -> None:
        log.warning("taking over the lock %s, which its holder left behind", self.path)
        aside = self.path.with_name(f"{self.path.name}.{uuid.uuid4().hex}")
        if self._holder() != holder:
            return  # its holder or another waiter was faster
        try:
            self.path.rename(aside)
            aside.unlink()
        except FileNotFoundError:
            return


def _is_holder_alive(holder: str) -> bool | None:
    """Whether the lock's holder lives; None if that cannot be known from here."""
    host, pid, start, *_ = [*holder.split(), "", "", ""]
    if host != socket.gethostname() or not pid.isdigit():
        return None
    return is_alive(int(pid), start)


def _likely_cause(alive: bool | None) -> str:
    if alive:
        return "another process is writing to this study"
    return f"probably left behind by a killed process; taken over after {GRACE_S:.0f} s"


class JournalFile(BaseJournalBackend):
    """A journal file that says which line is damaged, and repairs an unfinished last one.

    Without that, a writer killed within a line makes the file unreadable for good as soon as
    the next line is appended to the torn one.
    """

    def __init__(self, path: Path, lock: JournalLock) -> None:
        self._path = path
        self._lock = lock
        self._read = 0, 0  # lines read so far, and where the next one begins
        self._gathered: list[dict[str, Any]] | None = None

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """The operations from a number on; a line without its end is none yet.

        Raises:
            StorageError: Names the first line that is no operation.
        """
        number, offset = self._read if self._read[0] <= log_number_from else (0, 0)
        with self._path.open("rb") as file:
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._read = number, offset = number + 1, offset + len(line)
                if number > log_number_from:
                    yield self._operation(line)

    def _operation(self, line: bytes) -> dict[str, Any]:
        try:
            # As `json.loads` would, which looks at every line's encoding first.
            entry = _decode(line.decode("utf-8", "surrogatepass"))
        except (ValueError, RecursionError):
            raise self.damage() from None
        if not isinstance(entry, dict) or "op_code" not in entry or "worker_id" not in entry:
            raise self.damage()
        return entry

    def damage(self) -> StorageError:
        """What to say if the line read last cannot be applied."""
        return StorageError(
            f"{self._path}:{self._read[0]}: not a line of a journal; nothing was changed: restore "
            "the file from a copy, or start a new study with --study"
        )

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append operations under the lock: all of them, or none if there is no room.

        Raises:
            StorageError: They could not be written.
        """
        if self._gathered is not None:
            self._gathered += logs
            return
        lines = "".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in logs)
        self._lock.acquire()
        try:
            drop_torn_line(self._path)
            _append(self._path, lines.encode())
        except OSError as error:
            raise StorageError(f"{self._path}: {error.strerror}") from error
        finally:
            self._lock.release()

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Append what is written meanwhile at the end, at once; nothing if that is not reached."""
        self._gathered = []
        try:
            yield
            logs, self._gathered = self._gathered, None
        finally:
            self._gathered = None
        self.append_logs(logs)

    def repair(self) -> None:
        """Drop what a killed writer left unfinished."""
        self._lock.acquire()
        try:
            drop_torn_line(self._path)
        finally:
            self._lock.release()


def _append(path: Path, data: bytes) -> None:
    with path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(size)
            raise


def drop_torn_line(path: Path) -> None:
    """Cut a last line without its end; its writer died before anyone was told it was kept."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0:
            return
        file.seek(-1, os.SEEK_END)
        if file.read(1) == b"\n":
            return
        file.seek(0)
        keep = file.read().rfind(b"\n") + 1
        file.truncate(keep)
    log.warning(
        "%s: dropped an unfinished last line of %d bytes, left by a killed writer",
        path,
        size - keep,
    )
