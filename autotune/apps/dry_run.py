"""`autotune run --dry-run`: what would be done, and about how long it would take."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from autotune.apps.crew import bound, make_crew
from autotune.apps.resolve import limit_needs, preflight, resolve, study_facts
from autotune.apps.view import View
from autotune.core.codec import to_json_dict
from autotune.measure.enough import Enough
from autotune.results.study_result import StudyFacts
from autotune.search.schedule import proof_s
from autotune.space.search_space import SearchSpace
from autotune.trial.session import Launcher
from autotune.workloads.grid import read_grid

PREPARE_S = 10.0
"""Starting Python with a framework, and building the model once before the first trial."""

OPEN_S = 2.5
"""Starting one configuration's processes, loading its model, warming up; more for large ones."""

ITERATION_S = 0.01  # a guess: how long a call takes is only known once it was measured
MAX_COUNTED = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What a run would do.

    Attributes:
        combinations: Before the rules. `allowed`: after them, at most `MAX_COUNTED`.
        trials: How many would be run.
        seconds: About how long it would take, the proof included. `full_s`: the same without
            a budget of time. `is_virtual`: on a virtual clock, so that one waits for a moment only.
        needs: How much measuring the limits need per configuration; None: no such limit.
        notes: What was changed while the space was resolved.
    """

    facts: StudyFacts
    combinations: int
    allowed: int
    trials: int
    seconds: float
    full_s: float
    is_virtual: bool = False
    needs: Enough | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_cut_short(self) -> bool:
        """The budget of time would end the search, or shorten the proof."""
        return self.seconds < self.full_s

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
                "estimate_without_budget_s": self.full_s,
                "estimate_is_virtual": self.is_virtual,
                "limit_needs": self.needs,
                "notes": self.notes,
            }
        )


def dry_run(space: SearchSpace, *, workers: int | None = None, dask: Any = None) -> DryRun:
    """Resolve a space and count, without running anything that takes time.

    Args:
        workers, dask: As of a run.
    Raises:
        UsageError, UnavailableError: As a run would.
    """
    crew = None if workers is None else make_crew(space, workers, dask)
    with bound(crew.cores if crew else ()):
        if crew is not None and not crew.dask:
            space = replace(space, device=crew.places[0].devices[0])
        return _planned(space, workers or 1)


def _planned(space: SearchSpace, workers: int) -> DryRun:
    """What so many workers would do."""
    resolved = resolve(space)
    space = resolved.space
    allowed = space.allowed_count(MAX_COUNTED)
    trials = min(allowed, space.budget.trials)
    options = space.trial
    window_s = options.duration_s or ITERATION_S * (options.iterations or 0)
    is_virtual = resolved.origin != "measured"
    open_s = _recorded_cost_s(space) if is_virtual else OPEN_S
    seconds = math.ceil(trials / workers) * (window_s + open_s) + proof_s(space, open_s)
    seconds += 0.0 if is_virtual else PREPARE_S
    call_s = None
    if is_virtual:  # which takes no time
        with Launcher() as launcher:
            call_s = preflight(resolved, launcher, View())
    needs = limit_needs(space, call_s)
    combinations = len(space.rows) if space.rows is not None else space.combination_count
    return DryRun(
        facts=study_facts(resolved),
        combinations=combinations,
        allowed=allowed,
        trials=trials,
        seconds=min(seconds, space.budget.time_s or seconds),
        full_s=seconds,
        is_virtual=is_virtual,
        needs=needs,
        notes=(*space.notes, *((needs.text(),) if needs else ())),
    )


def _recorded_cost_s(space: SearchSpace) -> float:
    """What a recorded configuration costs beyond its window, on average; 0 if simulated."""
    if space.workload.kind != "replay":
        return 0.0
    rows = read_grid(space.workload.model).rows
    return fmean(rows[config].cost_s for config in space.configs())
