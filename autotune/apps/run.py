"""`autotune run`: search, prove, recommend, report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from autotune.apps.prove import prove
from autotune.apps.resolve import Resolved, again, preflight, resolve, study_facts
from autotune.apps.samples import save_samples
from autotune.apps.store import ENDING, FACTS, remember_storage, study_dir, write_report
from autotune.apps.view import Standing, View
from autotune.core.codec import from_json_dict, to_json_dict
from autotune.core.errors import StorageError, UsageError
from autotune.core.records import Phase, Recommendation, Result, TrialRecord
from autotune.results.recommend import Ranking, decide, rank
from autotune.results.study_result import Ending, StudyFacts, StudyResult
from autotune.search.conditions import fingerprint_of
from autotune.search.study import Asked, StopReason, StoredStudy, Study
from autotune.search.worker import MAX_SAME_CRASHES, run_trials
from autotune.space.search_space import SearchSpace
from autotune.trial.group import group_spec
from autotune.trial.session import Launcher


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
) -> StudyResult:
    """Run a study, or go on with it, to its recommendation.

    Args:
        on_change: What to do if the stored study was made under other conditions.
        command: How to run it again, for the report.
    Raises:
        UsageError, UnavailableError, StorageError: Before the first trial.
        RunInterrupted: On Ctrl-C or SIGTERM, at once; what was done is kept.
    """
    view = view or View()
    resolved = resolve(space)
    facts = study_facts(resolved, command or again(space))
    directory = study_dir(studies_dir, resolved.space.study)
    view.resolved(facts)
    for note in resolved.space.notes:
        view.note(note)
    with Launcher() as launcher:
        if not _has_trials(resolved.space, directory):
            preflight(resolved, launcher, view)
        study = Study.open(
            resolved.space,
            directory,
            fingerprint=fingerprint_of(resolved.space, resolved.info),
            on_change=on_change,
        )
        for note in study.notes:
            view.note(note)
        remember_storage(directory, resolved.space.storage)
        study.keep(FACTS, to_json_dict(facts))
        return _Run(resolved, facts, study, launcher, view).to_the_end()


def _has_trials(space: SearchSpace, directory: Path) -> bool:
    try:
        return bool(StoredStudy.load(space.study, directory, storage=space.storage).records())
    except (UsageError, StorageError):
        return False  # opening it for real will say what is wrong


@dataclass(slots=True)
class _Run:
    """One run of a study: from where it stands to its end."""

    resolved: Resolved
    facts: StudyFacts
    study: Study
    launcher: Launcher
    view: View
    new: list[TrialRecord] = field(default_factory=list)
    before_s: float = 0.0

    def to_the_end(self) -> StudyResult:
        stored = self.study.attributes().get(ENDING)
        self.before_s = from_json_dict(Ending, stored).elapsed_s if stored else 0.0
        ending = Ending(stopped="it was killed", elapsed_s=self.before_s)
        try:
            ending = self._search()
            recommendation = self._settled()
            if recommendation is None and ending.crashed:
                recommendation = self._unproven()
            recommendation = recommendation or self._prove()
        except KeyboardInterrupt:
            ending = replace(self._ending(StopReason.INTERRUPTED), complete=ending.complete)
            self.study.keep(ENDING, to_json_dict(ending))
            raise RunInterrupted(self._result(self._unproven(), ending)) from None
        ending = replace(ending, elapsed_s=self.before_s + self.launcher.now_s())
        if not self.new and stored:
            ending = replace(ending, elapsed_s=self.before_s)
        self.study.keep(ENDING, to_json_dict(ending))
        self.study.save_recommendation(recommendation)
        result = self._result(recommendation, ending)
        return replace(result, report=write_report(result, self.study.directory))

    def _search(self) -> Ending:
        space, launcher = self.resolved.space, self.launcher
        progress = self.study.progress()
        if progress.done < progress.total:
            launcher.prepare(group_spec(space.baseline, space, self.resolved.info))
        reason = run_trials(
            self.study,
            space,
            self.resolved.info,
            launcher,
            on_start=self._on_start,
            on_record=self._on_record,
            on_result=self._on_result,
            time_s=self._left_s(),
        )
        ending = self._ending(reason)
        self.study.keep(ENDING, to_json_dict(ending))
        return ending

    def _prove(self) -> Recommendation:
        return prove(
            self._ranking(),
            self.resolved.space,
            self.resolved.info,
            self.launcher,
            on_progress=self.view.confirming,
            on_result=self._on_result,
            left_s=self._left_s,
        )

    def _settled(self) -> Recommendation | None:
        """What an earlier run recommended, if nothing has been done since that could change it."""
        stored = self.study.recommendation()
        if stored is None or self.new:
            return None
        space = self.resolved.space
        skipped = stored.status == "unconfirmed" and space.confirm is not None
        outside = stored.record is not None and not space.contains(stored.record.config)
        return None if skipped or outside else stored

    def _unproven(self) -> Recommendation:
        return decide(self._ranking(), self.facts.objective)

    def _ranking(self) -> Ranking:
        """Of the trials inside the space as it is now; it may have been changed since."""
        space = self.resolved.space
        inside = [r for r in self.study.records() if space.contains(r.config)]
        return rank(inside, self.facts.objective, self.facts.baseline)

    def _result(self, recommendation: Recommendation, ending: Ending) -> StudyResult:
        return StudyResult(
            facts=self.facts,
            records=self.study.records(),
            recommendation=recommendation,
            ending=ending,
        )

    def _ending(self, reason: StopReason) -> Ending:
        complete = reason in (StopReason.TRIALS, StopReason.EXHAUSTED)
        return Ending(
            complete=complete,
            crashed=reason is StopReason.CRASHES,
            stopped="" if complete else _stopped_text(reason, self.new),
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

    def _on_result(self, phase: Phase, number: int, result: Result) -> None:
        save_samples(self.study.directory, phase, number, result)

    def _standing(self) -> Standing:
        progress = self.study.progress()
        return Standing(
            done=progress.done,
            total=progress.total,
            best=self._ranking().best,
            left_s=self._left_s(),
        )


def _stopped_text(reason: StopReason, records: Sequence[TrialRecord]) -> str:
    if reason is StopReason.TIME:
        return "stopped by time"
    if reason is StopReason.INTERRUPTED:
        return "interrupted"
    last = next((r.verdict.reasons[0] for r in reversed(records) if r.verdict.reasons), "")
    return f"the last {MAX_SAME_CRASHES} trials crashed alike: {last}"
