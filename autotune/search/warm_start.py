"""What an earlier study of the same model on the same kind of device advises to try first.

An earlier study is advice, never data: no figure of it enters what the new study believes,
recommends or shows. What it would recommend under the new limits is tried right after the baseline.
While its figures hold up in the new study, some of the next trials are what a model of both studies
would try, and the others are the new search's own. So advice that is right is worth most of a
search, and advice that is wrong costs one trial, of which the new search learns as of any other.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from autotune.core.objective import METRICS
from autotune.core.outcomes import Outcome
from autotune.core.records import (
    DIMENSIONS,
    SCHEMA_VERSION,
    Config,
    Floats,
    Measurement,
    Scalar,
    TrialRecord,
    Verdict,
)
from autotune.measure.noise import QUIET, speed_left
from autotune.search.conditions import is_same
from autotune.search.proposer import PROBES
from autotune.search.study_model import StudyModel
from autotune.space.search_space import Parameter, SearchSpace

MAX_TRIALS = 60  # of an earlier study are kept
LEAST_TRIALS = 3  # measured ones, below which a study has nothing to advise
TURNS = (1, 2, 4, 6, 8, 10)  # trials that were begun when advice is asked for; the first is sure
MAX_NAME_CHARS = 500  # of a study, or of a condition, which may be a file's path
LAST_TIME_S = 253_402_214_400.0  # the last day of the year 9999, Unix time
NEAR = 1.5  # ratio up to which a number that is no choice stands for the nearest one

# Standard deviations of log(figure now / figure then), for the test of agreement.
SCATTER = 0.12  # of one configuration, if the earlier study holds up
NOISY_SCATTER = 0.4  # the same, if one of the two measurements was noisy
COMMON = 0.1  # of a factor common to all configurations, if nothing is known to differ
COMMON_OTHER = 0.5  # the same, if conditions differ
UNRELATED = 1.0  # if the earlier study says nothing about this one

ROOM = 0.1  # below a limit, relative: a short trial then shows that it holds

NOISY = "noisy"

_NEVER_DIFFER = ("workload",)
_GOAL = ("objective", "goals", "load", "limits.")
_NO_MATTER = ("trial", "python")  # windows and seeds: other figures, the same best
_FIGURES = tuple(metric.field for metric in METRICS.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class PastTrial:
    """A trial of an earlier study; `figures` are fields of `Measurement`, noise taken out."""

    config: Config
    outcome: Outcome
    figures: Mapping[str, float] = field(default_factory=dict)
    trust: str = QUIET


@dataclass(frozen=True, slots=True, kw_only=True)
class PastStudy:
    """What is kept of a study for later ones.

    Attributes:
        conditions: What it was measured under, see `conditions_of`.
        ended_at_s: When, Unix time.
        best: What it recommended; None if nothing held its limits.

    Raises:
        ValueError: It ended at no time that a calendar has, or holds a name that cannot be shown.
    """

    study: str
    conditions: Mapping[str, str]
    ended_at_s: float
    trials: tuple[PastTrial, ...]
    best: Config | None = None
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        if not 0 <= self.ended_at_s < LAST_TIME_S:
            raise ValueError(f"an earlier study cannot have ended at {self.ended_at_s:g} s")
        names = (self.study, *self.conditions)
        if not all(0 < len(name) <= MAX_NAME_CHARS and name.isprintable() for name in names):
            raise ValueError("it holds a name that cannot be shown")


# --- what is kept ------------------------------------------------------------------------------


def conditions_of(space: SearchSpace, fingerprint: Mapping[str, str]) -> dict[str, str]:
    """A study's conditions in words, without anything that should stay where it is.

    Paths are cut to names. What a user's options, command or environment hold is kept as a digest
    only: it may be a password, and whether it is the same is all that matters.
    """
    workload, load = space.workload, space.objective.load
    fixed = {p.name: p.choices[0] for p in space.params if len(p.choices) == 1}
    own = {name: value for name, value in fixed.items() if name not in DIMENSIONS}
    hidden = {
        "workload options": fingerprint.get("workload options", ""),
        "fixed parameters": repr(sorted(own.items())) if own else "",
    }
    return {
        **fingerprint,
        "workload": f"{workload.kind} {Path(workload.model).name}".strip(),
        **({"load": f"{load.kind} {Path(load.trace).name}"} if load.trace else {}),
        **{name: _digest(text) if text else "" for name, text in hidden.items()},
    }


def past_of(
    space: SearchSpace,
    fingerprint: Mapping[str, str],
    records: Sequence[TrialRecord],
    *,
    ended_at_s: float,
    best: Config | None = None,
) -> PastStudy | None:
    """What to keep of a study; None if too little was measured to advise anyone.

    Args:
        records: Its trials and fresh measurements, the more important ones first.
        best: What it recommends.
    """
    if sum(r.verdict.outcome.is_measured for r in records) < LEAST_TRIALS:
        return None
    searched = {p.name for p in space.searched} | set(DIMENSIONS)
    trials = [_past_trial(r, searched) for r in records if r.verdict.outcome.informs_search]
    leading, rest = trials[: MAX_TRIALS // 2], trials[MAX_TRIALS // 2 :]
    # Of those that are not among the best some from everywhere, to know where it was bad.
    step = max(1, math.ceil(len(rest) / (MAX_TRIALS - MAX_TRIALS // 2)))
    return PastStudy(
        study=space.study,
        conditions=conditions_of(space, fingerprint),
        ended_at_s=ended_at_s,
        trials=(*leading, *rest[::step]),
        best=None if best is None else _kept_config(best, searched),
    )


def _kept_config(config: Config, searched: set[str]) -> Config:
    return Config.from_dict({n: v for n, v in config.as_dict().items() if n in searched})


def _past_trial(record: TrialRecord, searched: set[str]) -> PastTrial:
    config = _kept_config(record.config, searched)
    return PastTrial(
        config=config,
        outcome=record.verdict.outcome,
        figures=_undisturbed(record),
        trust=QUIET if _is_quiet(record) else NOISY,
    )


def _is_quiet(record: TrialRecord) -> bool:
    return record.measurement is None or record.measurement.trust == QUIET


def _undisturbed(record: TrialRecord) -> dict[str, float]:
    """A record's figures as they are likely to have been without noise."""
    measurement = record.measurement
    if measurement is None:
        return {}
    left = speed_left(measurement)
    factors = {"rate": 1.0 / left, "duration": left}
    found = {}
    for metric in METRICS.values():
        value = getattr(measurement, metric.field)
        if value is not None and 0 < value < math.inf:
            found[metric.field] = float(value) * factors.get(metric.unit, 1.0)
    return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


