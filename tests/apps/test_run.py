from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import autotune
from autotune.apps.resolve import resolve, study_facts
from autotune.apps.run import RunInterrupted, run
from autotune.apps.show import show
from autotune.apps.store import PROVING, remember_storage
from autotune.apps.view import Standing, View
from autotune.core.errors import UsageError
from autotune.core.records import Config, TrialRecord
from autotune.results.study_result import StudyFacts
from autotune.search.conditions import fingerprint_of
from autotune.search.study import Study
from autotune.space.loader import load_space

SpaceFile = Callable[..., Path]


class Watcher(View):
    """Remembers what it was told; interrupts after some trials if asked to."""

    def __init__(self, interrupt_after: int | None = None) -> None:
        self.facts: list[StudyFacts] = []
        self.notes: list[str] = []
        self.trials: list[TrialRecord] = []
        self.standings: list[Standing] = []
        self.rounds: list[str] = []
        self._interrupt_after = interrupt_after

    def resolved(self, facts: StudyFacts) -> None:
        assert not self.trials
        self.facts.append(facts)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def trial_finished(self, record: TrialRecord, standing: Standing) -> None:
        self.trials.append(record)
        self.standings.append(standing)
        if len(self.trials) == self._interrupt_after:
            raise KeyboardInterrupt

    def confirming(self, text: str) -> None:
        self.rounds.append(text)


def test_a_study_ends_with_a_proven_tested_configuration_and_a_report(
    space_file: SpaceFile,
) -> None:
    view = Watcher()
    result = run(load_space(space_file()), view=view)
    assert result.status == "confirmed"
    assert result.config in {record.config for record in result.records}
    assert result.gain is not None and result.gain > 5
    assert result.recommendation.against_batch_only is not None
    assert result.ending.complete and result.trial_count == 12
    assert result.report is not None and result.report.read_text(encoding="utf-8")
    assert len(view.facts) == 1 and len(view.trials) == 12 and view.rounds
    assert [s.done for s in view.standings] == list(range(1, 13))
    assert result.records[0].config == result.facts.baseline
    assert result.facts.origin == "replayed"


def test_the_same_seed_gives_the_same_trials_and_recommendation(space_file: SpaceFile) -> None:
    space = load_space(space_file())
    first, second = (run(replace(space, study=name)) for name in ("a", "b"))
    assert [r.config for r in first.records] == [r.config for r in second.records]
    assert [r.verdict for r in first.records] == [r.verdict for r in second.records]
    assert first.config == second.config and first.gain == second.gain


def test_an_interrupted_study_goes_on_where_it_stopped(space_file: SpaceFile) -> None:
    space = load_space(space_file())
    with pytest.raises(RunInterrupted) as caught:
        run(space, view=Watcher(interrupt_after=4))
    so_far = caught.value.result
    assert isinstance(caught.value, KeyboardInterrupt)
    assert so_far.report is not None and "interrupted" in so_far.report.read_text("utf-8")
    assert so_far.trial_count == 4 and so_far.status == "unconfirmed"
    assert not so_far.ending.complete and so_far.ending.stopped == "interrupted"

    kept = show("small")
    assert [r.config for r in kept.records[:4]] == [r.config for r in so_far.records[:4]]

    view = Watcher()
    result = run(space, view=view)
    assert any("4 of 12" in note and "8 to go" in note for note in view.notes)
    assert len(view.trials) == 8 and result.trial_count == 12
    assert result.ending.complete
    assert len({r.config for r in result.records}) == 12


def test_a_finished_study_is_only_shown_again(space_file: SpaceFile) -> None:
    space = load_space(space_file())
    first = run(space)
    view = Watcher()
    again = run(space, view=view)
    assert view.trials == [] and view.rounds == []
    assert again.recommendation == first.recommendation
    assert again.ending == first.ending


def test_what_stayed_undecided_is_proven_again(space_file: SpaceFile) -> None:
    # 2 % of noise and two figures that differ by less: no gain can be shown.
    grid = "batch_size,throughput_items_per_s,latency_p99_s,status,cost_s\n"
    Path(space_file().parent, "grid.csv").write_text(
        grid + "1,1000,0.001,ok,0.1\n2,1001,0.001,ok,0.1\n"
    )
    space = load_space(space_file(), ["workload.noise=0.02"])
    first = run(space)
    assert first.status == "undecided"
    view = Watcher()
    again = run(space, view=view)
    assert view.trials == [] and len(view.rounds) >= 6
    assert again.ending.elapsed_s > first.ending.elapsed_s


