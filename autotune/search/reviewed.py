"""A study's storage as tools see it that know constraints only as Optuna had them before version 5.

optuna-dashboard tells which trials are feasible by one list in a trial's system attributes, takes
the best value for the best trial, and shows every attribute, our whole records among them. Nothing
is stored for that: trials are changed on their way to the reader.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Container
from typing import Any, cast

from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

CONSTRAINTS = "constraints"
"""The system attribute that held all constraints as a list."""

OURS = ("record", "lease", "config")
"""Attributes that are for this tool alone, or say again what the parameters say."""


class Reviewed(BaseStorage):
    """A storage whose trials say whether they are feasible; all else is passed on to `inner`.

    Args:
        study_id: The study that is reviewed; trials of others are left as they are.
        best: Number of its recommended trial; None: the best value of those that are feasible.
    """

    def __init__(self, inner: BaseStorage, study_id: int, best: int | None) -> None:
        self._inner = inner
        self._study_id = study_id
        self._best = best

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        """The trials, each with its feasibility."""
        trials = self._inner.get_all_trials(study_id, deepcopy=deepcopy, states=states)
        return [_judged(t) for t in trials] if study_id == self._study_id else trials

    def get_best_trial(self, study_id: int) -> FrozenTrial:
        """The recommended trial, else the best feasible one, else the best of all."""
        if study_id != self._study_id:
            return self._inner.get_best_trial(study_id)
        trials = self.get_all_trials(study_id, deepcopy=False, states=(TrialState.COMPLETE,))
        for trial in trials:
            if trial.number == self._best:
                return trial
        feasible = [t for t in trials if all(c <= 0 for c in t.constraints.values())]
        if not feasible or len(self.get_study_directions(study_id)) > 1:
            return _judged(self._inner.get_best_trial(study_id))
        sign = 1.0 if self.get_study_directions(study_id)[0].name == "MAXIMIZE" else -1.0
        return max(feasible, key=lambda t: sign * cast(float, t.value))


def _judged(trial: FrozenTrial) -> FrozenTrial:
    changed = copy.copy(trial)
    constraints = trial.constraints
    if constraints and CONSTRAINTS not in trial.system_attrs:
        # Only the old form: both would count double.
        kept = {k: v for k, v in trial.system_attrs.items() if not k.startswith(f"{CONSTRAINTS}:")}
        changed._system_attrs = {**kept, CONSTRAINTS: list(constraints.values())}
    holds = {"feasible": "yes" if all(c <= 0 for c in constraints.values()) else "no"}
    attributes = {k: v for k, v in trial.user_attrs.items() if k not in OURS}
    changed._user_attrs = {**(holds if constraints else {}), **attributes}
    return changed


def _passed_on(name: str) -> Callable[..., Any]:
    def method(self: Reviewed, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._inner, name)(*args, **kwargs)

    return method


for _name in Reviewed.__abstractmethods__:
    setattr(Reviewed, _name, _passed_on(_name))
abc.update_abstractmethods(Reviewed)  # type: ignore[type-abstract]


def reviewed(storage: BaseStorage, study_id: int, best: int | None) -> BaseStorage:
    """The storage for a reviewer; arguments as of `Reviewed`."""
    made: Any = Reviewed  # complete by now, which only a type checker does not see
    return cast(BaseStorage, made(storage, study_id, best))
