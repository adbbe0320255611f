"""One study in which nearly every configuration fails in a way of its own."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
import pytest

if TYPE_CHECKING:
    from conftest import Place

FAILURES = {
    1: ("crashed", "AssertionError: one item has no variance"),
    2: ("oom", "OutOfMemoryError: no room for 2.00 GiB"),
    3: ("crashed", "SIGSEGV"),
    4: ("crashed", "RuntimeError: CUDA error: too many threads for this launch"),
    5: ("oom", "DefaultCPUAllocator"),
    6: ("timeout", "took longer than 5.00 s (trial.timeout)"),
    7: ("crashed", "ConnectionError: the feature store answered 503"),
    8: ("oom", "OutOfMemoryError: full after 29 calls"),
    9: ("crashed", "SIGKILL"),
    10: ("crashed", "exit status 0"),
    11: ("crashed", "Mute: (its text cannot be had: ValueError)"),
    13: ("crashed", "list_iterator, which computes nothing until it is read"),
}
WORKING = (12, 16)


@dataclass(frozen=True)
class Ran:
    """The study, run once for all tests of this file."""

    place: Place
    code: int
    result: dict[str, Any]
    table: str
    trials: list[dict[str, str]]
    left: list[str]

    def trial(self, batch_size: int) -> dict[str, str]:
        (trial,) = (t for t in self.trials if t["batch_size"] == str(batch_size))
        return trial


@pytest.fixture(scope="module")
def ran(make_place: Callable[[], Place]) -> Ran:
    place = make_place()
    place.write_space(
        "every_size_its_own_fault",
        f"params: {{batch_size: {[*FAILURES, *WORKING]}}}",
        "baseline: {batch_size: 2}",
        "storage: sqlite:///t.db",
    )
    code, result = place.run("--set", "trial.timeout=5s", "--set", "trial.iterations=40")
    left = place.processes()
    table = place.table()
    return Ran(place, code, result, table, list(csv.DictReader(table.splitlines())), left)


def test_the_study_is_carried_through(ran: Ran) -> None:
    assert ran.code == 0
    assert ran.result["complete"] is True
    assert len(ran.trials) == len(FAILURES) + len(WORKING)
    assert ran.left == []


def test_even_if_the_very_first_trial_runs_out_of_memory(ran: Ran) -> None:
    assert (ran.trials[0]["batch_size"], ran.trials[0]["outcome"]) == ("2", "oom")
    assert ran.result["baseline"]["throughput_items_per_s"] is None


@pytest.mark.parametrize("batch_size", FAILURES)
def test_each_failure_keeps_its_kind_and_its_words(batch_size: int, ran: Ran) -> None:
    outcome, words = FAILURES[batch_size]
    trial = ran.trial(batch_size)
    assert trial["outcome"] == outcome
    assert words in trial["reasons"]


@pytest.mark.parametrize("batch_size", FAILURES)
def test_a_failed_trial_has_no_figures(batch_size: int, ran: Ran) -> None:
    trial = ran.trial(batch_size)
    for name in ("throughput_items_per_s", "latency_p99_s", "call_count"):
        assert trial[name] == ""


def test_a_hang_costs_its_time_limit_and_little_more(ran: Ran) -> None:
    assert 4 < float(ran.trial(6)["cost_s"]) < 15


def test_what_a_model_prints_is_no_result(ran: Ran) -> None:
    assert 0 < float(ran.trial(12)["throughput_items_per_s"]) < 900_000
    assert float(ran.trial(12)["latency_p99_s"]) > 1e-6


def test_the_best_is_a_configuration_that_was_measured(ran: Ran) -> None:
    best = ran.trial(ran.result["config"]["batch_size"])
    assert int(best["batch_size"]) in WORKING
    for name, value in ran.result["config"].items():
        assert best[name].lower() == str(value).lower()
    measured = ran.result["measurement"]["throughput_items_per_s"]
    assert math.isclose(float(best["throughput_items_per_s"]), measured)


def test_the_storage_holds_only_finished_trials_and_the_same_best(ran: Ran) -> None:
    url = f"sqlite:///{ran.place.path}/t.db"
    study = optuna.load_study(study_name="t", storage=url)
    assert {trial.state.is_finished() for trial in study.trials} == {True}
    complete = [t for t in study.trials if t.state is optuna.trial.TrialState.COMPLETE]
    runnable = [t for t in complete if all(c <= 0 for c in _constraints(t).values())]
    best = max(runnable, key=lambda t: float(t.value or 0.0))
    assert best.params["batch_size"] == ran.result["config"]["batch_size"]


def _constraints(trial: optuna.trial.FrozenTrial) -> dict[str, float]:
    found = trial.constraints
    assert found
    return dict(found)


def test_no_output_shows_a_figure_that_is_no_number(ran: Ran) -> None:
    report = Path(ran.place.path, "studies/t/report.html").read_text(encoding="utf-8")
    shown = ran.place.autotune("show", "t", "--top", "20").stdout
    for text in (report, shown, ran.table):
        assert not re.search(r"(?<![\w/#-])(nan|inf|infinity)(?![\w-])", text, re.I)
