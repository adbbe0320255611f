"""A study is resumed, reconciled or refused; dead workers' trials come again."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from search_fakes import FINGERPRINT, INFO, make_space, parameters, record_of, start_worker

from autotune.core.errors import UsageError
from autotune.core.objective import Goal, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, WorkloadSpec
from autotune.devices.base import DeviceInfo
from autotune.search.conditions import differences, fingerprint_of
from autotune.search.storage import open_storage
from autotune.search.study import Asked, StopReason, StoredStudy, Study
from autotune.space.search_space import SearchSpace, TrialOptions


def open_study(directory: Path, **changes: object) -> Study:
    return Study.open(make_space(**changes), directory, fingerprint=FINGERPRINT)  # type: ignore[arg-type]


def step(study: Study, outcome: str = "ok") -> Config:
    asked = study.ask()
    assert isinstance(asked, Asked)
    study.tell(record_of(asked.number, asked.config, outcome))
    return asked.config


class TestTrials:
    def test_the_baseline_is_trial_0(self, tmp_path: Path) -> None:
        study = open_study(tmp_path)
        asked = study.ask()
        assert asked == Asked(number=0, config=make_space().baseline, phase="baseline")

    def test_a_trial_counts_as_running_until_it_is_told(self, tmp_path: Path) -> None:
        study = open_study(tmp_path)
        asked = study.ask()
        assert isinstance(asked, Asked)
        seen = StoredStudy.load(study.name, tmp_path, storage="journal")
        assert seen.running() == 1
        study.tell(record_of(asked.number, asked.config, "ok"))
        assert StoredStudy.load(study.name, tmp_path, storage="journal").running() == 0

    def test_optuna_sees_real_values_states_and_constraints(self, tmp_path: Path) -> None:
        study = open_study(tmp_path, sampler="grid")
        for outcome in ("ok", "oom", "crashed"):
            step(study, outcome)
        ok, oom, crashed = study._study.get_trials()
        assert ok.params == {"batch_size": 1, "instance_count": 1, "batched_h2d": False}
        assert ok.value == study.records()[0].verdict.objectives["throughput_items_per_s"]
        assert oom.state is optuna.trial.TrialState.COMPLETE
        assert oom.value == 0.0
        assert list(ok.constraints) == list(oom.constraints) == ["latency_p99_s", "runs"]
        assert min(oom.constraints.values()) > 0 >= max(ok.constraints.values())
        assert crashed.state is optuna.trial.TrialState.FAIL
        assert crashed.user_attrs["reasons"] == "a reason"

    def test_nan_never_reaches_optuna(self, tmp_path: Path) -> None:
        study = open_study(tmp_path)
        asked = study.ask()
        assert isinstance(asked, Asked)
        record = record_of(0, asked.config)
        verdict = replace(record.verdict, objectives={"throughput_items_per_s": float("nan")})
        kept = study.tell(replace(record, verdict=verdict))
        assert kept.verdict.outcome is Outcome.WRONG_OUTPUT
        (trial,) = study._study.get_trials()
        assert trial.state is optuna.trial.TrialState.FAIL
        assert "nan" in trial.user_attrs["reasons"]

    def test_the_number_of_trials_is_a_total_of_those_that_count(self, tmp_path: Path) -> None:
        study = open_study(tmp_path, trials=3)
        for outcome in ("ok", "interrupted", "crashed", "ok"):
            step(study, outcome)
        assert study.ask() is StopReason.TRIALS
        assert study.progress().done == 3

    def test_an_exhausted_space_ends_the_study(self, tmp_path: Path) -> None:
        study = open_study(tmp_path, params=parameters(batch_size=(1, 2)))
        step(study)
        step(study)
        assert study.ask() is StopReason.EXHAUSTED

    def test_abandoned_trials_are_interrupted(self, tmp_path: Path) -> None:
        study = open_study(tmp_path)
        asked = study.ask()
        assert isinstance(asked, Asked)
        study.abandon()
        assert [r.verdict.outcome for r in study.records()] == [Outcome.INTERRUPTED]
        again = study.ask()
        assert isinstance(again, Asked)
        assert again.config == asked.config

    def test_a_study_without_a_complete_trial_can_be_read(self, tmp_path: Path) -> None:
        study = open_study(tmp_path)
        step(study, "interrupted")
        stored = StoredStudy.load("s", tmp_path)
        assert [r.verdict.outcome for r in stored.records()] == [Outcome.INTERRUPTED]
        assert stored.recommendation() is None

    def test_a_study_that_is_not_there(self, tmp_path: Path) -> None:
        open_study(tmp_path)
        with pytest.raises(UsageError, match="there is no study 'other'"):
            StoredStudy.load("other", tmp_path)


class TestDeadWorkers:
    def start(  # type: ignore[no-untyped-def]
        self, tmp_path: Path, seconds: float = 30.0, trials: int = 6, *, may_end: bool = False
    ):
        worker = start_worker("journal", tmp_path, trials, seconds)
        assert worker.stdout is not None
        while "trial" not in (line := worker.stdout.readline()):
            assert line or may_end, "the worker ended"
            if not line:
                break
        return worker

    def test_the_trial_of_a_killed_worker_is_given_up_and_comes_again(self, tmp_path: Path) -> None:
        worker = self.start(tmp_path)
        worker.kill()
        worker.wait()
        study = open_study(tmp_path)
        assert [r.verdict.outcome for r in study.records()] == [Outcome.LOST]
        assert "trial 0: its worker died; it will be tried again" in study.notes
        assert step(study) == study.records()[0].config

    def test_a_task_is_one_workers_until_it_gives_it_back_or_dies(self, tmp_path: Path) -> None:
        one, two = open_study(tmp_path), open_study(tmp_path)
        assert one.claim("task")
        assert not two.claim("task")
        one.release("task")
        assert two.claim("task")
        two.keep("task", {**two.attributes()["task"], "pid_start": "not this process"})
        assert one.claim("task")

    def test_a_worker_that_dies_meanwhile_is_noticed_by_the_next_ask(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        worker = self.start(tmp_path)
        study = open_study(tmp_path)
        worker.kill()
        worker.wait()
        assert step(study) == make_space().baseline
        assert "trial 0: its worker died" in caplog.text

    def test_the_trial_of_a_live_worker_is_left_alone(self, tmp_path: Path) -> None:
        worker = self.start(tmp_path)
        try:
            study = open_study(tmp_path)
            assert study.records() == ()
            assert study.progress().running == 1
            asked = study.ask()
            assert isinstance(asked, Asked)
            assert asked.number == 1
            assert asked.config != make_space().baseline
        finally:
            worker.kill()
            worker.wait()

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_stopped_worker_marks_its_trial_itself(self, tmp_path: Path, number: int) -> None:
        worker = self.start(tmp_path)
        worker.send_signal(number)
        worker.communicate(timeout=20)
        assert worker.returncode != 0
        (record,) = StoredStudy.load("s", tmp_path).records()
        assert record.verdict.outcome is Outcome.INTERRUPTED

    def test_killed_at_any_moment_nothing_complete_is_lost(self, tmp_path: Path) -> None:
        told: set[int] = set()
        for attempt in range(4):
            worker = self.start(tmp_path, seconds=0.02, trials=24, may_end=True)
            time.sleep(0.05 * (4 - attempt))
            worker.kill()
            worker.wait()
            before = told
            records = StoredStudy.load("s", tmp_path).records()
            told = {r.number for r in records if r.verdict.outcome.is_measured}
            assert before <= told
        study = open_study(tmp_path, trials=24)
        while isinstance(study.ask(), Asked):
            number = max(study._running)
            study.tell(record_of(number, study._history(study._trials())[number].config))
        measured = [r for r in study.records() if r.verdict.outcome.is_measured]
        assert {r.config for r in measured} == set(make_space().configs())
        assert len(measured) == 24


class TestChangedSpace:
    def reopened(self, tmp_path: Path, **choices: object) -> tuple[Study, list[Config]]:
        """A study of three batch sizes, opened again with other choices, and what it tries."""
        study = open_study(tmp_path, params=parameters(batch_size=(1, 2, 4)), sampler="grid")
        for _ in range(3):
            step(study)
        space = make_space(params=parameters(**choices), sampler="grid")
        study = Study.open(space, tmp_path, fingerprint=FINGERPRINT)
        tried = []
        while isinstance(asked := study.ask(), Asked):
            study.tell(record_of(asked.number, asked.config))
            tried.append(asked.config)
        return study, tried

    def test_a_new_choice_is_tried_and_old_trials_stay(self, tmp_path: Path) -> None:
        study, tried = self.reopened(tmp_path, batch_size=(1, 2, 4, 8))
        assert [c.batch_size for c in tried] == [8]
        assert [r.config.batch_size for r in study.records()] == [1, 2, 4, 8]
        assert any("was [1, 2, 4], now [1, 2, 4, 8]" in n and "--study" in n for n in study.notes)
        states = {t.state for t in study._study.get_trials()}
        assert states == {optuna.trial.TrialState.COMPLETE}

    def test_what_optuna_cannot_take_gets_a_fresh_name(self, tmp_path: Path) -> None:
        ladders: list[tuple[int | str, ...]] = [("all", 1), ("all", 1, 2), (1, 2, 4)]
        for index, ladder in enumerate(ladders):
            space = make_space(
                params=parameters(batch_size=(1, 2, 4), cores_per_instance=ladder),
                baseline=Config(cores_per_instance=ladder[0]),
                sampler="grid",
            )
            study = Study.open(space, tmp_path, fingerprint=FINGERPRINT)
            while isinstance(asked := study.ask(), Asked):
                study.tell(record_of(asked.number, asked.config))
            names = {name for t in study._study.get_trials() for name in t.params}
            assert len(names) == 2 + index
        assert {r.verdict.outcome for r in study.records()} == {Outcome.OK}
        assert len({r.config for r in study.records()}) == len(study.records()) == 12

    def test_another_scale_is_carried_over(self, tmp_path: Path) -> None:
        study = open_study(tmp_path, params=(parameters(batch_size=(1, 2, 4))[0],), sampler="grid")
        step(study)
        linear = replace(parameters(batch_size=(1, 2, 4, 64))[0], log=False)
        study = open_study(tmp_path, params=(linear,), sampler="grid")
        assert [step(study).batch_size for _ in range(3)] == [2, 4, 64]

    def test_the_same_choices_are_no_change(self, tmp_path: Path) -> None:
        step(open_study(tmp_path))
        assert not any("was" in note for note in open_study(tmp_path).notes)


class TestConditions:
    def test_other_conditions_are_refused_and_named(self, tmp_path: Path) -> None:
        step(open_study(tmp_path))
        changed = {**FINGERPRINT, "device": "npu: 910B", "torch": "2.9"}
        with pytest.raises(UsageError) as caught:
            Study.open(make_space(), tmp_path, fingerprint=changed)
        assert "device was cpu: a test, now npu: 910B" in str(caught.value)
        assert "torch was none, now 2.9" in str(caught.value)
        assert "workload" not in str(caught.value)
        assert "--study" in str(caught.value)
        study = Study.open(make_space(), tmp_path, fingerprint=changed, on_change="continue")
        assert any("goes on although device was" in note for note in study.notes)
        assert len(study.records()) == 1
        Study.open(make_space(), tmp_path, fingerprint=changed)

    def test_another_direction_is_refused(self, tmp_path: Path) -> None:
        step(open_study(tmp_path))
        objective = Objective(name="fast", goals=(Goal(metric="latency_p99"),))
        with pytest.raises(
            UsageError, match="made to maximize, but the objective fast is to minim"
        ):
            open_study(tmp_path, objective=objective)

    @pytest.mark.parametrize("url", ["journal", "sqlite:///s.db"])
    def test_a_worker_that_dies_while_a_study_is_made_leaves_none_or_all_of_it(
        self, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        space, kind = make_space(storage=url), optuna.Study
        for moment in range(4):
            sets = iter(range(moment))

            def dies(study: optuna.Study, *rest: object, sets: Iterator[int] = sets) -> None:
                if next(sets, None) is None:
                    raise KeyboardInterrupt
                study._storage.set_study_user_attr(study._study_id, *rest)  # type: ignore[arg-type]

            with monkeypatch.context() as patch:
                patch.setattr(kind, "set_user_attr", dies)
                with pytest.raises(KeyboardInterrupt):
                    Study.open(space, tmp_path / "s", fingerprint=FINGERPRINT)
        opened = Study.open(space, tmp_path / "s", fingerprint=FINGERPRINT)
        assert opened.fingerprint == FINGERPRINT
        assert not isinstance(opened.ask(), StopReason)

    def test_a_study_begun_by_an_earlier_version_that_died_at_once_is_taken_as_new(
        self, tmp_path: Path
    ) -> None:
        storage = open_storage("journal", tmp_path / "s")
        optuna.create_study(study_name="s", storage=storage, direction="maximize").set_user_attr(
            "schema_version", 1
        )
        assert open_study(tmp_path).fingerprint == FINGERPRINT

    def test_a_study_of_other_software_is_refused(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/o.db"
        optuna.create_study(study_name="s", storage=url, direction="maximize").optimize(
            lambda trial: trial.suggest_float("x", 0, 1), n_trials=1
        )
        with pytest.raises(UsageError, match="not made by autotune"):
            open_study(tmp_path, storage=url)

    def test_a_newer_study_is_refused(self, tmp_path: Path) -> None:
        open_study(tmp_path)._study.set_user_attr("schema_version", 999)
        with pytest.raises(UsageError, match="newer autotune"):
            open_study(tmp_path)

    @pytest.mark.parametrize(
        "change",
        [
            lambda s, i: (replace(s, workload=WorkloadSpec(kind="torch", model="b")), i),
            lambda s, i: (replace(s, workload=replace(s.workload, precision="float16")), i),
            lambda s, i: (replace(s, workload=replace(s.workload, options={"noise": 0.1})), i),
            lambda s, i: (replace(s, trial=TrialOptions(iterations=10, duration_s=None)), i),
            lambda s, i: (replace(s, trial=TrialOptions(seed=1)), i),
            lambda s, i: (replace(s, objective=replace(s.objective, limits=())), i),
            lambda s, i: (s, replace(i, core_count=1)),
            lambda s, i: (s, replace(i, versions={"torch": "1"})),
            lambda s, i: (s, replace(i, description="other")),
        ],
    )
    def test_the_fingerprint_tells_conditions_apart(self, change) -> None:  # type: ignore[no-untyped-def]
        known = replace(INFO, versions={"torch": "0"})
        space, info = change(make_space(), known)
        before, after = fingerprint_of(make_space(), known), fingerprint_of(space, info)
        assert len(differences(before, after)) == 1

    def test_the_fingerprint_covers_the_models_file_but_not_budgets(self, tmp_path: Path) -> None:
        model = tmp_path / "m.py"
        model.write_text("a")

        def prints(space: SearchSpace, info: DeviceInfo = INFO) -> dict[str, str]:
            return fingerprint_of(space, info)

        space = make_space(workload=WorkloadSpec(kind="torch", model=f"{model}:factory"))
        first = prints(space)
        assert prints(make_space(trials=99, workload=space.workload, study="t")) == first
        model.write_text("b")
        assert prints(space) != first

    def test_it_covers_what_the_model_imports_from_its_own_folder(self, tmp_path: Path) -> None:
        (tmp_path / "layers").mkdir()
        files = {
            "m.py": "import net\nimport json\n",
            "net.py": "def build():\n    from layers import dense\n",
            "layers/__init__.py": "",
            "layers/dense.py": "from . import tools\nfrom .. import m\n",
            "layers/tools.py": "import net",
            "other.py": "",
        }
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        workload = WorkloadSpec(kind="torch", model=f"{tmp_path / 'm.py'}:factory")
        space = make_space(workload=workload)
        before = fingerprint_of(space, INFO)
        for name in files:
            (tmp_path / name).write_text(files[name] + "\n# changed")
            changed = differences(before, fingerprint_of(space, INFO))
            (tmp_path / name).write_text(files[name])
            assert len(changed) == (name != "other.py"), (name, changed)
            assert not changed or name == "m.py" or f"model file {name} was" in changed[0]
