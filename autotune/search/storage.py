"""Where a study is kept: a journal file beside its report, SQLite, or a database server."""

from __future__ import annotations

import errno
import fcntl
import logging
import re
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, unquote_plus

import optuna
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages.journal import JournalStorage

from autotune.core.collector import uncollected
from autotune.core.errors import StorageError, UsageError
from autotune.core.text import without_secrets
from autotune.search.journal import JournalFile, JournalLock

log = logging.getLogger(__name__)
T = TypeVar("T")

JOURNAL_NAME = "study.journal"
BUSY_TIMEOUT_S = 20.0  # how long SQLite waits for a lock of another process
CONNECT_TIMEOUT_S = 10
OPEN_ATTEMPTS = 5
_OPEN_PAUSE_S = 0.2
AWAY_S = 60.0  # that a server may be away, being started again, before a study stops
MAX_PAUSE_S = 5.0
_within = threading.local()  # `transaction`: this thread is within one of `together`


class _GivenUp(Exception):
    """A part of a transaction failed; its cause says why.

    Optuna would take back all of it and try that part again by itself, after the lock that came
    with the transaction is gone, and write what another worker has decided otherwise meanwhile.
    """


class NoStorageError(StorageError):
    """There is nothing yet where a study was to be read."""


def open_storage(url: str, study_dir: Path, *, read_only: bool = False) -> BaseStorage:
    """Open a study's storage, making what is missing, and check that it can be used.

    Args:
        url: "journal" (a file in `study_dir`), sqlite:///path (relative to the working
            directory) or postgresql+psycopg://user:password@host/database.
        read_only: Change nothing; a storage that is not there is a `NoStorageError`.
    Raises:
        UsageError: As of `check_url`.
        StorageError: One line with the cause, the password left out.
    """
    check_url(url)
    if url == "journal":
        return _open_journal(study_dir, read_only=read_only)
    with storage_errors(url):
        return _open_database(_with_driver(url), read_only=read_only)


def check_url(url: str) -> None:
    """Refuse what names no storage on any machine.

    Raises:
        UsageError: One line with what can be written, the password left out.
    """
    if url == "journal":
        return
    if "://" not in url:
        raise UsageError(
            f"storage {url!r} is unknown; write journal, sqlite:///file.db or "
            "postgresql+psycopg://user:password@host/database"
        )
    import sqlalchemy
    import sqlalchemy.exc

    try:
        parsed = sqlalchemy.make_url(_with_driver(url))
        parsed.get_dialect()
    except ImportError:
        return  # the driver's own matter
    except sqlalchemy.exc.NoSuchModuleError:
        raise UsageError(f"storage {shown(url)}: no such kind of database") from None
    except (sqlalchemy.exc.ArgumentError, ValueError) as error:
        raise UsageError(f"storage {shown(url)}: {_cause(error, url)}") from None
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise UsageError("storage sqlite: a file is needed, as in sqlite:///study.db")


def _with_driver(url: str) -> str:
    return re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", url)


def from_anywhere(url: str) -> str:
    """The storage's URL such that it does not depend on the working directory."""
    scheme, separator, path = url.partition(":///")
    if not scheme.startswith("sqlite") or not path:
        return url
    return f"{scheme}{separator}{Path(path).absolute()}"


def shown(url: str) -> str:
    """The storage's URL without its password."""
    return without_secrets(url)


@contextmanager
def storage_errors(url: str) -> Iterator[None]:
    """Turn every error of a storage or its driver into a StorageError of one line."""
    try:
        yield
    except (StorageError, UsageError):
        raise
    except Exception as error:
        if not isinstance(error, _of_storages()):
            raise
        raise StorageError(f"storage {shown(url)}: {_cause(error, url)}") from None


def _of_storages() -> tuple[type[Exception], ...]:
    errors = (
        optuna.exceptions.StorageInternalError,
        ImportError,
        OSError,
        RuntimeError,
        ValueError,
    )
    if "sqlalchemy" not in sys.modules:  # a journal needs none of it, and it takes long to load
        return errors
    import sqlalchemy.exc

    return (*errors, sqlalchemy.exc.SQLAlchemyError)


