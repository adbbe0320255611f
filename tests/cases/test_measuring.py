"""What is measured is what was asked for, on the cores that were given, by a clock that runs on."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autotune.apps.show import show

if TYPE_CHECKING:
    from conftest import Place

BACKWARDS = """\
import itertools
import time

_time, _calls = time.time, itertools.count()
time.time = lambda: _time() - 3600.0 * next(_calls)
"""


def test_every_call_has_the_trials_batch_in_the_trials_number_of_parts(place: Place) -> None:
    place.write_space(
        "writes_sizes_down", "params: {batch_size: [1, 2, 6], micro_batch_count: [2, 4]}"
    )
    code, result = place.run(env={"SIZES_FILE": str(place.path / "sizes")})
    assert code == 0
    # Of six combinations two divide; each call of theirs is two calls of the model.
    (two, six) = place.trials()
    assert {(t["batch_size"], t["micro_batch_count"]) for t in (two, six)} == {
        ("2", "2"),
        ("6", "2"),
    }
    called = Counter((place.path / "sizes").read_text().split())
    assert set(called) == {"1", "3"}
    for trial, size in ((two, "1"), (six, "3")):
        assert int(trial["call_count"]) == 20
        assert called[size] >= 2 * (20 + int(trial["warmup_count"]))
    assert result["config"]["micro_batch_count"] == 2


def test_only_cores_that_the_tool_may_use_are_used(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = max(os.sched_getaffinity(0))
    place.write_space("plain", "params: {cores_per_instance: [1, 2, 64]}")
    ended = place.autotune(
        "run", "--space", "t.yaml", first=lambda: os.sched_setaffinity(0, {core})
    )
    assert ended.returncode == 0
    assert "affinity" not in ended.stderr
    monkeypatch.chdir(place.path)
    (record,) = show("t").records
    assert record.config.cores_per_instance == 1
    assert record.measurement is not None
    assert record.measurement.environment["cores"] == str(core)
    assert record.measurement.environment["threads"] == "1"


def test_a_wall_clock_that_is_set_back_changes_no_figure(place: Place) -> None:
    place.write_space("plain", "params: {batch_size: [1, 2, 4]}", "budget: {time: 90s}")
    (place.path / "site").mkdir()
    Path(place.path, "site", "sitecustomize.py").write_text(BACKWARDS)
    env = {"PYTHONPATH": str(place.path / "site")}
    for trials in ("2", "3"):  # the second run takes over what the first left, leases included
        code, result = place.run("--trials", trials, env=env)
        assert code == 0
        assert result["trials"]["total"] == int(trials)
        assert 0 < result["elapsed_s"] < 90
    for trial in place.trials():
        assert 0 < float(trial["latency_p99_s"]) < 5
        assert 0 < float(trial["cost_s"]) < 60
        assert float(trial["throughput_items_per_s"]) > 0
