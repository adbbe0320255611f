"""The loop: outcomes, budgets, crashes, interruptions."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from search_fakes import (
    FINGERPRINT,
    INFO,
    Behaviour,
    FakeLauncher,
    make_space,
    parameters,
    record_of,
    served,
    use_fakes,
)

from autotune.core.errors import (
    CompileError,
    OutOfMemory,
    TrialCrashed,
    TrialError,
    TrialKilled,
    TrialTimeout,
    UsageError,
)
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, TrialRecord
from autotune.search.sampler import MIN_BASIS
from autotune.search.study import StopReason, Study
from autotune.search.worker import failed_alike, run_trials
from autotune.space.search_space import Budget, SearchSpace


class Bench:
    """A study on fakes, and what came of it."""

    def __init__(
        self, tmp_path: Path, patch: pytest.MonkeyPatch, space: SearchSpace, behave: Behaviour
    ) -> None:
        self.space, self.directory = space, tmp_path
        self.opened = use_fakes(behave, patch)
        self.launcher = FakeLauncher()
        self.seen: list[TrialRecord] = []

    def run(self, **options: Any) -> StopReason:
        self.study = Study.open(self.space, self.directory, fingerprint=FINGERPRINT)
        return run_trials(
            self.study,
            self.space,
            INFO,
            self.launcher,
            on_record=self.seen.append,
            **options,
        )

    def outcomes(self) -> dict[int, str]:
        return {r.config.batch_size: str(r.verdict.outcome) for r in self.study.records()}


BATCHES = parameters(batch_size=(1, 2, 4, 8))


def fails_at_4(error: TrialError | Mapping[str, float]) -> Behaviour:
    return lambda config: error if config.batch_size == 4 else served(config)


@pytest.mark.parametrize(
    ("failure", "outcome", "reason"),
    [
        (OutOfMemory("needs 2 GiB"), "oom", "needs 2 GiB"),
        (TrialTimeout("took longer than 60 s"), "timeout", "took longer"),
        (CompileError("shape"), "compile_error", "shape"),
        (TrialCrashed("killed", signal_name="SIGSEGV", log_tail="last"), "crashed", "killed"),
        ({"throughput_items_per_s": float("nan"), "latency_p99_s": 0.01}, "wrong_output", "nan"),
        ({"throughput_items_per_s": -5.0, "latency_p99_s": 0.01}, "wrong_output", "-5"),
        ({"throughput_items_per_s": 5.0}, "wrong_output", "latency_p99"),
        ({"throughput_items_per_s": 5.0, "latency_p99_s": 0.2}, "over_limit", "limit"),
    ],
)
def test_one_bad_configuration_stops_nothing(
    failure: Any, outcome: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = make_space(params=BATCHES)
    bench = Bench(tmp_path, monkeypatch, space, fails_at_4(failure))
    assert bench.run() is StopReason.EXHAUSTED
    assert bench.outcomes() == {1: "ok", 2: "ok", 4: outcome, 8: "ok"}
    record = next(r for r in bench.study.records() if r.config.batch_size == 4)
    assert reason in record.verdict.reasons[0]
    assert record.log_tail == getattr(failure, "log_tail", "")


def test_records_carry_what_a_trial_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, monkeypatch, make_space(params=BATCHES), served)
    bench.run()
    assert {r.cost_s for r in bench.seen} == {1.0}
    assert bench.seen == list(bench.study.records())
    assert [r.phase for r in bench.seen] == ["baseline", "search", "search", "search"]


def test_the_same_crash_again_and_again_ends_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = TrialCrashed("exit status 1", log_tail="ModuleNotFoundError: no module x")
    bench = Bench(tmp_path, monkeypatch, make_space(trials=100), lambda config: error)
    assert bench.run() is StopReason.CRASHES
    assert len(bench.seen) == 3
    assert "ModuleNotFoundError" in bench.seen[-1].log_tail


def test_the_same_missing_figure_again_and_again_ends_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = make_space(trials=100)
    bench = Bench(tmp_path, monkeypatch, space, lambda config: {"throughput_items_per_s": 5.0})
    assert bench.run() is StopReason.CRASHES
    assert bench.outcomes().popitem()[1] == "wrong_output"


def test_failures_are_alike_if_they_differ_in_their_numbers_alone() -> None:
    def crashed(number: int, words: str) -> TrialRecord:
        record = record_of(number, Config(batch_size=number + 1), "crashed")
        return replace(record, verdict=replace(record.verdict, reasons=(words,)))

    shapes = [crashed(n, f"RuntimeError: mat1 is {2**n}x64, mat2 is 32x1") for n in range(3)]
    assert failed_alike(shapes)
    assert not failed_alike(shapes[:2])
    assert not failed_alike([*shapes[:2], crashed(2, "RuntimeError: no kernel")])


def test_out_of_memory_again_and_again_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = make_space(trials=100)
    bench = Bench(tmp_path, monkeypatch, space, lambda config: OutOfMemory("no"))
    assert bench.run() is StopReason.EXHAUSTED
    assert len(bench.seen) == 24


def test_different_crashes_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = itertools.count(1)
    bench = Bench(tmp_path, monkeypatch, make_space(), lambda _: TrialCrashed("x" * next(count)))
    assert bench.run() is StopReason.EXHAUSTED


def test_the_budget_of_time_counts_virtual_seconds_and_keeps_a_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of 6 s half would not do for the shortest proof, so that all of it goes to the search.
    for time_s, confirmed, trials in ((10.0, False, 10), (10.0, True, 5), (6.0, True, 6)):
        space = make_space(budget=Budget(trials=100, time_s=time_s), study=f"t{trials}{confirmed}")
        if not confirmed:
            space = replace(space, confirm=None)
        bench = Bench(tmp_path / space.study, monkeypatch, space, served)
        assert bench.run(time_s=time_s) is StopReason.TIME
        assert len(bench.seen) == trials


def test_the_trial_that_runs_when_time_is_up_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def behave(config: Config) -> Any:
        if config.batch_size != 4:
            return served(config)
        time.sleep(0.5)
        return TrialTimeout("no answer within 0.5 s")

    monkeypatch.setattr("autotune.search.worker.TIME_GRACE_S", 0.0)
    space = make_space(params=BATCHES, sampler="grid", confirm=None)
    bench = Bench(tmp_path, monkeypatch, space, behave)
    assert bench.run(time_s=2.5) is StopReason.TIME
    assert bench.outcomes() == {1: "ok", 2: "ok", 4: "interrupted"}
    assert "budget of time" in bench.seen[-1].verdict.reasons[0]
    # With time enough the same end is the configuration's own.
    assert bench.run() is StopReason.EXHAUSTED
    assert bench.outcomes() == {1: "ok", 2: "ok", 4: "timeout", 8: "ok"}


def test_a_limit_of_its_own_is_no_lack_of_time_however_late_in_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = TrialTimeout("the server was not ready within 0.1 s (start_timeout)")
    space = make_space(params=BATCHES, sampler="grid", confirm=None)
    bench = Bench(tmp_path, monkeypatch, space, fails_at_4(own))
    assert bench.run(time_s=2.5) is StopReason.TIME
    assert bench.outcomes() == {1: "ok", 2: "ok", 4: "timeout"}
    assert "start_timeout" in bench.seen[-1].verdict.reasons[0]


@pytest.mark.parametrize("kills", [1, 2])
def test_a_trial_that_somebody_killed_has_a_second_chance_and_no_third(
    kills: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter([TrialKilled("killed by SIGKILL", log_tail="last words")] * kills)

    def behave(config: Config) -> Any:
        return (config.batch_size == 4 and next(left, None)) or served(config)

    bench = Bench(tmp_path, monkeypatch, make_space(params=BATCHES, sampler="grid"), behave)
    assert bench.run() is StopReason.EXHAUSTED
    assert bench.outcomes() == {1: "ok", 2: "ok", 4: "ok" if kills == 1 else "crashed", 8: "ok"}
    assert [c.batch_size for c in bench.opened] == [1, 2, 4, 4, 8]
    record = next(r for r in bench.seen if r.config.batch_size == 4)
    if kills == 1:
        assert record.measurement is not None
        assert record.measurement.warnings == ("tried twice; the first time: killed by SIGKILL",)
    else:
        assert record.verdict.reasons == ("tried twice: killed by SIGKILL",)
        assert record.log_tail == "last words"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError()])
def test_what_is_no_trial_error_ends_the_run_and_leaves_nothing_running(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def behave(config: Config) -> Any:
        if config.batch_size == 4:
            raise error
        return served(config)

    space = make_space(params=BATCHES, sampler="grid")
    bench = Bench(tmp_path, monkeypatch, space, behave)
    with pytest.raises(type(error)):
        bench.run()
    assert bench.outcomes() == {1: "ok", 2: "ok", 4: "interrupted"}
    assert bench.study.progress().running == 0


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_mistake_ends_the_run_if_it_is_the_baselines_too(
    batch_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A factory that gets the configuration may go wrong for one of them alone."""

    def behave(config: Config) -> Any:
        if config.batch_size == batch_size:
            raise UsageError("the factory returned NoneType")
        return served(config)

    bench = Bench(tmp_path, monkeypatch, make_space(params=BATCHES, sampler="grid"), behave)
    if batch_size == 1:
        with pytest.raises(UsageError, match="returned NoneType"):
            bench.run()
        return
    assert bench.run() is StopReason.EXHAUSTED
    assert bench.outcomes() == {1: "ok", 2: "ok", 4: "crashed", 8: "ok"}
    reasons = [r.verdict.reasons for r in bench.seen if r.config.batch_size == 4]
    assert reasons == [("the factory returned NoneType",)]


