"""What an earlier version wrote is read by this one: `tests/golden` has one file per format.

A new format version adds a file `…_v2`; the old ones stay. Space files, baselines and the library's
files have their tests beside their readers.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from autotune.apps.samples import load_samples
from autotune.apps.store import load_result
from autotune.core.clock import VirtualClock
from autotune.core.outcomes import Outcome
from autotune.results.report import render
from autotune.search.lease import GONE_S, LeaseWatch
from autotune.search.study import Asked, Study
from autotune.space.loader import load_text

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@pytest.fixture
def studies(tmp_path: Path) -> Path:
    directory = tmp_path / "studies" / "example"
    directory.mkdir(parents=True)
    shutil.copy(GOLDEN / "study_v1.journal", directory / "study.journal")
    return tmp_path / "studies"


def test_a_study_is_shown(studies: Path) -> None:
    result = load_result("example", studies)
    assert [r.number for r in result.records] == [0, 1, 2]
    assert all(r.measurement and r.measurement.throughput_items_per_s for r in result.records)
    assert result.facts.objective.limits[0].metric == "latency_p99"
    assert result.facts.space_text and result.conditions["workload"]
    assert "example" in render(result, now_s=0.0, version="1")


def test_a_study_goes_on_and_takes_up_the_trial_that_was_running(studies: Path) -> None:
    result = load_result("example", studies)
    space = load_text(result.facts.space_text, result.facts.space_path)
    study = Study.open(space, studies / "example", fingerprint=result.conditions)
    clock = VirtualClock()
    study._watch = LeaseWatch(clock.now_s)
    running = next(trial for trial in study._trials() if not trial.state.is_finished())
    assert study.is_unsure(), "a lease of before there were beats, of a worker elsewhere"
    clock.advance(GONE_S + 1)
    asked = study.ask()
    assert isinstance(asked, Asked)
    assert asked.config.as_dict() == running.user_attrs["config"]
    assert study.records()[3].verdict.outcome is Outcome.LOST
    study.abandon()


def test_samples_are_read() -> None:
    samples = load_samples(GOLDEN / "samples_v1.npz")
    assert samples.end_s.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert samples.item_count.tolist() == [1, 1, 1, 1]
