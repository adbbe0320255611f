"""Budgets of time, of patience with crashes, and of memory."""

from __future__ import annotations

import resource
import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from conftest import Place

GIB = 2**30
GRACE_S = 20.0  # for starting and ending on a busy machine


def test_time_that_is_up_ends_the_running_trial_and_the_result_says_so(place: Place) -> None:
    place.write_space(
        "sleeps_when_large",
        "params: {batch_size: [1, 2, 3]}",
        "budget: {time: 10s, trials: 100}",
    )
    began_s = time.monotonic()
    code, result = place.run("--set", "trial.timeout=600s")
    assert time.monotonic() - began_s < 10 + GRACE_S
    assert code == 0
    assert result["complete"] is False and result["stopped"] == "stopped by time"
    assert result["trials"]["total"] == 1 and result["trials"]["planned"] == 100
    assert "1 of 100" in place.autotune("show", "t").stdout
    first, *cut_short = (trial["outcome"] for trial in place.trials())
    assert first == "ok" and set(cut_short) <= {"interrupted"}
    assert place.processes() == []


def test_time_that_is_up_before_any_trial_is_done_is_exit_1(place: Place) -> None:
    place.write_space(
        "sleeps_when_large", "params: {batch_size: [2, 3]}", "budget: {time: 3s, trials: 100}"
    )
    began_s = time.monotonic()
    code, result = place.run("--set", "trial.timeout=600s")
    assert time.monotonic() - began_s < 3 + GRACE_S
    assert code == 1
    assert result["config"] is None and result["complete"] is False
    assert result["stopped"] == "stopped by time"
    said = place.autotune("show", "t").stderr
    assert "stopped by time. Run it again to go on, with a longer --time" in said
    assert place.processes() == []


def test_forty_trials_that_fill_the_memory_leave_none_of_it_behind(place: Place) -> None:
    place.write_space("fills_memory", "params: {batch_size: {low: 1, high: 40, step: 1}}")
    process = place.start(
        "run", "--space", "t.yaml",
        first=lambda: resource.setrlimit(resource.RLIMIT_AS, (6 * GIB, 6 * GIB)),
    )  # fmt: skip
    tool, own = psutil.Process(process.pid), []
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("trial "):
            own.append(tool.memory_info().rss)
    assert process.wait() == 0
    assert len(own) == 40
    assert own[-1] - own[2] < 100e6
