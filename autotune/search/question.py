"""What a study asks of the model: its goal and limits, and what its trials say about them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autotune.core.objective import METRICS, Limit, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Measurement, Scalar, TrialRecord
from autotune.measure.noise import speed_left
from autotune.search.cross import Functional
from autotune.search.encoding import Dimension, Encoding
from autotune.space.search_space import SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A limit on a quantity of the model: it holds while the quantity is at most `bound`."""

    quantity: Functional
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A study's goal and limits as quantities of the model.

    Attributes:
        outputs: Keys of `Observation.values`; the first becomes the cycle.
        coupled: Which of them follow the cycle.
        utility: What is maximised.
        goals: The goals apart, each to be maximised, where trade-offs between them are wanted.
    """

    outputs: tuple[str, ...]
    coupled: tuple[bool, ...]
    utility: Functional
    limits: tuple[Bound, ...]
    with_batch: bool
    goals: tuple[Functional, ...] = ()

    @classmethod
    def of(cls, objective: Objective, encoding: Encoding) -> Question:
        """Everything on a log scale: goals add up, and a limit is a bound on a logarithm."""
        rate = next((g.metric for g in objective.goals if g.metric in _RATES), "throughput")
        bounds = [x for x in objective.limits if not _is_within_rate(x, objective)]
        wanted = [g.metric for g in objective.goals] + [x.metric for x in bounds]
        outputs = (rate, *dict.fromkeys(name for name in wanted if name != rate))

        def quantity(metric: str, sign: float) -> Functional:
            weights = [0.0] * len(outputs)
            weights[outputs.index(metric)] = -sign if metric == rate else sign
            return Functional(weights=tuple(weights), work=sign if metric == rate else 0.0)

        def up(metric: str) -> float:
            return 1.0 if METRICS[metric].better == "higher" else -1.0

        goals = [quantity(g.metric, up(g.metric) * g.weight) for g in objective.goals]
        utility = Functional(
            weights=tuple(sum(column) for column in zip(*(g.weights for g in goals), strict=True)),
            work=sum(g.work for g in goals),
        )
        apart = tuple(quantity(g.metric, up(g.metric)) for g in objective.goals)
        limits = tuple(
            Bound(
                quantity=quantity(x.metric, -up(x.metric)), bound=-up(x.metric) * math.log(x.bound)
            )
            for x in bounds
            if x.bound > 0
        )
        return cls(
            outputs=outputs,
            coupled=tuple(n == rate or METRICS[n].unit == "duration" for n in outputs),
            utility=utility,
            limits=limits,
            with_batch=encoding.has_mechanism,
            goals=apart if objective.front else (),
        )

    @classmethod
    def of_values(cls, constraints: Sequence[str], *, as_rate: bool) -> Question:
        """For trials without records: a value to maximise, and constraints that hold at <= 0."""
        outputs = ("value", *constraints)
        limits = tuple(
            Bound(quantity=Functional(weights=tuple(float(n == c) for n in outputs)), bound=0.0)
            for c in constraints
        )
        first = (-1.0 if as_rate else 1.0, *(0.0 for _ in constraints))
        return cls(
            outputs=outputs,
            coupled=tuple(i == 0 for i in range(len(outputs))),
            utility=Functional(weights=first, work=1.0 if as_rate else 0.0),
            limits=limits,
            with_batch=as_rate,
        )


_RATES = ("throughput", "arrival_rate")


def _is_within_rate(limit: Limit, objective: Objective) -> bool:
    """True of the tail that a sought rate is chosen to keep: the rate says all about it."""
    return objective.load.seeks_rate and METRICS[limit.metric].quantile is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One finished trial.

    Attributes:
        row: Choice index of every parameter.
        values: Output to value on the model's scale (logarithms, but for bare values).
        runs: False if the configuration cannot run.
        out_of_memory: True if that is why.
        cost_s: What the trial cost, starts and compilation included; 0: unknown.
    """

    row: tuple[int, ...]
    values: Mapping[str, float] = field(default_factory=dict)
    runs: bool = True
    out_of_memory: bool = False
    cost_s: float = 0.0


def observe(record: TrialRecord, question: Question, encoding: Encoding) -> Observation | None:
    """What a record tells the model; None if nothing (an accident, a foreign configuration).

    A noisy trial counts as what it is likely to have been without the noise.
    """
    outcome = record.verdict.outcome
    row = encoding.row(record.config.as_dict())
    if row is None or not outcome.informs_search:
        return None
    cost_s = record.cost_s if math.isfinite(record.cost_s) else 0.0
    values = {}
    for metric in question.outputs:
        value = getattr(record.measurement, METRICS[metric].field, None)
        if value is not None and value > 0 and math.isfinite(value):
            values[metric] = math.log(value) + _noise_lost(metric, record.measurement)
    # Over the limit without a rate: none keeps the limit, so that the configuration is of no use.
    is_useless = outcome is Outcome.OVER_LIMIT and question.outputs[0] not in values
    if outcome.is_infeasible or is_useless:
        is_oom = outcome is Outcome.OOM
        return Observation(row=row, runs=False, out_of_memory=is_oom, cost_s=cost_s)
    return Observation(row=row, values=values, cost_s=cost_s)


def _noise_lost(metric: str, measurement: Measurement | None) -> float:
    """Logarithm of what noise is likely to have done to a figure, to be added to it."""
    if measurement is None:
        return 0.0
    lost = -math.log(speed_left(measurement))
    return {"rate": lost, "duration": -lost}.get(METRICS[metric].unit, 0.0)


def encode(space: SearchSpace) -> Encoding:
    """The encoding of a space's parameters."""
    return Encoding([Dimension.of(p.name, p.choices) for p in space.params])


def config_of(encoding: Encoding, row: Sequence[int]) -> dict[str, Scalar]:
    """The parameter values of a row of choice indices."""
    return {d.name: d.choices[i] for d, i in zip(encoding.dimensions, row, strict=True)}
