"""`autotune run`: search, prove, recommend, report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from autotune.apps.accuracy import with_accuracy
from autotune.apps.crew import Crew, bound, core_names, interference, make_crew
from autotune.apps.learning_rate import needs_advice, with_learning_rate
from autotune.apps.library import advice_note, find_past, remember, warm_start_of
from autotune.apps.looking import known_diagnosis, setting_of
from autotune.apps.member import Task, take_free
from autotune.apps.prove import prove
from autotune.apps.resolve import (
    Resolved,
    again,
    limit_needs,
    preflight,
    prepare,
    resolve,
    study_facts,
)
from autotune.apps.samples import SampleKeeper
from autotune.apps.store import (
    BASIS,
    ENDING,
    FACTS,
    INSIGHT,
    PROVING,
    read_diagnoses,
    remember_storage,
    study_dir,
    write_diagnoses,
    write_report,
)
from autotune.apps.view import Standing, View
from autotune.core.codec import from_json_dict, to_json_dict
from autotune.core.diagnosis import Diagnosis
from autotune.core.errors import UnavailableError, UsageError
from autotune.core.insight import Insight
from autotune.core.outcomes import Outcome
from autotune.core.records import Recommendation, TrialRecord
from autotune.devices import device_kind, find_devices
from autotune.devices.reserve import Reservation
from autotune.results.checking import checked_by_trials
from autotune.results.ranking import Ranking, rank
from autotune.results.recommend import decide
from autotune.results.study_result import STOPPED_BY_TIME, Ending, StudyFacts, StudyResult
from autotune.search.conditions import fingerprint_of
from autotune.search.guard import Guard
from autotune.search.storage import NoStorageError, check_url
from autotune.search.study import Asked, StopReason, StoredStudy, Study
from autotune.search.study_model import StudyModel
from autotune.search.watch import Watch
from autotune.search.worker import MAX_SAME_FAILURES, run_trials, sigterm_interrupts
from autotune.space.search_space import SearchSpace
from autotune.trial.canary import open_canary
from autotune.trial.group import group_spec
from autotune.trial.session import Launcher
from autotune.workloads import WORKLOADS


class RunInterrupted(KeyboardInterrupt):
    """A run was stopped by hand; what was done is kept.

    Attributes:
        result: What the study holds so far, unproven.
    """

    def __init__(self, result: StudyResult) -> None:
        super().__init__("interrupted")
        self.result = result


def run(
    space: SearchSpace,
    *,
    studies_dir: Path = Path("studies"),
    view: View | None = None,
    on_change: Literal["refuse", "continue"] = "refuse",
    command: tuple[str, ...] = (),
    workers: int | None = None,
    dask: Any = None,
) -> StudyResult:
    """Run a study, or go on with it, to its recommendation.

    Args:
        on_change: What to do if the stored study was made under other conditions.
        command: How to run it again, for the report.
        workers: How many processes search, each on a device or on cores of its own; None: this
            one does. The proof is measured by this one, alone.
        dask: Where these run: a Dask scheduler's address or a client; None: on this machine.
    Raises:
        UsageError, UnavailableError, StorageError: Before the first trial.
        RunInterrupted: On Ctrl-C or SIGTERM, at once; what was done is kept.
    """
    view = view or View()
    check_url(space.storage)
    crew = None if workers is None else make_crew(space, workers, dask)
    with Reservation() as reserved, bound(crew.cores if crew else ()):
        if crew is None:
            space = _on_free_device(space, reserved)
        elif not crew.dask:
            space = replace(space, device=crew.places[0].devices[0])
        return _run(space, studies_dir, view, on_change, command, crew, Launcher(reserved))


def _run(
    space: SearchSpace,
    studies_dir: Path,
    view: View,
    on_change: Literal["refuse", "continue"],
    command: tuple[str, ...],
    crew: Crew | None,
    launcher: Launcher,
) -> StudyResult:
    resolved = resolve(space)
    facts = study_facts(resolved, command or again(space))
    directory = study_dir(studies_dir, resolved.space.study)
    view.resolved(facts)
    for note in resolved.space.notes:
        view.note(note)
    prepare(resolved, view)
    with launcher:
        if not crew:
            _share_cores(resolved, launcher, view)
        if not _has_trials(resolved.space, directory):
            call_s = preflight(resolved, launcher, view)
            if needs := limit_needs(resolved.space, call_s):
                view.note(needs.text())
        fingerprint = fingerprint_of(resolved.space, resolved.info)
        study = Study.open(
            resolved.space,
            directory,
            fingerprint=fingerprint,
            on_change=on_change,
            past=find_past(studies_dir, resolved.space, fingerprint),
        )
        for note in (*study.notes, *advice_note(study)):
            view.note(note)
        remember_storage(directory, resolved.space.storage)
        study.keep(FACTS, to_json_dict(facts))
        if crew is not None:
            launcher.close()  # what it has is the workers' now
        return _Run(resolved, facts, study, launcher, view, studies_dir, crew).to_the_end()


def _on_free_device(space: SearchSpace, reserved: Reservation) -> SearchSpace:
    """The space on an accelerator that nobody measures on, where its file leaves the choice."""
    if ":" in space.device or not WORKLOADS[space.workload.kind].is_real:
        return space
    infos = find_devices(space.device)
    if len(infos) < 2 or not device_kind(infos[0].kind).is_exclusive:
        return space
    return replace(space, device=take_free((space.device,), reserved))


def _share_cores(resolved: Resolved, launcher: Launcher, view: View) -> None:
    """Say so where another study measures on the same cores; they may be shared."""
    if resolved.info.kind == "cpu" and WORKLOADS[resolved.space.workload.kind].is_real:
        cores = [core for node in resolved.info.cores for core in node]
        try:
            launcher.reserved.add(core_names(cores), wait_s=0.0)
        except UnavailableError as error:
            view.note(str(error))


def _has_trials(space: SearchSpace, directory: Path) -> bool:
    try:
        return bool(StoredStudy.load(space.study, directory, storage=space.storage).records())
    except (UsageError, NoStorageError):
        return False  # opening it for real will say what is wrong, if anything is


@dataclass
class _Run:
    """One run of a study: from where it stands to its end."""

    resolved: Resolved
    facts: StudyFacts
    study: Study
    launcher: Launcher
    view: View
    studies_dir: Path
    crew: Crew | None = None
    new: list[TrialRecord] = field(default_factory=list)
    before_s: float = 0.0
    watch: Watch | None = None

    def __post_init__(self) -> None:
        self.samples = SampleKeeper(self.study.directory)

    def to_the_end(self) -> StudyResult:
        stored = self.study.attributes().get(ENDING)
        self.before_s = from_json_dict(Ending, stored).elapsed_s if stored else 0.0
        ending = Ending(stopped="it was killed", elapsed_s=self.before_s)
        try:
            ending = self._search()
            if busy := self._others():
                ending = replace(
                    ending, complete=False, handed_over=True, stopped=ending.stopped or busy
                )
                return self._result(self._kept() or self._unproven(), ending)
            try:
                self.study.keep(ENDING, to_json_dict(ending))
                recommendation, ending = self._settled(ending)
                self.study.keep(ENDING, to_json_dict(ending))
                return self._reported(recommendation, ending)
            finally:
                self.study.release(PROVING)
        except KeyboardInterrupt:
            ending = replace(self._ending(StopReason.INTERRUPTED), complete=ending.complete)
            self.study.keep(ENDING, to_json_dict(ending))
            so_far = self._kept() or self._unproven()
            raise RunInterrupted(self._reported(so_far, ending)) from None

    def _search(self) -> Ending:
        space, launcher = self.resolved.space, self.launcher
        # Before any process of ours is started, whose imports would be in its way.
        canary = open_canary(space.workload, self.resolved.info, launcher)
        self.watch = Watch(self.study, canary)
        progress = self.study.progress()
        if self.crew is not None:
            return self._ending(self._search_by(self.crew))
        if progress.done < progress.total:
            launcher.prepare(group_spec(space.baseline, space, self.resolved.info))
        reason = run_trials(
            self.study,
            space,
            self.resolved.info,
            launcher,
            on_start=self._on_start,
            on_record=self._on_record,
            on_result=self.samples.keep,
            watch=self.watch,
            time_s=self._left_s(),
        )
        return self._ending(reason)

    def _search_by(self, crew: Crew) -> StopReason:
        """Let a crew search; this process looks on."""
        task = Task(
            space=self.resolved.space,
            studies_dir=self.studies_dir.absolute(),
            left_s=self._left_s(),
        )
        seen = {record.number for record in self.study.records()}

        def look() -> None:
            for record in self.study.records():
                if record.number not in seen:
                    seen.add(record.number)
                    self._on_record(record)

        with sigterm_interrupts():
            reason, virtual_s = crew.search(task, look=look, say=self.view.note)
        look()
        self.launcher.charge(virtual_s)
        if word := interference(self.new, len(crew.places)):
            self.view.note(word)
        return reason

    def _others(self) -> str:
        """What other workers of the study are still at, empty if it is this one's to prove."""
        running = self.study.progress().running
        if running:
            return f"the other workers are still measuring {running} trial{'s' * (running > 1)}"
        if not self.study.claim(PROVING):
            return "another worker is proving the best"
        return ""

    def _settled(self, ending: Ending) -> tuple[Recommendation, Ending]:
        """The recommendation, proven unless an earlier one still stands, and how it ended."""
        kept = self._kept()
        if kept is not None and not self._is_open(kept):
            return kept, replace(ending, elapsed_s=self.before_s) if not self.new else ending
        recommendation = self._unproven() if ending.crashed else self._prove()
        ending = replace(ending, elapsed_s=self.before_s + self.launcher.now_s())
        if kept is not None and kept.confirmations and not recommendation.confirmations:
            self.view.note("nothing could be measured again; the earlier proof stands")
            return kept, ending
        insight = self._insight(recommendation)
        recommendation = self._with_probability(recommendation, insight)
        if recommendation.record is not None and self.resolved.space.workload.data is not None:
            self.view.confirming("the winner on your own items")
            recommendation = with_accuracy(recommendation, self.resolved, self.launcher)
        if needs_advice(recommendation, self.resolved.space):
            self.view.confirming("how gradients vary, for the learning rate of another batch")
            recommendation = with_learning_rate(
                recommendation, self.resolved, self.launcher, left_s=self._left_s()
            )
        self.study.save_recommendation(recommendation)
        self.study.keep(BASIS, self._basis())
        self.study.keep(INSIGHT, to_json_dict(insight))
        return recommendation, ending

    def _kept(self) -> Recommendation | None:
        """What an earlier run recommended, if it still is a choice and no trial came after it."""
        stored, basis = self.study.recommendation(), self.study.attributes().get(BASIS, {})
        if stored is None or basis.get("trials") != self._basis()["trials"]:
            return None
        space = self.resolved.space
        outside = stored.record is not None and not space.contains(stored.record.config)
        return None if outside else stored

    def _is_open(self, kept: Recommendation) -> bool:
        """True if proving again may bring something: it is not settled, or may now take longer."""
        unproven = kept.status == "unconfirmed" and self.resolved.space.confirm is not None
        changed = self.study.attributes().get(BASIS) != self._basis()
        return kept.status == "undecided" or unproven or changed

    def _basis(self) -> dict[str, object]:
        """What a recommendation was made from."""
        space, records = self.resolved.space, self.study.records()
        basis = {
            "trials": sum(not record.verdict.outcome.is_retried for record in records),
            "confirm": space.confirm,
            "time_s": space.budget.time_s,
        }
        return to_json_dict(basis)

    def _prove(self) -> Recommendation:
        space = self.resolved.space
        return prove(
            self._ranking(self._insight()),
            space,
            self.resolved.info,
            self.launcher,
            on_progress=self.view.confirming,
            on_result=self.samples.keep,
            left_s=self._left_s,
            watch=self.watch,
            check=Guard(self.study, space, self.resolved.info, self.launcher).check,
        )

    def _unproven(self) -> Recommendation:
        insight = self._insight()
        recommendation = decide(self._ranking(insight), self.facts.objective)
        return self._with_probability(recommendation, insight)

    def _inside(self) -> list[TrialRecord]:
        """The trials inside the space as it is now; it may have been changed since."""
        space = self.resolved.space
        return [r for r in self.study.records() if space.contains(r.config)]

    def _ranking(self, insight: Insight | None = None) -> Ranking:
        return rank(self._inside(), self.facts.objective, self.facts.baseline, insight)

    def _insight(self, recommendation: Recommendation | None = None) -> Insight:
        """What the model of the search believes, the proof's fresh measurements included."""
        space = self.resolved.space
        fresh = recommendation.confirmations if recommendation else ()
        chosen = recommendation.record if recommendation else None
        model = StudyModel(space, space.trial.seed)
        return model.insight([*self._inside(), *fresh], chosen.config if chosen else None)

    def _with_probability(self, recommendation: Recommendation, insight: Insight) -> Recommendation:
        """The recommendation with the probability that its limits hold."""
        record, objective = recommendation.record, self.facts.objective
        if record is None or not objective.limits:
            return recommendation
        belief, confirm = insight.of(record.config), self.resolved.space.confirm
        probability = None
        if belief is not None and not objective.load.seeks_rate:  # there the rate says it all
            probability = belief.limit_probability
        if confirm and record.phase == "confirm" and record.verdict.outcome is Outcome.OK:
            probability = max(probability or 0.0, 1.0 - confirm.alpha)
        return replace(recommendation, limit_probability=probability)

    def _result(self, recommendation: Recommendation, ending: Ending) -> StudyResult:
        kept = self.study.attributes().get(INSIGHT)
        return StudyResult(
            facts=self.facts,
            records=self.study.records(),
            recommendation=recommendation,
            ending=ending,
            insight=from_json_dict(Insight, kept) if kept else None,
            warm_start=warm_start_of(self.study),
            conditions=self.study.fingerprint,
        )

    def _reported(self, recommendation: Recommendation, ending: Ending) -> StudyResult:
        result = self._result(recommendation, ending)
        if not result.trial_count:
            return result
        result = replace(result, diagnoses=self._diagnoses(result))
        if result.diagnoses:
            write_diagnoses(result.diagnoses, self.study.directory)
        if not ending.handed_over:
            remember(result, self.resolved.space, self.study.fingerprint, self.studies_dir)
        return replace(result, report=write_report(result, self.study.directory))

    def _diagnoses(self, result: StudyResult) -> tuple[Diagnosis, ...]:
        """Where the time of the baseline goes, and of what is recommended, as far as it is known.

        What was recorded of them stays; forecasts are held against the trials of today.
        """
        kept = {d.config: d for d in read_diagnoses(self.study.directory) if d.files}
        setting, found = setting_of(self.resolved), []
        for config in dict.fromkeys((self.facts.baseline, result.config)):
            record = next((r for r in result.records if r.config == config), None)
            made = kept.get(config) if config is not None else None
            if made is None and record is not None:
                made = known_diagnosis(record, self.resolved)
            if made is not None:
                found.append(checked_by_trials(made, result.records, setting))
        return tuple(found)

    def _ending(self, reason: StopReason) -> Ending:
        complete = reason in (StopReason.TRIALS, StopReason.EXHAUSTED, StopReason.GAIN)
        return Ending(
            complete=complete,
            crashed=reason is StopReason.CRASHES,
            stopped=_stopped_text(reason, self.resolved.space, self.new),
            elapsed_s=self.before_s + self.launcher.now_s(),
        )

    def _left_s(self) -> float | None:
        budget_s = self.resolved.space.budget.time_s
        return None if budget_s is None else max(budget_s - self.launcher.now_s(), 0.0)

    # --- told by the layers below --------------------------------------------------------------

    def _on_start(self, asked: Asked) -> None:
        self.view.trial_started(asked.number, asked.config, self._standing())

    def _on_record(self, record: TrialRecord) -> None:
        self.new.append(record)
        self.view.trial_finished(record, self._standing())

    def _standing(self) -> Standing:
        progress = self.study.progress()
        return Standing(
            done=progress.done,
            total=progress.total,
            best=self._ranking().best,
            left_s=self._left_s(),
        )


def _stopped_text(reason: StopReason, space: SearchSpace, records: Sequence[TrialRecord]) -> str:
    if reason in (StopReason.TRIALS, StopReason.EXHAUSTED):
        return ""
    if reason is StopReason.GAIN:
        return f"one more trial is expected to gain less than {100 * (space.budget.gain or 0):g} %"
    if reason is StopReason.TIME:
        return STOPPED_BY_TIME
    if reason is StopReason.INTERRUPTED:
        return "interrupted"
    last = next((r.verdict.reasons[0] for r in reversed(records) if r.verdict.reasons), "")
    return f"the last {MAX_SAME_FAILURES} trials failed alike: {last}"
