"""`autotune run --dry-run`: what would be done, and about how long it would take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autotune.apps.resolve import resolve, study_facts
from autotune.core.codec import to_json_dict
from autotune.results.study_result import StudyFacts
from autotune.search.confirm import reserve_s
from autotune.space.search_space import SearchSpace

TRIAL_OVERHEAD_S = 1.0
"""Opening and warming up one configuration; most models need less, large ones more."""

ITERATION_S = 0.01  # a guess: how long a call takes is only known once it was measured
MAX_COUNTED = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What a run would do.

    Attributes:
        combinations: Before the rules. `allowed`: after them, at most `MAX_COUNTED`.
        trials: How many would be run.
        seconds: About how long it would take, simulated seconds included.
        notes: What was changed while the space was resolved.
    """

    facts: StudyFacts
    combinations: int
    allowed: int
    trials: int
    seconds: float
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As `run --dry-run --json` prints it."""
        return to_json_dict(
            {
                "schema": 1,
                "study": self.facts.study,
                "settings": self.facts.settings,
                "params": self.facts.params,
                "combinations": self.combinations,
                "allowed": self.allowed,
                "trials": self.trials,
                "estimate_s": self.seconds,
                "notes": self.notes,
            }
        )


def dry_run(space: SearchSpace) -> DryRun:
    """Resolve a space and count, without running anything.

    Raises:
        UsageError, UnavailableError: As a run would.
    """
    resolved = resolve(space)
    space = resolved.space
    allowed = space.allowed_count(MAX_COUNTED)
    trials = min(allowed, space.budget.trials)
    options = space.trial
    window_s = options.duration_s or ITERATION_S * (options.iterations or 0)
    seconds = trials * (window_s + TRIAL_OVERHEAD_S) + reserve_s(space)
    combinations = len(space.rows) if space.rows is not None else space.combination_count
    return DryRun(
        facts=study_facts(resolved),
        combinations=combinations,
        allowed=allowed,
        trials=trials,
        seconds=min(seconds, space.budget.time_s or seconds),
        notes=space.notes,
    )
