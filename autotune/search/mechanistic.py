"""The project's own way to propose trials, as an optuna sampler.

An ordinary optuna sampler, for ask/tell and `optimize`, on any storage, with any number of
workers. It keeps no state that matters between asks (parsed trials are cached), so that
workers agree and a resumed study goes on as if it had not stopped.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler
from optuna.search_space import intersection_search_space
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from autotune.core.codec import from_json_dict
from autotune.core.objective import Objective
from autotune.core.records import Floats, Scalar, TrialRecord
from autotune.search.encoding import Dimension, Encoding
from autotune.search.pareto import posterior_of
from autotune.search.proposer import Candidates, propose
from autotune.search.question import Observation, Question, config_of, encode, observe
from autotune.search.telling import RUNS
from autotune.space.search_space import SearchSpace

MAX_LEVELS = 64  # choices a numeric distribution is cut into
VALUE_SCALE = 0.4  # values without a known meaning are brought to this spread


class MechanisticSampler(BaseSampler):
    """Proposes configurations by a mechanistic model of serving; see `surrogate`.

    Args:
        space: Its allowed configurations are the only ones proposed; without it, the grid
            comes from the distributions (the ladder 1, 2, 3, 4, 6, 8, 12 ... for a log integer).
        objective: Goals and limits; by default the space's. Without any, a trial's value and
            constraints are all that is used, and so they are for trials without a record.
    """

    def __init__(
        self,
        *,
        space: SearchSpace | None = None,
        objective: Objective | None = None,
        seed: int = 0,
    ) -> None:
        self._space = space
        self._objective = objective or (space.objective if space is not None else None)
        self._seed = seed
        self._grid: Candidates | None = None
        self._grid_key: object = None
        self._plans: dict[int, dict[str, Scalar]] = {}
        self._records: dict[tuple[str, int, object], TrialRecord] = {}

    # --- what optuna calls ---------------------------------------------------------------------

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """The parameters that all trials have; with a space none, see `sample_independent`."""
        if self._space is not None:
            return {}
        found = intersection_search_space(study.get_trials(deepcopy=False))
        return {name: d for name, d in found.items() if not d.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The next configuration; nothing if there is no parameter."""
        if not search_space:
            return {}
        values = self._next(study, trial, search_space)
        return {name: values[name] for name in search_space}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """One parameter of the next configuration of the space.

        A space says itself what there is, so whichever distributions a trial uses do. Of a
        parameter of which nothing is known, the choices are spread over the first trials.
        """
        if self._space is not None:
            if trial.number not in self._plans:
                self._plans[trial.number] = self._next(study, trial, {})
            value = self._plans[trial.number].get(param_name)
            if value is not None and param_distribution._contains(
                param_distribution.to_internal_repr(value)
            ):
                return value
        choices = _choices(param_distribution)
        name_offset = zlib.crc32(param_name.encode()) / 2**32
        place = (name_offset + self._seed * 0.7549 + trial.number * 0.6180) % 1.0
        return choices[min(int(place * len(choices)), len(choices) - 1)]

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Forget the plan of a finished trial."""
        self._plans.pop(trial.number, None)

    def _next(
        self, study: Study, trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]
    ) -> dict[str, Scalar]:
        """The configuration to measure next."""
        grid = self._grid_for(search_space)
        history = self._history(study, trial, grid.encoding)
        proposal = propose(
            posterior_of(grid.encoding, history.question, history.observations),
            grid,
            pending=history.pending,
            barred=history.barred,
            number=history.number,
            seed=self._seed,
        )
        if proposal is None:  # all is barred; optuna wants a configuration all the same
            row: Sequence[int] = grid.rows[trial.number % len(grid.rows)].tolist()
        else:
            row = proposal.row
        return config_of(grid.encoding, row)

    # --- the study as the model sees it --------------------------------------------------------

    def _grid_for(self, search_space: Mapping[str, BaseDistribution]) -> Candidates:
        key = None if self._space is not None else tuple(sorted(map(str, search_space.items())))
        if self._grid is None or key != self._grid_key:
            if self._space is not None:
                encoding = encode(self._space)
            else:
                pairs = search_space.items()
                encoding = Encoding([Dimension.of(n, _choices(d)) for n, d in pairs])
            self._grid = Candidates(encoding, self._space, self._seed)
            self._grid_key = key
        return self._grid

    def _history(self, study: Study, trial: FrozenTrial, encoding: Encoding) -> History:
        """Sort all trials but this one into observed, pending and barred ones."""
        fixed = {d.name: d.choices[0] for d in encoding.dimensions if len(d.choices) == 1}
        trials = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        rows = {t.number: encoding.row({**fixed, **t.params}) for t in trials}
        trials = [t for t in trials if rows[t.number] is not None]
        done = [t for t in trials if t.state is TrialState.COMPLETE]
        records = {
            t.number: self._record(study, t)
            for t in trials
            if t.state.is_finished() and RECORD_KEY in t.user_attrs
        }
        pending = [t for t in trials if t.state is TrialState.RUNNING]
        failed = [t for t in trials if t.state is TrialState.FAIL]
        accidents = [t for t in failed if not _is_retried(records.get(t.number))]
        if self._objective is not None and any(t.number in records for t in done):
            question = Question.of(self._objective, encoding)
            seen: Sequence[Observation | None] = [
                observe(records[t.number], question, encoding) for t in done if t.number in records
            ]
        else:
            question, seen = _from_values(study, done, rows, encoding)
        observations = [o for o in seen if o is not None]
        barred = {o.row for o in observations if not o.runs}
        barred |= {row for t in (*pending, *accidents) if (row := rows[t.number]) is not None}
        return History(
            question=question,
            observations=observations,
            pending=[row for t in pending if (row := rows[t.number]) is not None],
            barred=barred,
            number=len(done) + len(pending) + len(accidents),
        )

    def _record(self, study: Study, trial: FrozenTrial) -> TrialRecord:
        """The record of a trial, parsed once."""
        key = (study.study_name, trial.number, trial.datetime_complete)
        if key not in self._records:
            raw = trial.user_attrs[RECORD_KEY]
            plain = json.loads(raw) if isinstance(raw, str) else raw
            self._records[key] = from_json_dict(TrialRecord, plain)
        return self._records[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A study as the model sees it.

    Attributes:
        barred: Configurations not to be proposed: they cannot run, had an accident or are
            being measured.
        number: How many trials there have been.
    """

    question: Question
    observations: list[Observation]
    pending: list[tuple[int, ...]]
    barred: set[tuple[int, ...]]
    number: int


