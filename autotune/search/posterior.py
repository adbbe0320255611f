"""What the trials so far say about every configuration: its worth, and whether it may be used.

The rule of recommendation: of the *tested* configurations that hold every limit with a
probability P of at least .95 (.9 from 25 trials on), the one with the best posterior mean, less
a charge for the chance that a limit is broken. Below .99 it must have been measured twice, below
.95 three times. The best observed one instead is mostly the luckiest: its throughput
disappoints, and with a limit it breaks it in several of a hundred studies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autotune.core.records import Floats, Ints
from autotune.search.costs import TrialCosts
from autotune.search.cross import Cross, Functional
from autotune.search.encoding import Encoding, Features
from autotune.search.question import Bound, Observation, Question
from autotune.search.repeats import pool
from autotune.search.scales import Data, square_distance
from autotune.search.surrogate import Surrogate

MAX_DISTINCT = 120  # configurations the model is built on; the most promising are kept
FEW_TRIALS = 25
HELD_FEW, HELD = 0.95, 0.9
SURE = 0.99  # from here on one measurement is enough: closer to a limit, the lucky are chosen;
# two are from `HELD_FEW` on
VOTE_PRIOR = 0.3  # weight of "it runs" beside the votes of configurations nearby
TAIL_FREEDOM = 4.0  # degrees of freedom of the probability that a limit holds
HEADROOM = 0.4  # of one measurement's noise is kept free below a limit: no one can tell less
UNLIKELY = 0.35  # to hold its limits: not worth another measurement
ENOUGH, HARDLY = 3, 0.07  # with fewer measurements, one of which may be an outlier
WORTHWHILE = 0.01  # of the gain that an open configuration must promise to be measured again
LOOKAHEAD = (2, 4)  # measurements of one configuration that are thought ahead, beside one
CHARGE = 0.4  # of a broken limit's loss: `holds` is cautious, far more often than it says do they
CAUTION = 1.2  # multiplies the model's standard deviation there


@dataclass(frozen=True, slots=True, kw_only=True)
class Incumbent:
    """What would be recommended now.

    Attributes:
        row: The configuration, as choice indices. `place`: its coordinates.
        score: Its worth: posterior utility, a broken limit counted as nothing. `mean`: the
            utility itself.
        runner_up: Worth of the next best that may be recommended, -inf if none.
    """

    row: tuple[int, ...]
    place: Floats
    score: float
    mean: float
    holds: float
    runner_up: float


def expected_excess(mean: Floats, spread: Floats) -> Floats:
    """Mean of the positive part of normal variables."""
    from scipy.special import ndtr

    z = np.maximum(mean / spread, -40.0)  # far below, both terms are zero anyway
    excess: Floats = spread * (z * ndtr(z) + np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi))
    return excess


class Posterior:
    """The model of a study's trials, and its answers.

    Attributes:
        tested: Distinct configurations with a measurement, one row of choice indices each.
        broken: Those that cannot run. `silent`: those of which no trial gave a figure.
        trial_count: Finished trials that said something.
    """

    def __init__(
        self, encoding: Encoding, question: Question, observations: Sequence[Observation]
    ) -> None:
        self.encoding = encoding
        self.question = question
        self.trial_count = len(observations)
        self._observations = observations
        width = len(encoding.dimensions)
        self.broken = _distinct((o.row for o in observations if not o.runs), width)
        self.silent = _distinct((o.row for o in observations if o.runs and not o.values), width)
        self._starved = _distinct((o.row for o in observations if o.out_of_memory), width)
        working = [o for o in observations if o.runs and o.values]
        self.tested, values, counts, scatter = pool(working, question.outputs, width)
        if question.with_batch and len(self.tested):
            log_work = encoding.features(self.tested).log_work
            values[:, 0] = log_work - values[:, 0]  # from a rate to the cycle
        order = _most_promising(values, question, encoding, self.tested)
        self.tested, values, counts = self.tested[order], values[order], counts[order]
        scatter = scatter[order]
        self._known = self.tested  # and what is expected
        self.surrogate = None
        if len(self.tested) and np.any(~np.isnan(values)):
            data = Data(
                features=encoding.features(self.tested),
                values=values,
                counts=counts,
                scatter=scatter,
                coupled=question.coupled,
            )
            self.surrogate = Surrogate.fit(data, with_batch=question.with_batch)

    @cached_property
    def costs(self) -> TrialCosts | None:
        """What trials cost; None if too little is known."""
        return TrialCosts.fit(self._observations, self.encoding)

    @property
    def confidence(self) -> float:
        """The probability with which a recommendation must hold its limits."""
        return HELD_FEW if self.trial_count < FEW_TRIALS else HELD

    def holds(self, cross: Cross) -> Floats:
        """Probability that every limit holds at each configuration.

        By Student's distribution and a widened spread, because the scales themselves come from
        few trials, and because a search that may measure again until a limit seems to hold will
        meet luck: of many candidates near a limit, the luckiest asks to be recommended.
        """
        from scipy.special import stdtr

        probability = np.ones(len(cross.correlation))
        for limit in self.question.limits:
            spread = CAUTION * np.sqrt(cross.variance(limit.quantity))
            probability *= stdtr(TAIL_FREEDOM, _room(cross, limit) / spread)
        return probability

    def expecting(self, rows: Ints) -> Posterior:
        """This posterior if `rows`, now being measured, turn out as predicted."""
        if self.surrogate is None or not len(rows):
            return self
        expected = copy(self)
        expected.__dict__.pop("incumbent", None)
        expected.surrogate = self.surrogate.expecting(self.encoding.features(rows))
        expected._known = np.vstack([self._known, rows])
        return expected

    @cached_property
    def incumbent(self) -> Incumbent | None:
        """What would be recommended now, None if nothing would."""
        if self.surrogate is None:
            return None
        features = self.surrogate.data.features
        cross = self.surrogate.cross(features)
        holds = self.holds(cross)
        times = self.surrogate.data.counts.max(1)
        needed = np.select([times == 1, times == 2], [SURE, HELD_FEW], default=0.0)
        trusted = holds >= np.maximum(needed, self.confidence)
        mean = cross.mean(self._utility)
        worth = mean + CHARGE * np.log(np.maximum(holds, 1e-9))
        utility = np.where(trusted, worth, -np.inf)
        best = int(np.argmax(utility))
        score = float(utility[best])
        if not math.isfinite(score):
            return None
        utility[best] = -np.inf
        return Incumbent(
            row=tuple(self._known[best].tolist()),
            score=score,
            mean=float(mean[best]),
            holds=float(holds[best]),
            runner_up=float(utility.max()),
            place=features.places[best],
        )

    def unsettled(self, closed: Ints) -> tuple[int, ...] | None:
        """The tested configuration that would be worth most if its limits turned out to hold.

        Args:
            closed: Configurations that are not to be measured again.
        Returns:
            None if none is clearly better than the present recommendation.
        """
        if self.surrogate is None:
            return None
        cross = self.surrogate.cross(self.surrogate.data.features)
        score, holds = cross.mean(self._utility), self.holds(cross)
        floor = score.min() if self.incumbent is None else self.incumbent.mean
        worth = np.maximum(score - floor, 0.0) * np.sqrt(holds)
        worth[(self._known[:, None] == closed[None]).all(2).any(1)] = 0.0
        few = self.surrogate.data.counts.max(1) < ENOUGH
        worth[holds < np.where(few, HARDLY, UNLIKELY)] = 0.0
        best = int(np.argmax(worth))
        return None if worth[best] < WORTHWHILE else tuple(self._known[best].tolist())

    def often(self, count: int) -> Ints:
        """The configurations that were measured at least `count` times."""
        if self.surrogate is None:
            return self.tested[:0]
        counts = self.surrogate.data.counts[: len(self.tested)]
        often: Ints = self.tested[counts.max(1) >= count]
        return often

    @property
    def _utility(self) -> Functional:
        return self.question.utility

    def runs(self, rows: Ints, features: Features) -> Floats:
        """Probability that each configuration can run: the vote of those tested nearby.

        Out of memory is out for everything at least as large in every dimension that takes
        memory: batch and instances upwards, micro-batches downwards.
        """
        if not len(self.broken):
            return np.ones(len(rows))
        voters = self.encoding.features(np.vstack([self.broken, self.tested]))
        weight = (1.0 + square_distance(features.places, voters.places)) ** -2
        against = weight[:, : len(self.broken)].sum(1)
        vote: Floats = 1.0 - against / (weight.sum(1) + VOTE_PRIOR)
        if len(self._starved):
            vote[self._dominated(rows, features)] = 0.0
        return vote

    def _dominated(self, rows: Ints, features: Features) -> Ints:
        starved = self.encoding.features(self._starved)
        slack = 1e-9
        worse = (
            (features.log_batch[:, None] >= starved.log_batch - slack)
            & (features.log_instances[:, None] >= starved.log_instances - slack)
            & (features.log_slices[:, None] <= starved.log_slices + slack)
        )
        for column, dimension in enumerate(self.encoding.dimensions):
            if dimension.name not in _NO_EXTRA_MEMORY:
                worse &= rows[:, column][:, None] == self._starved[:, column]
        return np.flatnonzero(worse.any(1))

    def gain(self, cross: Cross, *, doubt: float = 1.0, rough: bool = False) -> Floats:
        """By how much a measurement of each configuration is expected to raise the recommendation.

        After `k` measurements of a configuration it is recommended if its limits then hold with
        the wanted confidence and its mean is the best. Both posteriors after the measurements
        are Gaussian with means not yet known, so the expectation has a closed form (knowledge
        gradient restricted to the measured point; with no noise and no limit it is expected
        improvement). Measuring again what is good but unsettled comes out of it by itself; since
        close to a limit one measurement alone changes nothing, the best average over k is taken
        (KG(*), Frazier and Powell 2010).
        The present recommendation gains by giving way to the runner-up, or by being found to
        break a limit after all, which would have cost everything (1 on the scale of logarithms);
        the chance is the doubt times the share of variance that a measurement resolves.

        Args:
            doubt: Multiplies the model's standard deviations.
            rough: Use cheap variances and one measurement, to screen many configurations.
        """

        def variance(quantity: Functional) -> Floats:
            known = cross.rough_variance(quantity) if rough else cross.variance(quantity)
            return doubt**2 * known

        limits = self.question.limits
        known = _Known(
            score=cross.mean(self._utility),
            variance=variance(self._utility),
            noise=cross.noise_variance(self._utility),
            rooms=[_room(cross, limit) for limit in limits],
            variances=[variance(limit.quantity) for limit in limits],
            noises=[cross.noise_variance(limit.quantity) for limit in limits],
        )
        best = self.incumbent
        here = np.zeros(len(known.score), dtype=bool)
        if best is not None:
            here = (cross.features.places == best.place).all(1)
        gain = self._gain_of(known, here, 1)
        for count in () if rough else LOOKAHEAD:
            gain = np.maximum(gain, self._gain_of(known, here, count) / count)
        return gain

    def _gain_of(self, known: _Known, here: npt.NDArray[np.bool_], count: int) -> Floats:
        """The gain of measuring `count` times; `here` is the present recommendation."""
        from scipy.special import ndtr, stdtrit

        best, score = self.incumbent, known.score
        spread = known.variance / np.sqrt(known.variance + known.noise / count)
        gain = expected_excess(score - (score.min() if best is None else best.score), spread)
        resolved = np.zeros(len(score))
        margin = CAUTION * float(stdtrit(TAIL_FREEDOM, self.confidence))
        for room, before, noise in zip(known.rooms, known.variances, known.noises, strict=True):
            after = before * noise / (count * before + noise)
            resolved = np.maximum(resolved, 1.0 - after / before)
            gain *= ndtr((room - margin * np.sqrt(after)) / np.sqrt(before - after))
        if best is not None:
            gain[here] = expected_excess(best.runner_up - score[here], spread[here])
            gain[here] += resolved[here] * (1.0 - best.holds)
        return gain


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What is known of some configurations before they are measured, one entry each.

    Attributes:
        rooms: Below each limit, expected. `variances`: of the limited quantities.
        noise, noises: Variance that one measurement adds to the worth, to limited quantities.
    """

    score: Floats
    variance: Floats
    noise: float
    rooms: list[Floats]
    variances: list[Floats]
    noises: list[float]


