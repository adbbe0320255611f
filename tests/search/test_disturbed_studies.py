"""Whole studies on a simulated machine that is disturbed as declared, on the virtual clock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from search_fakes import FINGERPRINT, parameters

from autotune.core.errors import UsageError
from autotune.core.objective import Limit, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, TrialRecord, WorkloadSpec
from autotune.devices import find_device
from autotune.search.study import Study
from autotune.search.watch import MAX_REPEATS, REPEAT_SHARE
from autotune.search.worker import run_trials
from autotune.space.search_space import Budget, SearchSpace, TrialOptions
from autotune.trial.session import Launcher
from autotune.workloads.disturbance import Disturbance

LOAD_S = 2.0  # of the simulated model: a trial takes about 4 s
BATCHES = tuple(range(8, 128, 8))


def make_space(bound_s: float | None = None, **disturbance: float) -> SearchSpace:
    options: dict[str, object] = {"noise": 0.02}
    if disturbance:
        options["disturbance"] = disturbance
    limits = () if bound_s is None else (Limit(metric="latency_p99", bound=bound_s),)
    return SearchSpace(
        study="s",
        workload=WorkloadSpec(kind="simulated", model="recommender_a3", options=options),
        device="simulated",
        objective=Objective(name="o", limits=limits),
        params=parameters(batch_size=BATCHES),
        baseline=Config(batch_size=8),
        budget=Budget(trials=len(BATCHES)),
        trial=TrialOptions(duration_s=2.0),
        sampler="grid",
    )


def run(space: SearchSpace, path: Path, *, time_s: float | None = None) -> tuple[TrialRecord, ...]:
    with Launcher() as launcher:
        study = Study.open(space, path, fingerprint=FINGERPRINT)
        run_trials(study, space, find_device("simulated"), launcher, time_s=time_s)
        return study.records()


def lines(records: tuple[TrialRecord, ...]) -> list[str]:
    return [r.measurement.trust for r in records if r.measurement]


def test_a_quiet_machine_is_quiet_and_nothing_is_repeated(tmp_path: Path) -> None:
    records = run(make_space(neighbour_share=0.3, neighbour_from_s=1e9), tmp_path)
    assert set(lines(records)) == {"quiet"}
    assert {len(r.measurements) for r in records} == {1}
    assert {r.measurement.canary_ratio for r in records if r.measurement} == {1.0}


def test_without_a_declared_machine_there_is_no_canary(tmp_path: Path) -> None:
    records = run(make_space(), tmp_path)
    assert {r.measurement.canary_ratio for r in records if r.measurement} == {None}


def test_a_neighbour_is_named_and_its_trials_repeated_within_bounds(tmp_path: Path) -> None:
    records = run(make_space(neighbour_share=0.3, neighbour_from_s=30.0), tmp_path)
    before, after = records[:6], records[8:]
    assert set(lines(before)) == {"quiet"}
    assert set(lines(after)) == {"noisy: another process took 30% of its cores"}
    repeats = [len(r.measurements) - 1 for r in records]
    assert sum(repeats) >= 1 and max(repeats) <= MAX_REPEATS
    trial_s = LOAD_S + 2.0
    assert sum(repeats) <= 1 + REPEAT_SHARE * sum(r.cost_s for r in records) / trial_s


def test_a_neighbour_that_leaves_costs_a_repeat_and_leaves_no_trace(tmp_path: Path) -> None:
    quiet = run(make_space(), tmp_path / "quiet")
    space = make_space(neighbour_share=0.5, neighbour_from_s=29.0, neighbour_until_s=33.0)
    records = run(space, tmp_path / "noisy")
    assert set(lines(records)) == {"quiet"}
    assert sum(len(r.measurements) - 1 for r in records) == 1
    (repeated,) = (r for r in records if len(r.measurements) > 1)
    assert "another process" in repeated.measurements[0].trust
    for one, other in zip(quiet, records, strict=True):
        assert one.measurement is not None and other.measurement is not None
        assert other.measurement.throughput_items_per_s == pytest.approx(
            one.measurement.throughput_items_per_s, rel=0.02
        )


def test_a_throttling_machine_is_named_and_not_measured_again(tmp_path: Path) -> None:
    space = make_space(throttle_per_s=0.01, throttle_from_s=20.0, throttle_floor=0.6)
    records = run(space, tmp_path)
    said = lines(records)
    assert set(said[:5]) == {"quiet"}
    assert all("slower than at its best in this study (throttling" in line for line in said[9:])
    assert "ran 40% slower" in said[-1]
    assert records[-1].measurement is not None
    assert records[-1].measurement.canary_ratio == pytest.approx(0.6)
    assert {len(r.measurements) for r in records} == {1}  # it would be as slow again


def test_a_neighbour_on_a_slow_machine_is_worth_a_repeat(tmp_path: Path) -> None:
    space = make_space(
        neighbour_share=0.4,
        neighbour_from_s=29.0,
        neighbour_until_s=33.0,
        throttle_per_s=0.02,
        throttle_from_s=20.0,
        throttle_floor=0.8,
    )
    records = run(space, tmp_path)
    (repeated,) = (r for r in records if len(r.measurements) > 1)
    assert "another process" in repeated.measurements[0].trust
    assert repeated.measurement is not None
    assert repeated.measurement.trust.startswith("noisy: the machine ran 20% slower")


def test_a_machine_that_slows_within_a_window_drifts(tmp_path: Path) -> None:
    records = run(
        make_space(throttle_per_s=0.25, throttle_from_s=6.0, throttle_floor=0.5), tmp_path
    )
    said = [m.trust for r in records for m in r.measurements]
    assert any("drift within the window: calls became" in line for line in said)


def test_the_first_trial_may_be_cold(tmp_path: Path) -> None:
    # Model loaded at 2 s, warm-up until 2.3 or later: the first calls of the window are cold.
    records = run(make_space(cold_factor=1.5, cold_until_s=2.9), tmp_path)
    first = records[0]
    assert "first trial: cold" in first.measurements[0].trust
    assert len(first.measurements) == 2 and first.measurement is not None
    assert first.measurement.trust == "quiet"


def test_a_limit_that_only_a_neighbour_breaks_is_not_held_against_anyone(tmp_path: Path) -> None:
    quiet = run(make_space(), tmp_path / "quiet")
    p99_s = max(r.measurement.latency_p99_s or 0.0 for r in quiet if r.measurement)
    space = make_space(1.1 * p99_s, neighbour_share=0.3)
    records = run(space, tmp_path / "noisy")
    over = [r for r in records if r.verdict.excess["latency_p99_s"] > 0]
    assert over
    for record in over:
        assert record.verdict.outcome is Outcome.UNDECIDED
        assert "over its limit while disturbed" in record.verdict.reasons[0]
    # What would break it on a quiet machine as well is refused all the same.
    strict = make_space(0.5 * p99_s, neighbour_share=0.3)
    refused = {r.verdict.outcome for r in run(strict, tmp_path / "strict")}
    assert refused == {Outcome.OVER_LIMIT}


def test_a_window_is_doubled_where_that_settles_a_limit(tmp_path: Path) -> None:
    """Calls take some 2 ms: a window of 0.2 s has a hundred; 380 without a slow one are needed."""
    space = replace(make_space(0.5), trial=TrialOptions(duration_s=0.2))
    records = run(space, tmp_path)
    assert {r.verdict.outcome for r in records} == {Outcome.OK}
    for record in records:
        assert record.measurement is not None and record.measurement.call_count is not None
        assert 380 <= record.measurement.call_count <= 2 * 380
        assert record.measurement.duration_s == pytest.approx(0.8, abs=0.02)


def test_without_time_to_spare_it_is_undecided_and_says_what_it_needs(tmp_path: Path) -> None:
    space = replace(make_space(0.5), trial=TrialOptions(duration_s=0.2), confirm=None)
    records = run(space, tmp_path, time_s=0.7 * len(BATCHES) * (LOAD_S + 0.2))
    assert len(records) > 3
    for record in records:
        assert record.measurement is not None
        assert record.measurement.duration_s == pytest.approx(0.2, abs=0.02)
        assert record.verdict.outcome is Outcome.UNDECIDED
        assert record.verdict.needed_s is not None and 0 < record.verdict.needed_s < 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("much", "is not a mapping"),
        ({"neighbor": 1}, "unknown; known: neighbour_share"),
        ({"neighbour_share": 1.0}, "not < 1"),
        ({"throttle_floor": 0}, "not above 0"),
        ({"cold_factor": 0.5}, "not from 1 on"),
        ({"neighbour_from_s": -1}, "not a number from 0 on"),
    ],
)
def test_a_wrong_declaration_is_refused(options: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Disturbance.of({"disturbance": options})