def test_should_stop_is_asked_between_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, make_space(), served)
    assert bench.run(should_stop=lambda: len(bench.seen) >= 2) is StopReason.INTERRUPTED
    assert len(bench.seen) == 2


def test_a_grid_covers_everything_over_two_runs_with_a_crash_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = make_space(params=BATCHES, sampler="grid", trials=4)
    bench = Bench(tmp_path, monkeypatch, space, fails_at_4(TrialCrashed("SIGSEGV")))
    bench.run(should_stop=lambda: len(bench.seen) >= 2)
    assert bench.run() is StopReason.TRIALS
    assert bench.outcomes() == {1: "ok", 2: "ok", 4: "crashed", 8: "ok"}
    assert [c.batch_size for c in bench.opened].count(4) == 1


@pytest.mark.parametrize("sampler", ["auto", "tpe", "random", "mechanistic"])
def test_the_same_seed_gives_the_same_study_also_when_resumed(
    sampler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = make_space(trials=14, sampler=sampler)
    whole = Bench(tmp_path / "a", monkeypatch, space, served)
    whole.run()
    parts = Bench(tmp_path / "b", monkeypatch, space, served)
    while parts.run(should_stop=lambda: len(parts.seen) % 5 == 4) is not StopReason.TRIALS:
        parts.seen.append(parts.seen[-1])  # let the next run begin
    configs = [r.config for r in parts.study.records()]
    assert configs == [r.config for r in whole.study.records()]
    assert len(set(configs)) >= (14 if sampler in ("tpe", "random") else 10)
    assert {r.verdict.outcome for r in whole.seen} == {Outcome.OK, Outcome.OVER_LIMIT}


def test_the_search_ends_when_one_more_trial_is_expected_to_gain_too_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = make_space(sampler="mechanistic", trials=23)
    patient = space
    assert Bench(tmp_path / "a", monkeypatch, patient, served).run() is StopReason.TRIALS
    hasty = Bench(
        tmp_path / "b", monkeypatch, replace(space, budget=Budget(trials=23, gain=0.5)), served
    )
    assert hasty.run() is StopReason.GAIN
    assert len(hasty.seen) == MIN_BASIS
