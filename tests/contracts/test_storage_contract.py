"""What every storage must do; a new one inherits `StorageContract` and says its URL."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.core.clock import VirtualClock
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, Recommendation
from autotune.search.lease import GONE_S, LeaseWatch
from autotune.search.study import Asked, StopReason, StoredStudy, Study
from autotune.space.search_space import Parameter

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "search"), str(ROOT / "benchmarks")]
from postgresql import Server  # noqa: E402
from search_fakes import FINGERPRINT, make_space, record_of, start_worker  # noqa: E402

EXTRA = (("instance_mode", "process"),)


class StorageContract:
    """Subclasses give the fixture `url`."""

    def open(self, url: str, directory: Path, trials: int = 40) -> Study:
        space = make_space(trials=trials, storage=url)
        return Study.open(space, directory, fingerprint=FINGERPRINT)

    def test_records_come_back_as_they_were_told(self, url: str, tmp_path: Path) -> None:
        study = self.open(url, tmp_path / "s")
        told = []
        for outcome in ("ok", "over_limit", "oom", "crashed", "interrupted"):
            asked = study.ask()
            assert isinstance(asked, Asked)
            told.append(study.tell(record_of(asked.number, asked.config, outcome)))
        again = StoredStudy.load("s", tmp_path / "s", storage=url)
        assert again.records() == tuple(told)
        assert again.space_text == "study: s"
        assert again.fingerprint == FINGERPRINT

    def test_recommendation_is_kept_and_replaced(self, url: str, tmp_path: Path) -> None:
        study = self.open(url, tmp_path / "s")
        assert study.recommendation() is None
        for status in ("infeasible", "confirmed"):
            study.save_recommendation(
                Recommendation(status=status, record=record_of(0, Config()), reasons=("why",))
            )
            kept = self.open(url, tmp_path / "s").recommendation()
            assert kept is not None
            assert kept.status == status
            assert kept.record == record_of(0, Config())

    def test_resuming_goes_on_where_it_stopped(self, url: str, tmp_path: Path) -> None:
        first = self.open(url, tmp_path / "s", trials=6)
        for _ in range(4):
            asked = first.ask()
            assert isinstance(asked, Asked)
            first.tell(record_of(asked.number, asked.config))
        second = self.open(url, tmp_path / "s", trials=6)
        assert any("4 of 6 trials done, 2 to go" in note for note in second.notes)
        for _ in range(2):
            asked = second.ask()
            assert isinstance(asked, Asked)
            second.tell(record_of(asked.number, asked.config))
        assert second.ask() is StopReason.TRIALS
        assert self.open(url, tmp_path / "s", trials=6).ask() is StopReason.TRIALS
        assert [r.number for r in second.records()] == [0, 1, 2, 3, 4, 5]

    def test_changed_choices_are_carried_over(self, url: str, tmp_path: Path) -> None:
        study = self.open(url, tmp_path / "s")
        asked = study.ask()
        assert isinstance(asked, Asked)
        study.tell(record_of(asked.number, asked.config))
        space = make_space(storage=url, sampler="grid")
        params = (
            *space.params,
            Parameter(name="instance_mode", choices=("process", "thread")),
            Parameter(name="cores_per_instance", choices=(1, 2)),
        )
        space = replace(space, params=params, baseline=Config(cores_per_instance=1, extra=EXTRA))
        changed = Study.open(space, tmp_path / "s", fingerprint=FINGERPRINT)
        asked = changed.ask()
        assert isinstance(asked, Asked)
        changed.tell(record_of(asked.number, asked.config))
        assert {r.verdict.outcome for r in changed.records()} == {Outcome.OK}
        assert [r.config.extra for r in changed.records()] == [(), EXTRA]

    def test_the_trial_of_a_worker_elsewhere_is_taken_up_when_it_falls_silent(
        self, url: str, tmp_path: Path
    ) -> None:
        silent, other = self.open(url, tmp_path / "s"), self.open(url, tmp_path / "s")
        clock = VirtualClock()
        other._watch = LeaseWatch(clock.now_s)
        asked = silent.ask()
        assert isinstance(asked, Asked)
        trial_id = silent._running[asked.number]
        lease = {**silent.storage.get_trial(trial_id).user_attrs["lease"], "host": "elsewhere"}
        silent.storage.set_trial_user_attr(trial_id, "lease", lease)
        seen = other.ask()
        assert isinstance(seen, Asked) and seen.config != asked.config
        assert other.is_unsure() and other.records() == ()
        clock.advance(GONE_S - 1)
        silent._renew(trial_id, lease)
        assert not other.is_unsure(), "it has been heard of"
        clock.advance(GONE_S + 1)
        taken = other.ask()
        assert isinstance(taken, Asked) and taken.config == asked.config
        assert [r.verdict.outcome for r in other.records()] == [Outcome.LOST]
        silent.tell(record_of(asked.number, asked.config))
        assert [r.verdict.outcome for r in other.records()] == [Outcome.LOST], "it came too late"

    def test_a_result_is_kept_whole_or_not_at_all(
        self, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        study = self.open(url, tmp_path / "s")
        asked = study.ask()
        assert isinstance(asked, Asked)
        kind = type(study.storage)
        with monkeypatch.context() as patch:
            patch.setattr(kind, "set_trial_state_values", _dies)
            with pytest.raises(KeyboardInterrupt):
                study.tell(record_of(asked.number, asked.config))
        trial = StoredStudy.load("s", tmp_path / "s", storage=url)._trials()[0]
        assert trial.user_attrs["outcome"] == "running" and "record" not in trial.user_attrs
        study.tell(record_of(asked.number, asked.config))
        assert [r.verdict.outcome for r in study.records()] == [Outcome.OK]

    def test_eight_workers_that_start_together_share_the_trials(
        self, url: str, tmp_path: Path
    ) -> None:
        workers = [start_worker(url, tmp_path / "s", 8, 0.05) for _ in range(8)]
        for worker in workers:
            output, _ = worker.communicate(timeout=120)
            assert worker.returncode == 0, output
        records = StoredStudy.load("s", tmp_path / "s", storage=url).records()
        assert [r.number for r in records] == list(range(8))
        assert {r.verdict.outcome for r in records} <= {Outcome.OK, Outcome.OVER_LIMIT}
        assert max(Counter(r.config for r in records).values()) == 1


def _dies(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


class TestJournal(StorageContract):
    @pytest.fixture
    def url(self) -> str:
        return "journal"


class TestSqlite(StorageContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/t.db"


class TestPostgresql(StorageContract):
    @pytest.fixture
    def url(self, postgresql: str) -> str:
        import sqlalchemy

        engine = sqlalchemy.create_engine(postgresql, isolation_level="AUTOCOMMIT")
        name = f"t{os.urandom(6).hex()}"
        with engine.connect() as connection:
            connection.execute(sqlalchemy.text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return postgresql.replace("/postgres?", f"/{name}?")

    def test_a_dropped_connection_loses_no_result(self, url: str, tmp_path: Path) -> None:
        import sqlalchemy

        study = self.open(url, tmp_path / "s")
        asked = study.ask()
        assert isinstance(asked, Asked)
        killer = sqlalchemy.create_engine(url)
        with killer.connect() as connection:
            killed = connection.execute(
                sqlalchemy.text(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            ).scalar()
        assert killed
        study.tell(record_of(asked.number, asked.config))
        assert [r.number for r in study.records()] == [0]
        killer.dispose()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """A server of our own on a socket in a temporary directory."""
    pytest.importorskip("psycopg", reason="the driver psycopg is not installed")
    if not Server.program():
        pytest.skip("PostgreSQL is not installed")
    with Server() as server:
        yield server.url