# --- which study is like this one --------------------------------------------------------------


def differing(past: PastStudy, conditions: Mapping[str, str]) -> tuple[str, ...] | None:
    """The conditions that differ; None if the study says nothing about this one.

    The same model on the same kind of device is wanted; versions, limits, loads, sizes and the
    device's own size may differ, the fewer the better.
    """
    then = past.conditions
    must = [*_NEVER_DIFFER, *(["workload options"] if _is_command(conditions) else [])]
    if any(then.get(name, "") != conditions.get(name, "") for name in must):
        return None
    if _kind(then.get("device", "")) != _kind(conditions.get("device", "")):
        return None
    names = dict.fromkeys([*then, *conditions])
    return tuple(
        name
        for name in names
        if name not in _NO_MATTER and not is_same(name, then.get(name), conditions.get(name))
    )


def nearest_past(pasts: Iterable[PastStudy], conditions: Mapping[str, str]) -> PastStudy | None:
    """Of earlier studies the most similar one, of equally similar ones the latest."""
    known = [(found, p) for p in pasts if (found := differing(p, conditions)) is not None]
    return min(known, key=lambda pair: (len(pair[0]), -pair[1].ended_at_s), default=(None, None))[1]


def _is_command(conditions: Mapping[str, str]) -> bool:
    return conditions.get("workload", "").startswith("command")


def _kind(device: str) -> str:
    return device.partition(":")[0]


# --- what it advises ---------------------------------------------------------------------------


