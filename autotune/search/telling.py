"""A trial's record in Optuna's words: state, values, constraints and readable attributes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState

from autotune.core.objective import METRICS, Limit, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, Scalar, TrialRecord, Verdict
from autotune.space.search_space import Parameter, SearchSpace

RUNS = "runs"
"""The constraint that says whether a configuration can run at all."""

WORST = {"higher": 0.0, "lower": 1e12}
"""The value of a configuration that cannot run, by its metric's better direction: finite, since
samplers and dashboards choke on infinities, and worse than anything measured."""

MAX_SCORE = 690.0  # whose exponential is still finite


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What Optuna is told of a finished trial.

    Attributes:
        values: One per direction; None for a trial that the search must not learn from.
        constraints: <= 0 holds. Every limit in the objective's order, then `RUNS`: samplers go
            by order and count, not by name.
    """

    state: TrialState
    values: tuple[float, ...] | None
    constraints: Mapping[str, float]
    attributes: Mapping[str, str | float]


def directions(objective: Objective) -> list[Literal["minimize", "maximize"]]:
    """Optuna's direction of each value: one per goal, or that of the one they count as."""
    if objective.is_weighted:
        return ["maximize"]
    better = (METRICS[goal.metric].better for goal in objective.goals)
    return ["maximize" if b == "higher" else "minimize" for b in better]


def told(record: TrialRecord, objective: Objective) -> Told:
    """Translate a record that `checked` has let through."""
    outcome = record.verdict.outcome
    return Told(
        state=TrialState.COMPLETE if outcome.informs_search else TrialState.FAIL,
        values=_values(record, objective) if outcome.informs_search else None,
        constraints=_constraints(record, objective),
        attributes=_attributes(record),
    )


def checked(record: TrialRecord, objective: Objective) -> TrialRecord:
    """The record, or its wrong_output version if a figure of it is missing or not finite."""
    if not record.verdict.outcome.is_measured:
        return record
    wrong = [
        f"{name} is {value}, not a number"
        for name, value in (*record.verdict.objectives.items(), *record.verdict.excess.items())
        if not math.isfinite(value)
    ]
    goals = [METRICS[goal.metric].field for goal in objective.goals]
    wrong += [f"{name} was not measured" for name in goals if name not in record.verdict.objectives]
    if not wrong:
        return record
    reasons = (*wrong, *record.verdict.reasons)
    return replace(record, verdict=Verdict(outcome=Outcome.WRONG_OUTPUT, reasons=reasons))


def _values(record: TrialRecord, objective: Objective) -> tuple[float, ...]:
    metrics = [METRICS[goal.metric] for goal in objective.goals]
    if objective.is_weighted:
        infeasible = record.verdict.outcome.is_infeasible
        # The product of powers whose logarithm is the score: positive, as every other value.
        score = -math.inf if infeasible else objective.score(record.verdict.objectives)
        return (math.exp(min(score, MAX_SCORE)),)
    if record.verdict.outcome.is_infeasible:
        return tuple(WORST[metric.better] for metric in metrics)
    return tuple(float(record.verdict.objectives[metric.field]) for metric in metrics)


def _constraints(record: TrialRecord, objective: Objective) -> dict[str, float]:
    runs = record.verdict.outcome.is_measured
    limits = {METRICS[limit.metric].field: limit for limit in objective.limits}
    constraints = {
        field: float(record.verdict.excess.get(field, 0.0)) if runs else _worst_excess(limit)
        for field, limit in limits.items()
    }
    return {**constraints, RUNS: -1.0 if runs else 1.0}


def _worst_excess(limit: Limit) -> float:
    """What a limit counts as exceeded by where nothing could be measured: twice the bound."""
    return abs(limit.bound) or 1.0


def _attributes(record: TrialRecord) -> dict[str, str | float]:
    measurement = record.measurement
    figures: dict[str, float | None] = {"cost_s": record.cost_s}
    if measurement is not None:
        p99_s, memory = measurement.latency_p99_s, measurement.memory_peak_bytes
        figures |= {
            "throughput_items_per_s": measurement.throughput_items_per_s,
            "latency_p99_ms": None if p99_s is None else p99_s * 1e3,
            "memory_peak_mib": None if memory is None else memory / 2**20,
        }
    known = {k: v for k, v in figures.items() if v is not None and math.isfinite(v)}
    return {
        "outcome": str(record.verdict.outcome),
        "reasons": "; ".join(record.verdict.reasons),
        **({"trust": measurement.trust} if measurement is not None else {}),
        **known,
    }


# --- parameters --------------------------------------------------------------------------------


def optuna_params(
    space: SearchSpace, config: Config, trials: Sequence[FrozenTrial]
) -> tuple[dict[str, Scalar], dict[str, BaseDistribution]]:
    """A configuration's searched parameters with their real values, and their distributions.

    Optuna refuses a parameter whose kind, scale or categories have changed since an earlier
    trial of the study. Such a parameter gets a fresh name ("cores_per_instance~2"), so that old
    trials keep their values and new choices can be tried.
    """
    values = config.as_dict()
    params: dict[str, Scalar] = {}
    distributions: dict[str, BaseDistribution] = {}
    for parameter in space.searched:
        name, distribution = _fitting(parameter, trials)
        params[name] = values[parameter.name]
        distributions[name] = distribution
    return params, distributions


def _fitting(parameter: Parameter, trials: Sequence[FrozenTrial]) -> tuple[str, BaseDistribution]:
    name, turn = parameter.name, 1
    while True:
        known = next((t.distributions[name] for t in trials if name in t.distributions), None)
        distribution = _distribution(parameter)
        if known is None or _fits(known, distribution):
            return name, distribution
        turn += 1
        name = f"{parameter.name}~{turn}"


def _distribution(parameter: Parameter) -> BaseDistribution:
    if not parameter.is_numeric:
        return CategoricalDistribution(parameter.choices)
    low, high = parameter.choices[0], parameter.choices[-1]
    log = parameter.log and float(low) > 0
    if all(isinstance(choice, int) for choice in parameter.choices):
        return IntDistribution(int(low), int(high), log=log)
    return FloatDistribution(float(low), float(high), log=log)


def _fits(old: BaseDistribution, new: BaseDistribution) -> bool:
    if isinstance(old, CategoricalDistribution) or isinstance(new, CategoricalDistribution):
        return old == new
    return type(old) is type(new) and getattr(old, "log", None) == getattr(new, "log", None)