_NO_EXTRA_MEMORY = (
    "batch_size", "global_batch_size", "instance_count", "micro_batch_count",
    "cores_per_instance", "batched_h2d",
)  # fmt: skip


def _room(cross: Cross, limit: Bound) -> Floats:
    """How far each configuration is expected to stay below a limit and its headroom."""
    headroom = HEADROOM * math.sqrt(cross.noise_variance(limit.quantity))
    return limit.bound - headroom - cross.mean(limit.quantity)


def _distinct(rows: Iterable[tuple[int, ...]], width: int) -> Ints:
    return np.array(sorted(set(rows)), dtype=np.int64).reshape(-1, width)


def _most_promising(values: Floats, question: Question, encoding: Encoding, tested: Ints) -> Ints:
    """Indices of the configurations to build on, the most useful last."""
    if not len(tested):
        return np.zeros(0, dtype=np.int64)
    weights = np.array(question.utility.weights)
    utility = np.nan_to_num(values) @ weights
    utility = utility + question.utility.work * encoding.features(tested).log_work
    for limit in question.limits:
        excess = np.nan_to_num(values) @ np.array(limit.quantity.weights) - limit.bound
        excess = excess + limit.quantity.work * encoding.features(tested).log_work
        utility = utility - 3.0 * np.maximum(excess, 0.0)
    return np.argsort(utility, kind="stable")[-MAX_DISTINCT:]
