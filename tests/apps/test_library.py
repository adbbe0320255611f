from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.apps import library
from autotune.apps.library import LIBRARY
from autotune.apps.run import RunInterrupted, run
from autotune.apps.show import show
from autotune.apps.view import View
from autotune.core.records import TrialRecord
from autotune.results.study_result import StudyResult
from autotune.results.summary import standing
from autotune.results.tables import to_json
from autotune.space.loader import load_space

SpaceFile = Callable[..., Path]
SHELF = Path("studies") / LIBRARY


class Watcher(View):
    def __init__(self, stop_after: int = 0) -> None:
        self.notes: list[str] = []
        self._left = stop_after

    def note(self, text: str) -> None:
        self.notes.append(text)

    def trial_finished(self, record: TrialRecord, standing: object) -> None:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt


def study(file: Path, name: str, *overrides: str, view: View | None = None) -> StudyResult:
    words = ["sampler=mechanistic", "confirm=false", f"study={name}", *overrides]
    return run(load_space(file, words), view=view)


def advised(view: Watcher) -> list[str]:
    return [note for note in view.notes if note.startswith("starting from")]


def test_a_second_study_begins_with_what_the_first_found_and_says_so(
    space_file: SpaceFile,
) -> None:
    file = space_file(trials=10)
    first = study(file, "first")
    assert first.warm_start is None and to_json(first)["warm_start"] is None
    assert first.config is not None
    view = Watcher()
    second = study(file, "second", "workload.seed=5", view=view)
    assert len(advised(view)) == 1
    assert "study first" in advised(view)[0] and "warm_start: false" in advised(view)[0]
    assert second.records[0].config == second.facts.baseline
    assert second.records[1].config == first.config
    told = to_json(second)["warm_start"]
    assert told["study"] == "first" and told["agrees"] is True
    again = Watcher()
    assert to_json(study(file, "second", "workload.seed=5", view=again))["warm_start"] == told
    assert not advised(again)
    shown = show("second")
    assert to_json(shown)["warm_start"] == told
    assert ("Warm start", "from study first; its figures held up") in standing(shown)
    assert second.report is not None and "from study first" in second.report.read_text("utf-8")


def test_another_limit_is_named_and_another_model_starts_from_nothing(
    space_file: SpaceFile,
) -> None:
    file = space_file(trials=10)
    study(file, "first")
    view = Watcher()
    result = study(file, "strict", "limits.latency_p99=1500us", view=view)
    assert "though other: limits.latency_p99" in advised(view)[0]
    assert result.config is not None and result.config.batch_size < 16
    Path("other.csv").write_text(Path("grid.csv").read_text("utf-8"), encoding="utf-8")
    view = Watcher()
    assert study(file, "other", "workload.replay=other.csv", view=view).warm_start is None
    assert not advised(view)


@pytest.mark.parametrize("override", ["warm_start=false", "sampler=random", "sampler=grid"])
def test_who_wants_no_advice_gets_none(space_file: SpaceFile, override: str) -> None:
    file = space_file(trials=6)
    study(file, "first")
    view = Watcher()
    assert study(file, "second", override, view=view).warm_start is None
    assert not advised(view)


def test_an_interrupted_study_keeps_its_adviser_whatever_the_library_says_later(
    space_file: SpaceFile,
) -> None:
    file = space_file(trials=10)
    study(file, "first")
    whole = study(file, "whole")
    (path,) = (p for p in SHELF.iterdir() if json.loads(p.read_text("utf-8"))["study"] == "whole")
    path.unlink()
    with pytest.raises(RunInterrupted):
        study(file, "second", view=Watcher(stop_after=4))
    for path in SHELF.iterdir():
        path.unlink()
    study(file, "third", "budget.trials=4")
    result = study(file, "second")
    assert result.warm_start is not None and result.warm_start.study == "first"
    assert [r.config for r in result.records] == [r.config for r in whole.records]


def test_a_study_begun_without_advice_goes_on_without(space_file: SpaceFile) -> None:
    file = space_file(trials=10)
    with pytest.raises(RunInterrupted):
        study(file, "early", view=Watcher(stop_after=3))
    study(file, "other")
    assert study(file, "early").warm_start is None