class Advice:
    """What an earlier study advises for a space.

    Attributes:
        past: The earlier study.
        differing: Conditions that differ between it and this one.
    """

    def __init__(self, past: PastStudy, space: SearchSpace, differing: Sequence[str]) -> None:
        self.past = past
        self.differing = tuple(differing)
        self._space = space
        self._records = tuple(_as_records(past, space))

        self._model = StudyModel(space, space.trial.seed)

    @cached_property
    def best(self) -> Config | None:
        """What to try first: what was proven for the same goal, else what its trials speak for.

        None if it has nothing to say about this space.
        """
        is_same_goal = not any(name.startswith(_GOAL) for name in self.differing)
        if is_same_goal and self.past.best is not None:
            proven = _placed(self.past.best, self._space)
            if proven is not None:
                return proven
        return self._model.recommended(self._records) or self._likely((), (), ())

    def next(
        self, begun: int, tried: Collection[Config], records: Sequence[TrialRecord]
    ) -> Config | None:
        """A configuration to try on its advice, new to this study; None: the search's own turn.

        Args:
            begun: Trials so far, the baseline included.
            tried: Their configurations. `records`: the finished ones.
        """
        if begun not in TURNS or self.best is None:
            return None
        if begun == TURNS[0]:
            return None if self.best in tried else self.best
        if not self.agrees(records):
            return None
        if begun == TURNS[1] and self._safe is not None and self._safe not in tried:
            return self._safe
        done = {record.config for record in records}
        likely = self._likely(records, [c for c in tried if c not in done], tried)
        return None if likely in tried else likely

    @cached_property
    def _safe(self) -> Config | None:
        """The best of what held its limits with room to spare, so that one trial can show it again.

        None without limits.
        """
        objective = self._space.objective
        if not objective.limits:
            return None
        tight = tuple(
            replace(
                x, bound=x.bound * (1 - ROOM if METRICS[x.metric].better == "lower" else 1 + ROOM)
            )
            for x in objective.limits
        )
        space = replace(self._space, objective=replace(objective, limits=tight))
        return StudyModel(space, space.trial.seed).recommended(self._records)

    def turns_taken(self, begun: int, records: Sequence[TrialRecord]) -> int:
        """About how many of so many trials were tried on its advice."""
        turns = sum(turn < begun for turn in TURNS)
        return turns if self.agrees(records) else min(turns, 1)

    def _likely(
        self,
        records: Sequence[TrialRecord],
        pending: Collection[Config],
        tried: Collection[Config],
    ) -> Config | None:
        """What a model of both studies would try next, past figures adapted to present ones."""
        factors = self._common_factors(records)
        past = [_scaled(record, factors) for record in self._records if record.config not in tried]
        if not past:
            return None
        number = len(past) + len(records) + PROBES  # no probe: enough is known
        proposal = self._model.next((*past, *records), pending=pending, number=number)
        return None if proposal is None else self._model.config(proposal.row)

    def _common_factors(self, records: Sequence[TrialRecord]) -> dict[str, float]:
        """By which factor each figure is larger now, as far as the scatter lets one tell."""
        factors = {}
        for name, found, scatter in self._deviations(self._both(records)):
            if found.size:
                weights = scatter**-2
                precision = self._common(scatter) ** -2 + float(weights.sum())
                factors[name] = math.exp(float(weights @ found) / precision)
        return factors

    def _both(self, records: Sequence[TrialRecord]) -> list[tuple[TrialRecord, TrialRecord]]:
        """Then and now, of the configurations tried in both studies."""
        now = {r.config: r for r in records if r.verdict.outcome.informs_search}
        return [(old, now[old.config]) for old in self._records if old.config in now]

    def agrees(self, records: Sequence[TrialRecord]) -> bool | None:
        """Whether the earlier figures hold up; None if nothing was measured in both studies.

        A likelihood ratio test over the configurations of both: either the figures differ by a
        common factor and a little scatter, or they have nothing to do with each other.
        """
        both = self._both(records)
        if not both:
            return None
        if any(a.verdict.outcome.is_measured != b.verdict.outcome.is_measured for a, b in both):
            return False
        return sum(_log_ratio(d, self._common(s), s) for _, d, s in self._deviations(both)) >= 0

    def _common(self, scatter: Floats) -> float:
        """How much a factor common to all may be, as a standard deviation."""
        is_alike = not self.differing and not np.any(scatter > SCATTER)
        return COMMON if is_alike else COMMON_OTHER

    def _deviations(
        self, both: Sequence[tuple[TrialRecord, TrialRecord]]
    ) -> Iterable[tuple[str, Floats, Floats]]:
        """Per metric that matters, the logarithms of figure now over figure then, and scatter."""
        objective = self._space.objective
        wanted = [g.metric for g in objective.goals] + [x.metric for x in objective.limits]
        figures = [(_undisturbed(new), _undisturbed(old)) for old, new in both]
        scatter = [
            SCATTER if _is_quiet(new) and _is_quiet(old) else NOISY_SCATTER for old, new in both
        ]
        for metric in dict.fromkeys(wanted):
            name = METRICS[metric].field
            known = [
                (math.log(new[name] / old[name]), s)
                for (new, old), s in zip(figures, scatter, strict=True)
                if new.get(name) and old.get(name)
            ]
            yield name, np.array([d for d, _ in known]), np.array([s for _, s in known])