def retried(action: Callable[[], T]) -> T:
    """Run an action on the storage, again while its server is away: `AWAY_S` at most.

    The action may have been done, or half done, although it failed: it must bear being repeated.
    A part of something that is kept as a whole is not repeated by itself.
    """
    if getattr(_within, "transaction", False):
        return action()
    until_s, pause_s = time.monotonic() + AWAY_S, 0.0
    while True:
        try:
            return action()
        except Exception as error:
            if not _is_disconnect(error) or time.monotonic() + pause_s > until_s:
                raise
        if pause_s == 0:
            log.warning("the connection to the storage was dropped; connecting again")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s + 0.1, MAX_PAUSE_S)


@contextmanager
def together(storage: BaseStorage) -> Iterator[None]:
    """Make several writes one, kept as a whole or not at all, by this thread alone.

    A journal appends them under one lock, a database commits them once. What they change is read
    back only behind them.
    """
    backend = getattr(storage, "_backend", None)
    if isinstance(storage, RDBStorage):
        with _one_transaction(storage):
            yield
    elif isinstance(backend, JournalFile):
        with backend.gathered():
            yield
    else:
        yield


@contextmanager
def _one_transaction(storage: RDBStorage) -> Iterator[None]:
    if getattr(_within, "transaction", False):
        yield
        return
    # Optuna commits after every write, in the one session that each thread has, and closes it.
    session = storage.scoped_session()
    commit, close, rollback = session.commit, session.close, session.rollback

    def keep_for_later() -> None:
        session.flush()
        session.expire_all()  # as a commit does, so that what was written is read again

    def give_up() -> None:
        raise _GivenUp from sys.exc_info()[1]

    session.commit, session.close = keep_for_later, lambda: None  # type: ignore[method-assign]
    session.rollback = give_up  # type: ignore[method-assign]
    _within.transaction = True
    try:
        yield
        commit()
    except _GivenUp as error:
        rollback()
        raise error.__cause__ or error from None
    except BaseException:
        rollback()
        raise
    finally:
        _within.transaction = False
        del session.commit, session.close, session.rollback
        close()


@contextmanager
def alone(storage: BaseStorage, study_dir: Path, name: str) -> Iterator[None]:
    """As `exclusive`, for what reads the study and then writes to it.

    On PostgreSQL lock, reads and writes are one transaction: a server that is started again in
    the middle takes all of it back, so that nobody writes who has lost the lock.
    """
    if not _is_postgresql(storage):
        with exclusive(storage, study_dir, name):
            yield
        return
    import sqlalchemy

    assert isinstance(storage, RDBStorage)
    with _one_transaction(storage):
        key = sqlalchemy.text("SELECT pg_advisory_xact_lock(hashtext(:name))")
        storage.scoped_session().execute(key, {"name": f"autotune {name}"})
        yield


def _is_postgresql(storage: BaseStorage) -> bool:
    return isinstance(storage, RDBStorage) and storage.engine.dialect.name == "postgresql"


@contextmanager
def exclusive(storage: BaseStorage, study_dir: Path, name: str) -> Iterator[None]:
    """Let only one worker of a study in at a time.

    On PostgreSQL this reaches across hosts, else across the processes that see `study_dir`.
    The lock dies with its holder.
    """
    if _is_postgresql(storage):
        assert isinstance(storage, RDBStorage)
        with _advisory_lock(storage, name):
            yield
        return
    study_dir.mkdir(parents=True, exist_ok=True)
    with (study_dir / "ask.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            log.warning("%s has no file locks; run one worker per study there", study_dir)
        yield


@contextmanager
def _advisory_lock(storage: RDBStorage, name: str) -> Iterator[None]:
    import sqlalchemy

    key = sqlalchemy.text("SELECT pg_advisory_lock(hashtext(:name))")
    free = sqlalchemy.text("SELECT pg_advisory_unlock(hashtext(:name))")
    with storage.engine.connect() as connection:
        connection.execute(key, {"name": f"autotune {name}"})
        try:
            yield
        finally:
            connection.execute(free, {"name": f"autotune {name}"})


def _open_journal(study_dir: Path, *, read_only: bool) -> BaseStorage:
    path = study_dir / JOURNAL_NAME
    lock = JournalLock(path)
    backend = JournalFile(path, lock)
    for file in (path, lock.path):  # reading a pipe would wait for ever
        if file.exists() and not file.is_file():
            raise StorageError(f"{file}: this is no file; move it away, then run it again")
    try:
        if read_only and not path.is_file():
            raise NoStorageError(f"{path}: there is no such study")
        if not read_only:
            study_dir.mkdir(parents=True, exist_ok=True)
            path.open("ab").close()
        with uncollected():
            storage = JournalStorage(backend)
        if not read_only:
            backend.repair()  # once all else is known to be sound
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError):
        raise backend.damage() from None  # an operation that lacks something
    return storage