def test_an_old_study_that_misleads_is_left_after_one_trial(space_file: SpaceFile) -> None:
    file = space_file(trials=10)
    study(file, "first")
    (path,) = SHELF.iterdir()
    kept = json.loads(path.read_text("utf-8"))
    for trial in kept["trials"]:  # what was fastest is slowest
        figures = trial["figures"]
        if figures:
            figures["throughput_items_per_s"] = 1e6 / figures["throughput_items_per_s"]
    path.write_text(json.dumps(kept), encoding="utf-8")
    result = study(file, "second")
    told = to_json(result)["warm_start"]
    assert told["agrees"] is False
    assert ("did not hold up" in dict(standing(result))["Warm start"]) and result.config is not None
    assert result.config.batch_size >= 16


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe\x00",
        b'{"study": 3}',
        b'{"schema_version": 99, "study": "x"}',
        b"[" * 5000,
        b" " * (library.MAX_FILE_BYTES + 1),
    ],
)
def test_a_damaged_file_is_passed_over(
    space_file: SpaceFile, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = space_file(trials=5)
    study(file, "first")
    (path,) = SHELF.iterdir()
    path.write_bytes(damage)
    (SHELF / "folder.json").mkdir()
    view = Watcher()
    assert study(file, "second", view=view).warm_start is None
    assert not advised(view) and str(path) in caplog.text


@pytest.mark.parametrize("where", ["study", "condition"])
def test_text_of_a_file_that_cannot_be_shown_is_passed_over(
    where: str, space_file: SpaceFile, caplog: pytest.LogCaptureFixture
) -> None:
    file = space_file(trials=8)
    study(file, "first")
    (kept,) = Path("studies/.library").glob("*.json")
    data = json.loads(kept.read_text("utf-8"))
    odd = "\x1b[31mred\x07\nnote: all is well"
    if where == "study":
        data["study"] = odd
    else:
        data["conditions"][odd] = "1"
    kept.write_text(json.dumps(data), encoding="utf-8")
    view = Watcher()
    assert study(file, "second", view=view).warm_start is None
    assert not any("all is well" in text for text in (*view.notes, caplog.text))
    assert "a name that cannot be shown" in caplog.text


@pytest.mark.parametrize(
    ("name", "value", "is_used"),
    [
        ("throughput_items_per_s", "-5.0", True),  # the figure alone is left out
        ("throughput_items_per_s", "NaN", True),
        ("ended_at_s", "1e300", False),
    ],
)
def test_impossible_figures_in_a_file_stop_nothing(
    space_file: SpaceFile, name: str, value: str, is_used: bool
) -> None:
    file = space_file(trials=5)
    study(file, "first")
    (path,) = SHELF.iterdir()
    damaged = re.sub(rf'"{name}": [\d.e+]+', f'"{name}": {value}', path.read_text())
    assert damaged != path.read_text()
    path.write_text(damaged)
    second = study(file, "second")
    assert (second.warm_start is not None) == is_used
    assert second.trial_count == 5


def test_the_library_is_bounded_and_its_oldest_go_first(
    space_file: SpaceFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "MAX_FILES", 3)
    file = space_file(trials=4)
    for number in range(5):
        study(file, f"s{number}")
        for path in SHELF.iterdir():
            if json.loads(path.read_text("utf-8"))["study"] == f"s{number}":
                os.utime(path, (number, number))
    names = sorted(json.loads(p.read_text("utf-8"))["study"] for p in SHELF.iterdir())
    assert names == ["s2", "s3", "s4"]
    study(file, "s4")  # the same study under the same conditions is the same file
    assert len(list(SHELF.iterdir())) == 3


def test_a_library_that_cannot_be_written_stops_nothing(
    space_file: SpaceFile, caplog: pytest.LogCaptureFixture
) -> None:
    file = space_file(trials=4)
    Path("studies").mkdir()
    SHELF.write_text("in the way", encoding="utf-8")
    assert study(file, "first").config is not None
    assert "later studies cannot start from this one" in caplog.text
