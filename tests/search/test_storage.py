"""Storage that cannot be used says why in one line; locks of others are waited for."""

from __future__ import annotations

import logging
import os
import re
import resource
import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy
from optuna.storages import RDBStorage
from search_fakes import FINGERPRINT, make_space, record_of

from autotune.core.errors import StorageError, UsageError
from autotune.search import storage as storage_module
from autotune.search.storage import open_storage, shown, together
from autotune.search.study import Asked, StoredStudy, Study


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("sqlite:////proc/x.db", "unable to open database file"),
        ("sqlite:///no/such/dir/x.db", "the directory no/such/dir does not exist"),
        ("postgresql://u:secret@127.0.0.1:1/d", "refused"),
        ("mysql://u:secret@127.0.0.1/d", "driver is not installed"),
        ("sqlite:///{tmp}", "is a directory"),
        ("sqlite:///{tmp}/text.txt", "not a database"),
    ],
)
def test_an_unusable_storage_says_why_in_one_line(url: str, cause: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("not a database, but long enough to have a header\n" * 50)
    with pytest.raises(StorageError) as caught:
        open_storage(url.format(tmp=tmp_path), tmp_path / "s")
    message = str(caught.value)
    assert cause in message
    assert "\n" not in message
    assert "secret" not in message
    assert caught.value.exit_code == 4
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("foo", "unknown"),
        ("/some/path", "unknown"),
        ("sqlite://", "a file is needed"),
        ("sqlite:///:memory:", "a file is needed"),
        ("nonsense://u:secret@h/d", "no such kind of database"),
        ("sqlite+nonsense:///x.db", "no such kind of database"),
        ("postgresql+psycopg://u:secret@127.0.0.1:x/d", "storage"),
    ],
)
def test_what_names_no_storage_is_a_mistake_of_the_user(
    url: str, cause: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=cause) as caught:
        open_storage(url, tmp_path / "s")
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_url_is_shown_without_its_password() -> None:
    assert shown("postgresql://u:p@ss@h/d").startswith("postgresql://u:***@")
    assert shown("sqlite:///x.db") == "sqlite:///x.db"


def test_a_directory_that_cannot_be_written_is_an_immediate_error() -> None:
    began_s = time.process_time()
    with pytest.raises(StorageError, match="/proc/"):
        open_storage("journal", Path("/proc/self/fd/studies"))
    assert time.process_time() - began_s < 1