@pytest.mark.parametrize("change", ["confirm.duration=30s", "confirm.top=2", "budget.time=30min"])
def test_other_ways_to_prove_prove_again_once(change: str, space_file: SpaceFile) -> None:
    run(load_space(space_file()))
    changed = load_space(space_file(), [change])
    view = Watcher()
    result = run(changed, view=view)
    assert view.trials == [] and view.rounds and result.status == "confirmed"
    view = Watcher()
    assert run(changed, view=view).recommendation == result.recommendation
    assert view.rounds == []


def test_a_proof_is_not_given_up_for_lack_of_time_to_repeat_it(space_file: SpaceFile) -> None:
    first = run(load_space(space_file()))
    view = Watcher()
    result = run(load_space(space_file(), ["budget.time=1s"]), view=view)
    assert result.recommendation == first.recommendation == show("small").recommendation
    assert any("earlier proof stands" in note for note in view.notes)


def test_trials_that_others_still_measure_leave_the_proof_to_them(space_file: SpaceFile) -> None:
    space = load_space(space_file(trials=3))
    resolved = resolve(space)
    fingerprint = fingerprint_of(resolved.space, resolved.info)
    other = Study.open(resolved.space, Path("studies/small"), fingerprint=fingerprint)
    other.ask()
    view = Watcher()
    result = run(space, view=view)
    assert len(view.trials) == 2 and view.rounds == []
    assert result.ending.handed_over and not result.ending.complete
    assert result.ending.stopped == "the other workers are still measuring 1 trial"
    assert other.recommendation() is None and result.report is None
    other.abandon()
    assert run(space).status == "confirmed"


def test_of_two_that_see_all_trials_done_one_proves(space_file: SpaceFile) -> None:
    space = load_space(space_file(trials=3))
    resolved = resolve(space)
    fingerprint = fingerprint_of(resolved.space, resolved.info)
    other = Study.open(resolved.space, Path("studies/small"), fingerprint=fingerprint)
    assert other.claim(PROVING)
    view = Watcher()
    result = run(space, view=view)
    assert view.rounds == [] and result.ending.stopped == "another worker is proving the best"
    assert other.recommendation() is None
    other.release(PROVING)
    run(space)
    view = Watcher()
    run(space, view=view)
    assert view.rounds == []


def test_more_trials_are_a_new_total_and_are_proven_anew(space_file: SpaceFile) -> None:
    space = load_space(space_file())
    run(space)
    more = replace(space, budget=replace(space.budget, trials=15))
    view = Watcher()
    result = run(more, view=view)
    assert len(view.trials) == 3 and result.trial_count == 15 and view.rounds


def test_a_used_up_grid_ends_the_search_as_complete(space_file: SpaceFile) -> None:
    result = run(load_space(space_file(trials=500)))
    assert result.trial_count == 28
    assert result.ending.complete and result.counts["oom"] == 2


def test_time_ends_the_search_and_the_result_says_so(space_file: SpaceFile) -> None:
    space = load_space(space_file(trials=500), ["budget.time=20s"])
    result = run(space)
    assert not result.ending.complete
    assert result.ending.stopped == "stopped by time"
    assert 0 < result.trial_count < 28
    assert result.config is not None


def test_nothing_feasible_has_a_closest_and_no_recommendation(space_file: SpaceFile) -> None:
    result = run(load_space(space_file(limit="0.1ms")))
    assert result.status == "infeasible" and result.config is None
    assert result.closest is not None
    p99 = [r.measurement.latency_p99_s for r in result.records if r.measurement]
    assert result.closest.measurement is not None
    assert result.closest.measurement.latency_p99_s == min(p for p in p99 if p)
    assert show("small").status == "infeasible"


def test_confirmation_can_be_skipped(space_file: SpaceFile) -> None:
    result = run(load_space(space_file(), ["confirm=false"]))
    assert result.status == "unconfirmed"
    assert result.gain is not None and result.recommendation.against_baseline is None


def test_other_conditions_are_refused_unless_asked_for(space_file: SpaceFile) -> None:
    run(load_space(space_file(trials=3)))
    changed = load_space(space_file(trials=4), ["trial.duration=3s"])
    with pytest.raises(UsageError, match="other conditions"):
        run(changed)
    assert run(changed, on_change="continue").trial_count == 4


