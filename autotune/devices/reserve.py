"""Devices for one process at a time, across studies and users of a machine.

A device is held by a lock (`flock`) on a small file whose name says which device it is. The lock
ends with the process that holds it, however that ends, so that nothing has to be tidied up.

The files lie where every user may write, `/run/lock` or else `/tmp`, and every user may lock them;
containers that do not share that directory do not see each other (`AUTOTUNE_LOCK_DIR` names one
that they share).
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import logging
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from autotune.core.errors import UnavailableError
from autotune.core.text import clean
from autotune.core.units import format_duration
from autotune.devices.telemetry import physical_number

log = logging.getLogger(__name__)

LOCK_DIR_VARIABLE = "AUTOTUNE_LOCK_DIR"
PLACES = (Path("/run/lock"), Path("/tmp"))
WAIT_S = 60.0  # for a device that another process has
SAY_AFTER_S = 1.0
LOOK_S = 0.2
MAX_HOLDER_BYTES = 200
MAX_TURNS = 100  # of opening a file that its last holder is just removing


class Reservation:
    """Devices that this process has to itself until `close`, or until it ends."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, Path]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """What is held."""
        return tuple(self._held)

    def add(self, names: Sequence[str], *, wait_s: float = WAIT_S) -> None:
        """Reserve further devices, all of them or none; those held already stay so.

        Args:
            names: Such as "npu:0" and "cuda:1", or "core:3" for a core of a CPU.
            wait_s: How long to wait for another holder, which is said.
        Raises:
            UnavailableError: Another process has one of them; the message says which.
        """
        wanted = [name for name in names if name not in self._held]
        began_s, said = time.monotonic(), False
        while (taken := self._try(wanted)) is not None:
            waited_s = time.monotonic() - began_s
            if waited_s >= wait_s:
                raise UnavailableError(
                    f"{taken}; two measurements at once would disturb each other: wait for it, or "
                    "choose another device"
                )
            if not said and waited_s > SAY_AFTER_S:
                said = True
                log.warning("%s; waiting up to %s", taken, format_duration(wait_s))
            time.sleep(LOOK_S)

    def close(self) -> None:
        """Give everything back."""
        while self._held:
            _, (handle, path) = self._held.popitem()
            with contextlib.suppress(OSError):
                path.unlink()  # while it is ours; another user's file stays
            os.close(handle)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _try(self, names: Sequence[str]) -> str | None:
        """Take all of them; else who has one, and nothing is taken."""
        with contextlib.ExitStack() as undo:
            taken = Reservation()
            undo.callback(taken.close)
            for name in names:
                path = lock_dir() / f"autotune-{_file_name(name)}.lock"
                handle = _locked(path)
                if handle is None:
                    return f"{name} is in use by {_holder(path)}"
                taken._held[name] = (handle, path)
            undo.pop_all()
            self._held |= taken._held
        return None


def lock_dir() -> Path:
    """Where the locks of this machine's devices are: the same for all its users.

    Raises:
        UnavailableError: `AUTOTUNE_LOCK_DIR` names no directory.
    """
    own = os.environ.get(LOCK_DIR_VARIABLE)
    if own:
        if not Path(own).is_dir():
            raise UnavailableError(f"{LOCK_DIR_VARIABLE}={own}: there is no such directory")
        return Path(own)
    return next((place for place in PLACES if _is_for_all(place)), PLACES[-1])


def _is_for_all(place: Path) -> bool:
    try:
        return place.stat().st_mode & 0o1777 == 0o1777
    except OSError:
        return False


def _file_name(name: str) -> str:
    """The device by the number that the driver gives it: frameworks may see a part of them."""
    kind, _, index = name.partition(":")
    known = physical_number(kind, int(index)) if index.isdecimal() else index
    return f"{kind}-{known}" if index else kind


def _locked(path: Path) -> int | None:
    """A handle on the file with its lock; None if another process has it.

    Raises:
        UnavailableError: It cannot be opened.
    """
    for _ in range(MAX_TURNS):
        try:
            handle = _opened(path)
        except FileNotFoundError:
            continue  # removed, or made by another one, just now
        except OSError as error:
            raise UnavailableError(f"{path}: {error.strerror}; remove it") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        if _is_still(handle, path):
            _sign(handle)
            return handle
        os.close(handle)
    raise UnavailableError(f"{path}: others keep replacing it")


def _opened(path: Path) -> int:
    """Open the file, made if need be, for whatever this user may do with it.

    Raises:
        OSError: It is no plain file, or it came or went meanwhile (FileNotFoundError).
    """
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path, flags | os.O_RDWR)
    except FileNotFoundError:
        # Where all may write, the kernel lets nobody *create* what is another's already.
        try:
            handle = os.open(path, flags | os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            raise FileNotFoundError from None
        os.fchmod(handle, 0o666)  # whatever this user's mask is
    except PermissionError:
        handle = os.open(path, flags | os.O_RDONLY)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(0, "no plain file")
    return handle


def _is_still(handle: int, path: Path) -> bool:
    """Whether the file that was locked is the one that the next will find."""
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except OSError:
        return False


def _sign(handle: int) -> None:
    """Say in the file who holds it; for people only."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    with contextlib.suppress(OSError):
        os.truncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} of {user}".encode(), 0)


def _holder(path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = clean(file.read(MAX_HOLDER_BYTES).decode("utf-8", "replace"))
    except OSError:
        text = ""
    return text.strip() or "another process"