RECORD_KEY = "record"


def _is_retried(record: TrialRecord | None) -> bool:
    return record is not None and record.verdict.outcome.is_retried


def _from_values(
    study: Study,
    trials: Sequence[FrozenTrial],
    rows: Mapping[int, tuple[int, ...] | None],
    encoding: Encoding,
) -> tuple[Question, list[Observation]]:
    """Read trials that have no records: their values, and constraints that hold at <= 0.

    A positive value to maximise beside a batch size is taken for a rate of items.
    """
    names = list(dict.fromkeys(name for t in trials for name in t.constraints))
    constraints = np.array([[t.constraints.get(n, math.nan) for n in names] for t in trials])
    constraints = constraints.reshape(len(trials), len(names))
    signs = [1.0 if d == StudyDirection.MAXIMIZE else -1.0 for d in study.directions]
    values = np.array([t.values for t in trials], float).reshape(len(trials), len(signs))
    broken = np.array([t.constraints.get(RUNS, -1.0) > 0 for t in trials], dtype=bool)
    broken |= (constraints > 0).any(1) & ~((values > 0) & np.isfinite(values)).all(1)
    usable = values[~broken]
    as_rate = bool(
        len(signs) == 1 and signs[0] > 0 and encoding.has_mechanism and np.all(usable > 0)
    )
    value = np.log(np.where(broken, 1.0, values[:, 0])) if as_rate else _one_value(values * signs)
    scale = np.nanmedian(np.abs(constraints), axis=0) if len(trials) else np.ones(len(names))
    soft = np.sign(constraints) * np.log1p(np.abs(constraints) / np.where(scale > 0, scale, 1.0))
    observations = []
    for i, t in enumerate(trials):
        row = rows[t.number]
        assert row is not None
        found = {"value": float(value[i]), **dict(zip(names, VALUE_SCALE * soft[i], strict=True))}
        known = {name: float(v) for name, v in found.items() if math.isfinite(v)}
        observations.append(Observation(row=row, runs=not broken[i], values=known))
    return Question.of_values(names, as_rate=as_rate), observations


def _one_value(values: Floats) -> Floats:
    """Several values to maximise as one of a common spread: the worst shortfall counts.

    The weights of the augmented Chebyshev scalarisation (Knowles 2006, ParEGO) turn with the
    number of trials, so that all of the front is visited.
    """
    if not len(values):
        return np.zeros(0)
    finite = np.where(np.isfinite(values), values, np.nan)
    low, high = np.nanmin(finite, axis=0), np.nanmax(finite, axis=0)
    scaled = (finite - low) / np.where(high > low, high - low, 1.0)
    if scaled.shape[1] > 1:
        weights = np.random.default_rng(len(values)).dirichlet(np.ones(scaled.shape[1]))
        short = weights * (1.0 - scaled)
        scaled = -(short.max(axis=1) + 0.05 * short.sum(axis=1))[:, None]
    column = scaled[:, 0]
    spread = float(np.nanstd(column))
    standard: Floats = (column - np.nanmean(column)) / (spread if spread > 0 else 1.0)
    return VALUE_SCALE * standard


# --- distributions -----------------------------------------------------------------------------


def _choices(distribution: BaseDistribution) -> tuple[Scalar, ...]:
    """The values of a distribution that are proposed, at most `MAX_LEVELS` of a number."""
    if isinstance(distribution, CategoricalDistribution):
        return tuple(distribution.choices)  # type: ignore[arg-type]
    assert isinstance(distribution, (IntDistribution, FloatDistribution))
    low, high, step = distribution.low, distribution.high, distribution.step
    if distribution.log and isinstance(distribution, IntDistribution):
        ladder = sorted({v for k in range(64) for v in (2**k, 3 * 2**k) if low <= v <= high})
        return tuple(dict.fromkeys((int(low), *ladder, int(high))))
    if distribution.log:
        return tuple(float(v) for v in np.geomspace(low, high, 33))
    if step is None:
        return tuple(float(v) for v in np.linspace(low, high, 33))
    count = int((high - low) / step + 1e-9) + 1
    index = np.unique(np.linspace(0, count - 1, min(count, MAX_LEVELS)).round().astype(int))
    whole = isinstance(distribution, IntDistribution)
    return tuple(int(low + step * i) if whole else float(low + step * i) for i in index)
