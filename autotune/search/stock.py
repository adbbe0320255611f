"""Optuna's own samplers, asked about a history as a study of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from autotune.core.objective import METRICS, Limit, Objective
from autotune.search.grid import Attempt, Grid, Point
from autotune.search.telling import RUNS, directions, told

MAX_HISTORY = 300  # configurations a model is fitted to; bounds the time of a proposal
GP_LOCAL_SEARCHES = 4


def gp_sampler(seed: int) -> BaseSampler:
    sampler = optuna.samplers.GPSampler(seed=seed, n_startup_trials=5)
    # Local searches are nearly all of a proposal's time; on a grid a few find the same point.
    # No public option says so; where a later Optuna knows no such attribute, nothing changes.
    sampler._n_local_search = GP_LOCAL_SEARCHES
    return sampler


def optuna_point(
    grid: Grid, objective: Objective, inner: BaseSampler, history: Sequence[Attempt]
) -> Point:
    """Ask an Optuna sampler, which sees the history as a study of its own.

    There every parameter is the index of its choice: even steps on the grid as the user
    thinks of it, whatever the units. Trials outside the present space are left out.
    """
    searched = {p.name: (k, p) for k, p in enumerate(grid.params) if grid.sizes[k] > 1}
    distributions: dict[str, BaseDistribution] = {
        name: IntDistribution(0, grid.sizes[k] - 1)
        if p.is_numeric
        else CategoricalDistribution(tuple(range(grid.sizes[k])))
        for name, (k, p) in searched.items()
    }
    scratch = optuna.create_study(directions=directions(objective), sampler=inner)
    for point, values, constraints in _learnable(grid, objective, history[-MAX_HISTORY:]):
        scratch.add_trial(
            optuna.trial.create_trial(
                state=TrialState.RUNNING if values is None else TrialState.COMPLETE,
                values=values,
                params={name: point[k] for name, (k, _) in searched.items()},
                distributions=distributions,
                constraints=constraints if values is not None else None,
            )
        )
    wish = scratch.ask(fixed_distributions=distributions).params
    return tuple(int(wish.get(p.name, 0)) for p in grid.params)


STOCK: Mapping[str, Callable[[int], BaseSampler]] = {
    "gp": gp_sampler,
    "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed),
}
"""Name to the maker of a sampler, from a seed."""


Example = tuple[Point, "list[float] | None", "dict[str, float]"]


def _learnable(grid: Grid, objective: Objective, history: Sequence[Attempt]) -> Iterator[Example]:
    """What a model learns from: logarithms, and for what cannot run the worst that was measured.

    Throughput and latency span decades and their noise is relative, so that a model of their
    logarithms fits; a value far below all measured ones would bend it everywhere.
    """
    known = [(grid.point(a.config), a.record) for a in history]
    told_of = {
        id(r): told(r, objective) for _, r in known if r and r.verdict.outcome.informs_search
    }
    measured = [told_of[id(r)] for _, r in known if r and r.verdict.outcome.is_measured]
    signs = [1.0 if d == "maximize" else -1.0 for d in directions(objective)]
    columns = [[_log(t.values[g]) for t in measured if t.values] for g in range(len(signs))]
    worst = [
        s * min((s * v for v in column), default=0.0)
        for s, column in zip(signs, columns, strict=True)
    ]
    any_broken = any(r is not None and r.verdict.outcome.is_infeasible for _, r in known)
    for point, record in known:
        if point is None:
            continue
        if record is None:
            yield point, None, {}
        elif id(record) in told_of:
            t = told_of[id(record)]
            fits = record.verdict.outcome.is_measured and t.values is not None
            values = [_log(v) for v in t.values or ()] if fits else worst
            yield point, values, _soft(t.constraints, objective, any_broken)


def _soft(
    constraints: Mapping[str, float], objective: Objective, any_broken: bool
) -> dict[str, float]:
    """Constraints by their relative excess; `RUNS` only once something could not run."""
    limits = {METRICS[limit.metric].field: limit for limit in objective.limits}
    soft = {name: _log_excess(limits[name], constraints[name]) for name in limits}
    return {**soft, RUNS: constraints[RUNS]} if any_broken else soft


def _log_excess(limit: Limit, excess: float) -> float:
    """log of how far a figure is beyond its bound; the same sign as the excess."""
    if METRICS[limit.metric].better == "lower":
        ratio = (limit.bound + excess) / limit.bound if limit.bound > 0 else 0.0
    else:
        ratio = limit.bound / (limit.bound - excess) if limit.bound > excess else math.inf
    if not (0.0 < ratio < math.inf):
        return excess
    return math.log(ratio)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else math.log(1e-12)
