"""The guard of a study: where its reference comes from, and when it accuses."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from search_fakes import INFO, FakeLauncher, make_space, record_of

from autotune.core.errors import OutOfMemory, WrongOutput
from autotune.core.records import Answers, Config
from autotune.search import guard as guard_module
from autotune.search.guard import Guard
from autotune.search.worker import failed_alike
from autotune.space.search_space import SearchSpace, TrialOptions

BASE, LARGE = Config(), Config(batch_size=8)


class FakeStudy:
    """Keeps attributes."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def attributes(self) -> Mapping[str, Any]:
        return self.kept

    def keep(self, key: str, value: Mapping[str, Any]) -> None:
        self.kept[key] = dict(value)


def given(seed: int = 0, *, wrong: bool = False) -> Answers:
    figures = np.random.default_rng(seed).normal(size=(4, 6))
    figures[:, 1] = 1.0
    item = np.arange(8) % 4
    places = figures[item]
    places[3] += 5.0 * wrong
    return Answers(item=item, figures=places, widths=(6,), is_discrete=(False,))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a freshly opened baseline answers, next first."""
    queue: list[Any] = []

    @contextmanager
    def open_session(*_: object, **__: object) -> Iterator[SimpleNamespace]:
        found = queue.pop(0)
        if isinstance(found, Exception):
            raise found
        yield SimpleNamespace(answers=(found,))

    monkeypatch.setattr(guard_module, "open_session", open_session)
    monkeypatch.setattr(guard_module, "group_spec", lambda config, space, info: config)
    return queue


def make_guard(study: FakeStudy, space: SearchSpace | None = None) -> Guard:
    return Guard(study, space or make_space(), INFO, FakeLauncher())  # type: ignore[arg-type]


def test_the_baselines_own_trial_is_the_reference_and_is_kept(opened: list[Any]) -> None:
    study = FakeStudy()
    assert make_guard(study).check(BASE, (given(),)).difference == 0
    # Another run of the study, or another worker, needs no baseline of its own.
    assert make_guard(study).check(LARGE, (given(), given())).difference == 0


def test_without_a_baselines_trial_it_is_opened(opened: list[Any]) -> None:
    opened.append(given())
    assert make_guard(FakeStudy()).check(LARGE, (given(),)).difference == 0
    assert not opened


def test_wrong_answers_are_refused_once_the_baseline_has_answered_alike_twice(
    opened: list[Any],
) -> None:
    guard = make_guard(FakeStudy())
    guard.check(BASE, (given(),))
    opened.append(given())
    for _ in range(2):  # verified once
        with pytest.raises(WrongOutput, match="differ"):
            guard.check(LARGE, (given(), given(wrong=True)))


def test_a_model_that_is_another_each_time_is_told_not_accused(
    opened: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    study = FakeStudy()
    guard = make_guard(study)
    guard.check(BASE, (given(0),))
    opened.append(given(1))
    with caplog.at_level(logging.WARNING):
        found = guard.check(LARGE, (given(2),))
    assert "answers otherwise when it is built again" in found.untold
    assert "outputs are not compared" in caplog.text
    assert make_guard(study).check(LARGE, (given(3),)).untold == found.untold


def test_a_baseline_that_cannot_run_leaves_the_others_uncompared(opened: list[Any]) -> None:
    opened.append(OutOfMemory("no room"))
    found = make_guard(FakeStudy()).check(LARGE, (given(),))
    assert "the baseline did not run: no room" in found.untold


def test_it_can_be_switched_off(opened: list[Any]) -> None:
    space = make_space(trial=replace(TrialOptions(), check_outputs=False))
    assert make_guard(FakeStudy(), space).check(LARGE, (given(wrong=True),)).difference is None


def test_wrong_outputs_in_a_row_end_a_study_only_if_nothing_works() -> None:
    wrong = [record_of(n, Config(batch_size=8 + n), "wrong_output") for n in range(1, 4)]
    assert failed_alike(wrong)
    assert not failed_alike([record_of(0, BASE), *wrong])
