"""What a command reports while it runs; `cli` shows it, a script ignores it."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.core.records import Config, TrialRecord
from autotune.results.study_result import StudyFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a search stands.

    Attributes:
        done: Trials that count, of `total`.
        best: The best that holds its limits so far, else the best undecided one.
        left_s: Seconds of the budget of time that are left, None: no limit.
    """

    done: int
    total: int
    best: TrialRecord | None = None
    left_s: float | None = None


class View:
    """Told of everything; does nothing with it. Subclasses show what they want."""

    def resolved(self, facts: StudyFacts) -> None:
        """What is about to be done, defaults filled in; before the first trial."""

    def note(self, text: str) -> None:
        """A sentence the user should read."""

    def preparing(self, text: str) -> None:
        """Something that takes a moment begins."""

    def trial_started(self, number: int, config: Config, standing: Standing) -> None:
        """A trial begins."""

    def trial_finished(self, record: TrialRecord, standing: Standing) -> None:
        """A trial ended, whatever came of it."""

    def confirming(self, text: str) -> None:
        """A round of the confirmation begins."""
