"""What is kept beside a study's journal: where it is stored, and its report."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.apps.report import report
from autotune.apps.run import run
from autotune.apps.show import show
from autotune.apps.store import study_dir
from autotune.core.errors import StorageError, UsageError
from autotune.results.report import Format
from autotune.search import storage as storage_module
from autotune.search.study import Study
from autotune.space.loader import load_space

SpaceFile = Callable[..., Path]
SHORT = ("confirm=false", "budget.trials=2")


def test_a_study_in_a_file_is_found_from_any_directory(
    space_file: SpaceFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(load_space(space_file(), [*SHORT, "storage=sqlite:///s.db"]))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert show("small", studies_dir=Path("../studies")).trial_count == 2


def test_back_on_the_journal_the_journal_is_shown(space_file: SpaceFile) -> None:
    path = space_file()
    run(load_space(path, [*SHORT, "storage=sqlite:///s.db"]))
    run(load_space(path, [*SHORT, "budget.trials=3"]))
    assert show("small").trial_count == 3


@pytest.mark.parametrize("name", ["x" * 300, "批" * 100])
def test_a_name_that_no_file_can_have_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="longer than the name of a study can be"):
        study_dir(tmp_path, name)


def test_a_report_that_cannot_be_written_leaves_the_study_and_nothing_else(
    space_file: SpaceFile,
) -> None:
    place = Path("studies/small")
    (place / "report.html").mkdir(parents=True)
    for write in (lambda: run(load_space(space_file(), SHORT)), lambda: report("small")):
        with pytest.raises(StorageError, match=r"report\.html is .* autotune show small prints it"):
            write()
        assert show("small").trial_count == 2
        assert not list(place.glob(".report*"))


def test_a_note_of_the_storage_that_cannot_be_written_is_said(space_file: SpaceFile) -> None:
    Path("studies/small/storage.txt").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"storage\.txt is a directory"):
        run(load_space(space_file(), [*SHORT, "storage=sqlite:///s.db"]))


@pytest.mark.parametrize("text", ["", "x" * 100_000, "sqlight:///s.db\nmore"])
def test_a_note_of_the_storage_that_names_none_is_told_by_its_file(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "storage.txt").write_text(text)
    with pytest.raises(UsageError, match=r"small/storage\.txt: storage") as caught:
        show("small", studies_dir=tmp_path)
    assert len(str(caught.value)) < 600


def test_raw_samples_that_cannot_be_kept_are_said_once_and_end_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "v.yaml").write_text(
        "workload: {simulated: recommender_a3}\nparams: {batch_size: [1, 2, 4]}\n"
        "budget: {trials: 3}\nconfirm: false\n"
    )
    place = tmp_path / "studies" / "v"
    place.mkdir(parents=True)
    (place / "samples").write_text("no folder")
    assert run(load_space("v.yaml")).trial_count == 3
    said = [r.getMessage() for r in caplog.records if "raw samples" in r.getMessage()]
    assert len(said) == 1
    assert "studies/v/samples" in said[0]


def test_a_storage_in_use_is_waited_for_once(
    space_file: SpaceFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = load_space(space_file(), [*SHORT, "storage=sqlite:///s.db"])
    run(space)
    monkeypatch.setattr(storage_module, "BUSY_TIMEOUT_S", 0.2)
    monkeypatch.setattr(Study, "open", lambda *_args, **_kwargs: pytest.fail("tried again"))
    holder = sqlite3.connect(tmp_path / "s.db")
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StorageError, match="locked by another process"):
        run(space)
    holder.close()


def test_a_report_in_another_language_or_form_has_a_file_of_its_own(space_file: SpaceFile) -> None:
    run(load_space(space_file(), SHORT))
    english = Path("studies/small/report.html").read_text("utf-8")
    forms: tuple[tuple[str, Format, str], ...] = (
        ("zh", "html", "report.zh.html"), ("en", "md", "report.md")
    )  # fmt: skip
    for lang, form, name in forms:
        written = report("small", lang=lang, form=form).report
        assert written == Path("studies/small") / name and written.is_file()
    assert 'lang="zh-Hans"' in Path("studies/small/report.zh.html").read_text("utf-8")
    assert Path("studies/small/report.html").read_text("utf-8") == english
    with pytest.raises(UsageError, match="language 'xx' is unknown"):
        report("small", lang="xx")
