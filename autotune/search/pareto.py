"""The search for trade-offs: what measuring a configuration adds to the front of several goals.

The front's worth is its hypervolume, in logarithms of the goals, each over the range in which the
front is expected to lie. A hypervolume is a mean over directions (Deng and Zhang 2019; Golovin and
Zhang 2020):

    HV(Y) = c E[ max_y min_i (y_i / d_i)^k ],   d uniform on the positive unit sphere, k goals

so that the expected improvement by an uncertain point is a mean over directions and draws of it,
for any number of goals.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.core.records import Floats
from autotune.search.cross import Cross, Functional
from autotune.search.encoding import Encoding
from autotune.search.posterior import Posterior
from autotune.search.question import Observation, Question

DIRECTIONS = 48
DRAWS = 16
MARGIN = 0.1  # of the front's range, by which the reference point lies below its worst
MIN_RANGE = 0.05  # of a goal, as a logarithm
LIKELY = 0.5  # what holds its limits more likely than not may be on the front


def posterior_of(
    encoding: Encoding, question: Question, observations: Sequence[Observation]
) -> Posterior:
    """The posterior that fits the question: of one recommendation, or of a front."""
    kind = FrontPosterior if question.goals else Posterior
    return kind(encoding, question, observations)


class FrontPosterior(Posterior):
    """The posterior of a study that wants trade-offs: the gain is that of the front."""

    def gain(self, cross: Cross, *, doubt: float = 1.0, rough: bool = False) -> Floats:
        """By how much measuring each configuration is expected to enlarge the front.

        Args:
            doubt: Multiplies the model's standard deviations.
            rough: Take one hopeful draw, to screen many configurations.
        """
        assert self.surrogate is not None
        goals = self.question.goals
        tested = self.surrogate.cross(self.surrogate.data.features)
        known = np.stack([tested.mean(goal) for goal in goals], axis=1)
        usable, holds = self.holds(tested) >= LIKELY, self.holds(cross)
        here = np.stack([cross.mean(goal) for goal in goals], axis=1)
        likely = np.vstack([known[usable], here[holds >= LIKELY]])
        low, scale = _frame(likely if len(likely) else np.vstack([known, here]))
        directions = _directions(len(goals))
        reached = _reach((known[usable] - low) / scale, directions)
        best = reached.max(axis=0) if usable.any() else np.zeros(len(directions))
        gain = np.zeros(len(here))
        draws = _hopeful(cross, goals, doubt) if rough else _draws(cross, goals, doubt)
        for drawn in draws:
            reached = _reach((drawn - low) / scale, directions)
            gain += np.maximum(reached - best, 0.0).mean(axis=1)
        mean: Floats = gain / len(draws) * holds
        return mean


def _frame(values: Floats) -> tuple[Floats, Floats]:
    """The reference point below the front of these values, and the range of every goal.

    The front's worst in a goal is taken to be where another goal is at its best.
    """
    ends = values[values.argmax(axis=0)]
    low, high = ends.min(axis=0), ends.max(axis=0)
    scale = np.maximum(high - low, MIN_RANGE)
    return low - MARGIN * scale, scale


def _directions(goals: int) -> Floats:
    """Directions on the positive unit sphere, the same every time."""
    normal = np.abs(np.random.default_rng(0).standard_normal((DIRECTIONS, goals)))
    directions: Floats = normal / np.linalg.norm(normal, axis=1, keepdims=True)
    return directions


def _reach(values: Floats, directions: Floats) -> Floats:
    """How far every point reaches along every direction, to the power of the number of goals."""
    count = directions.shape[1]
    reach = np.full((len(values), len(directions)), np.inf)
    for goal in range(count):
        np.minimum(reach, np.maximum(values[:, goal, None], 0.0) / directions[:, goal], out=reach)
    result: Floats = reach**count
    return result


def _hopeful(cross: Cross, goals: tuple[Functional, ...], doubt: float) -> Floats:
    """One draw, a standard deviation better than expected in every goal."""
    columns = [cross.mean(g) + doubt * np.sqrt(cross.rough_variance(g)) for g in goals]
    return np.stack(columns, axis=1)[None]


def _draws(cross: Cross, goals: tuple[Functional, ...], doubt: float) -> Floats:
    """What the model may think after one measurement: shape (DRAWS, configurations, goals)."""
    count = len(goals)
    mean = np.stack([cross.mean(goal) for goal in goals], axis=1)
    covariance = np.empty((len(mean), count, count))
    for i in range(count):
        covariance[:, i, i] = cross.variance(goals[i])
    for i in range(count):
        for j in range(i):
            both = cross.variance(_sum(goals[i], goals[j]))
            own = covariance[:, i, i] + covariance[:, j, j]
            covariance[:, i, j] = covariance[:, j, i] = (both - own) / 2.0
    variance = np.einsum("nii->ni", covariance)
    noise = np.array([cross.noise_variance(goal) for goal in goals])
    shrink = doubt * np.sqrt(variance / (variance + noise))  # what a measurement can move
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    half = np.random.default_rng(0).standard_normal((DRAWS // 2, count))
    normal = np.concatenate([half, -half])
    draws: Floats = mean + shrink * np.einsum("nij,sj->sni", root, normal)
    return draws


def _sum(one: Functional, other: Functional) -> Functional:
    weights = tuple(a + b for a, b in zip(one.weights, other.weights, strict=True))
    return Functional(weights=weights, work=one.work + other.work)