def test_show_reads_back_what_run_returned(space_file: SpaceFile) -> None:
    result = run(load_space(space_file()))
    kept = show("small")
    assert kept.recommendation == result.recommendation
    assert kept.records == result.records
    assert kept.facts == result.facts
    assert kept.ending == result.ending
    assert kept.report == result.report


def test_a_study_in_any_script_has_a_directory_of_its_name(space_file: SpaceFile) -> None:
    result = run(load_space(space_file(trials=2), ["study=测试", "confirm=false"]))
    assert result.report == Path("studies/测试/report.html")
    assert show("测试").facts.study == "测试"


def test_a_study_in_a_database_is_found_by_its_name_alone(space_file: SpaceFile) -> None:
    url = "sqlite:///kept.db"
    result = run(load_space(space_file(trials=3), [f"storage={url}", "confirm=false"]))
    assert Path("kept.db").is_file()
    assert show("small").records == result.records
    assert show("small", storage=url).records == result.records


def test_a_password_is_never_written(tmp_path: Path) -> None:
    remember_storage(tmp_path, "postgresql+psycopg://me:secret@host/db")
    kept = (tmp_path / "storage.txt").read_text()
    assert kept == "postgresql+psycopg://me@host/db\n"


@pytest.mark.parametrize(
    "name", ["../small", "/etc", "..", ".", "", "a/b", "a\\b", ".hidden", "a\nb"]
)
def test_names_that_leave_the_studies_directory_are_refused(
    name: str, space_file: SpaceFile
) -> None:
    space_file()
    with pytest.raises(UsageError, match="not the name of a study"):
        show(name)


def test_an_unknown_study_is_named_with_those_that_exist(space_file: SpaceFile) -> None:
    run(load_space(space_file(trials=2), ["confirm=false"]))
    with pytest.raises(UsageError, match=r"no study 'smal' in studies/; there are small"):
        show("smal")


def test_a_study_stopped_before_any_trial_is_shown_as_empty(
    space_file: SpaceFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("autotune.apps.run.run_trials", stop)
    with pytest.raises(RunInterrupted):
        run(load_space(space_file()))
    result = show("small")
    assert result.trial_count == 0 and result.status == "undecided"
    assert result.recommendation.reasons == ("no trial has a measurement",)


# --- from Python -------------------------------------------------------------------------------


def test_the_python_interface_takes_a_file_and_overrides(space_file: SpaceFile) -> None:
    result = autotune.run(str(space_file()), overrides=["budget.trials=3", "confirm=false"])
    assert isinstance(result, autotune.StudyResult)
    assert isinstance(result.config, Config) and result.trial_count == 3


def test_a_model_that_is_no_path_is_refused_in_a_sentence(space_file: SpaceFile) -> None:
    space = autotune.load_space(space_file())
    odd = replace(space, workload=replace(space.workload, model=lambda: None))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"model is a function.*path\.py:factory"):
        autotune.run(odd)
    with pytest.raises(UsageError, match=r"space is a function.*path\.py:factory"):
        autotune.run(lambda: None)  # type: ignore[arg-type]


# --- what is said of a space -------------------------------------------------------------------


def test_a_limit_on_a_column_that_was_not_recorded_is_refused(space_file: SpaceFile) -> None:
    path = space_file()
    grid = path.with_name("grid.csv")
    grid.write_text(grid.read_text().replace("latency_p99_s", "latency_p90_s", 1))
    with pytest.raises(UsageError, match=r"limits.latency_p99; add column latency_p99_s"):
        run(load_space(path))


def test_a_limit_that_changed_is_named_as_in_the_file(space_file: SpaceFile) -> None:
    run(load_space(space_file(trials=2), ["confirm=false"]))
    with pytest.raises(UsageError, match=r"limits.latency_p99 was 3.00 ms, now 10.0 ms"):
        run(load_space(space_file(trials=2, limit="10ms"), ["confirm=false"]))


def test_a_rule_of_the_device_that_the_file_has_too_is_shown_once(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    rule = "instance_count * cores_per_instance <= core_count"
    text = "workload: {model: mlp}\ndevice: cpu\nparams: {batch_size: [1, 2]}\n"
    for rules in (f"rules: [{rule}]\n", ""):
        path.write_text(text + rules)
        shown = study_facts(resolve(load_space(path))).settings["rules"]
        assert shown.count(rule) == 1
        assert ("of the device" in shown) is not bool(rules)