def _open_database(url: str, *, read_only: bool) -> BaseStorage:
    import sqlalchemy

    kwargs = _engine_kwargs(sqlalchemy.make_url(url), read_only=read_only)
    for attempt in range(1, OPEN_ATTEMPTS + 1):
        try:
            storage = RDBStorage(url, engine_kwargs=kwargs)
            if not read_only:
                _add_missing_indexes(storage)
            return storage
        except sqlalchemy.exc.DBAPIError as error:
            # Processes that start together race to make the tables; the next look finds them.
            if attempt == OPEN_ATTEMPTS or not _is_race(error):
                raise
            time.sleep(_OPEN_PAUSE_S * attempt)
    raise AssertionError("unreachable")


def _add_missing_indexes(storage: RDBStorage) -> None:
    """Make the indexes that somebody left out who died, or had no room, while making the tables.

    Optuna makes what tables are missing, and with them alone their indexes; without the one on
    names every start would add one more study of the same name.
    """
    from optuna.storages._rdb.models import BaseModel

    for table in BaseModel.metadata.tables.values():
        for index in table.indexes:
            index.create(storage.engine, checkfirst=True)


def _engine_kwargs(url: Any, *, read_only: bool) -> dict[str, Any]:
    if url.get_backend_name() == "sqlite":
        path = Path(url.database or "")
        if path.is_dir():
            raise StorageError(f"storage {url}: {path} is a directory")
        if not path.absolute().parent.is_dir():
            raise StorageError(f"storage {url}: the directory {path.parent} does not exist")
        if read_only and not path.is_file():
            raise NoStorageError(f"storage {url}: there is no such file")
        return {"connect_args": {"timeout": BUSY_TIMEOUT_S}}
    return {"pool_pre_ping": True, "connect_args": {"connect_timeout": CONNECT_TIMEOUT_S}}


def _is_race(error: Exception) -> bool:
    text = str(error).lower()
    return any(word in text for word in ("already exists", "unique constraint", "duplicate key"))


def _is_disconnect(error: BaseException) -> bool:
    """Whether a database's server is away, or has dropped the connection."""
    if "sqlalchemy" not in sys.modules:
        return False
    import sqlalchemy.exc

    wrapped = isinstance(error, optuna.exceptions.StorageInternalError)
    cause = error.__cause__ if wrapped else error
    if not isinstance(cause, sqlalchemy.exc.DBAPIError):
        return False
    is_file = isinstance(cause.orig, sqlite3.Error)  # which may be locked, but is never away
    return cause.connection_invalidated or (
        isinstance(cause, sqlalchemy.exc.OperationalError) and not is_file
    )


def _cause(error: BaseException, url: str) -> str:
    """The first line of what the driver says, with a hint where one helps."""

    innermost = error.__cause__ or error
    if isinstance(error, ImportError) or isinstance(innermost, ImportError):
        return f"its driver is not installed ({innermost}); pip install the driver of this URL"
    original = getattr(innermost, "orig", None) or innermost
    text = next((line for line in str(original).splitlines() if line.strip()), repr(original))
    if "database is locked" in text:
        text = f"locked by another process for more than {BUSY_TIMEOUT_S:.0f} s"
    return _without_password(text.strip(), url)


def _without_password(text: str, url: str) -> str:
    """What a driver says, which may quote the password as it was written, or decoded."""
    found = re.search(r"://[^\s:/?#@]*:(\S*)@", url) or re.search(r"[?&]password=([^&\s]+)", url)
    text, password = shown(text), found.group(1) if found else ""
    for written in filter(None, {password, unquote_plus(password), unquote(password)}):
        text = text.replace(written, "***")
    return text