def advice_of(past: PastStudy, space: SearchSpace, fingerprint: Mapping[str, str]) -> Advice:
    """What an earlier study advises for a study of this space under these conditions."""
    return Advice(past, space, differing(past, conditions_of(space, fingerprint)) or ())


def _log_ratio(deviations: Floats, common: float, scatter: Floats) -> float:
    """Log likelihood ratio: a common factor and scatter, against independent values."""
    if not deviations.size:
        return 0.0
    same = np.diag(scatter**2) + common**2
    return _log_density(deviations, same) - _log_density(
        deviations, UNRELATED**2 * np.eye(deviations.size)
    )


def _log_density(values: Floats, covariance: Floats) -> float:
    """Of a normal distribution about 0, without its constant."""
    _, log_volume = np.linalg.slogdet(covariance)
    return -0.5 * float(values @ np.linalg.solve(covariance, values)) - 0.5 * float(log_volume)


def _as_records(past: PastStudy, space: SearchSpace) -> Iterable[TrialRecord]:
    """Its trials as they would be in this space; those outside it are left out."""
    for number, trial in enumerate(past.trials):
        config = _placed(trial.config, space)
        if config is None:
            continue
        # Of a damaged file: no logarithm could be taken of it.
        figures = {n: v for n, v in trial.figures.items() if n in _FIGURES and 0 < v < math.inf}
        is_measured = trial.outcome.is_measured
        yield TrialRecord(
            number=number,
            config=config,
            phase="search",
            verdict=Verdict(outcome=trial.outcome),
            # Its noise is out of the figures already: nothing says how much there was.
            measurements=(Measurement(trust=trial.trust, **figures),) if is_measured else (),  # type: ignore[arg-type]
        )


def _placed(config: Config, space: SearchSpace) -> Config | None:
    """A configuration in terms of this space; what it does not say is as in the baseline."""
    known = config.as_dict()
    values: dict[str, Scalar] = {}
    for parameter in space.params:
        if parameter.name in known:
            value = _near(parameter, known[parameter.name])
            if value is None:
                return None
            values[parameter.name] = value
    placed = space.baseline.changed(**values)
    return placed if space.contains(placed) else None


def _near(parameter: Parameter, value: Scalar) -> Scalar | None:
    if value in parameter.choices:
        return value
    if not parameter.is_numeric or isinstance(value, (str, bool)) or value <= 0:
        return None
    nearest = float(parameter.nearest(value))
    is_near = nearest > 0 and max(nearest / value, value / nearest) <= NEAR
    return parameter.nearest(value) if is_near else None


def _scaled(record: TrialRecord, factors: Mapping[str, float]) -> TrialRecord:
    """A record with some figures multiplied."""
    if record.measurement is None:
        return record
    known = {n: v for n in factors if (v := getattr(record.measurement, n)) is not None}
    changed = {name: factors[name] * value for name, value in known.items()}
    return replace(record, measurements=(replace(record.measurement, **changed),))