def test_reading_a_study_that_is_not_there_makes_nothing(tmp_path: Path) -> None:
    for url in ("journal", f"sqlite:///{tmp_path}/x.db"):
        with pytest.raises(StorageError, match="there is no such"):
            open_storage(url, tmp_path / "s", read_only=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["study.journal", "study.journal.lock"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("read_only", [True, False])
def test_what_is_no_file_is_named_and_stays(
    name: str, make: Callable[[Path], None], read_only: bool, tmp_path: Path
) -> None:
    make(tmp_path / name)
    with pytest.raises(StorageError, match=f"{re.escape(name)}: this is no file"):
        open_storage("journal", tmp_path, read_only=read_only)
    assert (tmp_path / name).exists()


class TestJournalLock:
    def told_while(self, lock: str, tmp_path: Path, *, link: bool) -> float:
        """Seconds to open a study whose lock exists."""
        (tmp_path / "s").mkdir()
        path = tmp_path / "s" / "study.journal.lock"
        if link:
            path.symlink_to("study.journal")
        else:
            path.write_text(lock)
        began_s = time.monotonic()
        Study.open(make_space(), tmp_path / "s", fingerprint=FINGERPRINT)
        return time.monotonic() - began_s

    def test_a_foreign_lock_is_named_while_it_is_waited_for_and_taken_over(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        began_s = time.time()
        waited_s = self.told_while("", tmp_path, link=True)
        assert waited_s > 4  # until it counts as left behind
        said = next(r for r in caplog.records if "waiting for the lock" in r.getMessage())
        assert said.created - began_s < waited_s / 2
        assert said.levelno == logging.WARNING
        assert "study.journal.lock" in said.getMessage()
        assert "killed process" in said.getMessage()

    def test_the_lock_of_a_dead_process_is_taken_over_at_once(self, tmp_path: Path) -> None:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        lock = f"{socket.gethostname()} {pid} 1 token"
        assert self.told_while(lock, tmp_path, link=False) < 2

    def test_the_lock_of_a_live_process_is_respected(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from autotune.search import journal
        from autotune.search.process import process_start

        monkeypatch.setattr(journal, "LOCK_WAIT_S", 0.5)
        monkeypatch.setattr(journal, "GRACE_S", 0.1)
        pid = os.getpid()
        lock = f"{socket.gethostname()} {pid} {process_start(pid)} token"
        with pytest.raises(StorageError, match=r"held for .* by a live process"):
            self.told_while(lock, tmp_path, link=False)


class TestTornLine:
    def journal(self, tmp_path: Path) -> Path:
        study = Study.open(make_space(), tmp_path / "s", fingerprint=FINGERPRINT)
        for _ in range(2):
            asked = study.ask()
            assert isinstance(asked, Asked)
            study.tell(record_of(asked.number, asked.config))
        return tmp_path / "s" / "study.journal"

    @pytest.mark.parametrize("cut", [1, 10, 100])
    def test_is_repaired_and_said(
        self, cut: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = self.journal(tmp_path)
        path.write_bytes(path.read_bytes()[:-cut])
        study = Study.open(make_space(), tmp_path / "s", fingerprint=FINGERPRINT)
        assert any("unfinished last line" in r.getMessage() for r in caplog.records)
        assert len(study.records()) >= 1
        asked = study.ask()
        assert isinstance(asked, Asked)
        study.tell(record_of(asked.number, asked.config))
        again = Study.open(make_space(), tmp_path / "s", fingerprint=FINGERPRINT)
        assert asked.number in [r.number for r in again.records()]

    def test_is_repaired_by_a_writer_that_was_already_open(self, tmp_path: Path) -> None:
        self.journal(tmp_path)
        study = Study.open(make_space(), tmp_path / "s", fingerprint=FINGERPRINT)
        with (tmp_path / "s" / "study.journal").open("ab") as file:
            file.write(b'{"op_code":4,"worker_id":"x')
        asked = study.ask()
        assert isinstance(asked, Asked)
        study.tell(record_of(asked.number, asked.config))
        again = Study.open(make_space(), tmp_path / "s", fingerprint=FINGERPRINT)
        assert len(again.records()) == 3

    @pytest.mark.parametrize(
        "damage",
        [
            b"rubbish", b"", b"null", b"[]", b"{}", b'"abc"', b"7", b"1" * 6000, b"[" * 200_000,
            b"\0" * 300, b'{"op_code": "s\xe9"}', bytes(range(128, 256)),
            b'{"op_code":99,"worker_id":"x"}', b'{"op_code":4,"worker_id":"x"}',
            b'{"op_code":[],"worker_id":"x"}', b'{"op_code":2,"worker_id":"x","study_id":[]}',
            b'{"op_code":0,"worker_id":"x","study_name":"t","directions":[9]}',
        ],
        ids=lambda damage: str(damage[:40]),
    )  # fmt: skip
    @pytest.mark.parametrize("end", [False, True])
    def test_damage_is_named_and_nothing_is_lost(
        self, damage: bytes, end: bool, tmp_path: Path
    ) -> None:
        path = self.journal(tmp_path)
        lines = path.read_bytes().splitlines(keepends=True)
        place = len(lines) if end else 3
        damaged = b"".join([*lines[:place], damage + b"\n", *lines[place:], b'{"torn'])
        path.write_bytes(damaged)
        said = rf"study\.journal:{place + 1}: not a line of a journal.*start a new study"
        with pytest.raises(StorageError, match=said):
            StoredStudy.load("s", tmp_path / "s")
        with pytest.raises(StorageError, match=said):
            Study.open(make_space(), tmp_path / "s", fingerprint=FINGERPRINT)
        assert path.read_bytes() == damaged


def test_a_journal_without_room_keeps_what_it_has_and_goes_on_when_there_is(tmp_path: Path) -> None:
    study = Study.open(make_space(), tmp_path / "s", fingerprint=FINGERPRINT)
    asked = study.ask()
    assert isinstance(asked, Asked)
    path = tmp_path / "s" / "study.journal"
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 300, limits[1]))
    try:
        with pytest.raises(StorageError, match=r"study\.journal: "):
            study.tell(record_of(asked.number, asked.config))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert list(path.parent.glob("*.lock")) == [path.parent / "ask.lock"]
    study.tell(record_of(asked.number, asked.config))
    assert len(StoredStudy.load("s", tmp_path / "s").records()) == 1


class TestSqliteLocks:
    def hold(self, path: Path, free: Callable[[], object]) -> threading.Thread:
        """A thread that locks the database until `free` has returned."""
        held = threading.Event()

        def run() -> None:
            connection = sqlite3.connect(path)
            connection.execute("BEGIN EXCLUSIVE")
            held.set()
            free()
            connection.rollback()
            connection.close()

        thread = threading.Thread(target=run)
        thread.start()
        assert held.wait(20)
        return thread

    def test_a_short_lock_is_waited_for(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/s.db"
        study = Study.open(make_space(storage=url), tmp_path / "s", fingerprint=FINGERPRINT)
        thread = self.hold(tmp_path / "s.db", lambda: time.sleep(2.0))
        asked = study.ask()
        assert isinstance(asked, Asked)
        thread.join()
        thread = self.hold(tmp_path / "s.db", lambda: time.sleep(2.0))
        study.tell(record_of(asked.number, asked.config))
        thread.join()
        assert len(study.records()) == 1

    def test_a_long_lock_is_one_clear_error_and_loses_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(storage_module, "BUSY_TIMEOUT_S", 0.5)
        url = f"sqlite:///{tmp_path}/s.db"
        study = Study.open(make_space(storage=url), tmp_path / "s", fingerprint=FINGERPRINT)
        asked = study.ask()
        assert isinstance(asked, Asked)
        study.tell(record_of(asked.number, asked.config))
        asked_in_vain = threading.Event()
        thread = self.hold(tmp_path / "s.db", lambda: asked_in_vain.wait(60))
        with pytest.raises(StorageError, match="locked by another process"):
            study.ask()
        asked_in_vain.set()
        thread.join()
        assert len(study.records()) == 1


def test_a_database_whose_making_was_cut_short_holds_a_study_once(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    space = make_space(storage=f"sqlite:///{path}")
    open_storage(space.storage, tmp_path)
    with sqlite3.connect(path) as connection:  # the disk was full, or its maker was killed
        connection.execute("DROP INDEX ix_studies_study_name")
    for _ in range(3):
        study = Study.open(space, tmp_path / "s", fingerprint=FINGERPRINT)
    assert study.records() == ()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM studies").fetchone() == (1,)


def test_a_part_of_a_transaction_is_not_tried_again_without_the_rest(tmp_path: Path) -> None:
    """As Optuna does by itself where a server was away for a moment: the lock is lost by then."""
    space = make_space(storage=f"sqlite:///{tmp_path}/s.db")
    study = Study.open(space, tmp_path, fingerprint=FINGERPRINT)
    storage, failures = study.storage, [sqlalchemy.exc.OperationalError("", {}, Exception("away"))]
    assert isinstance(storage, RDBStorage)

    def fail_once(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("INSERT INTO trials") and failures:
            raise failures.pop()

    sqlalchemy.event.listen(storage.engine, "before_cursor_execute", fail_once)
    study_id = study.optuna_study._study_id
    with pytest.raises(sqlalchemy.exc.OperationalError, match="away"), together(storage):
        storage.create_new_trial(study_id)
    assert storage.get_all_trials(study_id) == []
    with together(storage):
        storage.create_new_trial(study_id)
    assert len(storage.get_all_trials(study_id)) == 1
