"""What a trial costs: a small model of its seconds, so that cheap trials are preferred if it pays.

The logarithm of the cost is linear in the configuration's coordinates, with a Gaussian prior on
every slope and one more effect: a slice shape that no trial has run yet may have to be compiled
and loaded first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.core.records import Floats
from autotune.search.encoding import Encoding, Features
from autotune.search.question import Observation

MIN_COSTS = 6  # trials of known cost before the model is used
WIDE = 3.0  # candidates' costs must differ by so much (10th to 90th percentile) to count
NOISE_SD = 0.2
SLOPE_SD, NEW_SHAPE_SD = 0.35, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCosts:
    """A fitted model of trial costs.

    Attributes:
        shapes: Logarithms of batch and slice sizes that have been run.
    """

    level: float
    slopes: Floats
    shapes: frozenset[tuple[float, float]]

    @classmethod
    def fit(cls, observations: Sequence[Observation], encoding: Encoding) -> TrialCosts | None:
        """From the trials in their order; None if too few costs are known."""
        known = [o for o in observations if o.cost_s > 0 and math.isfinite(o.cost_s)]
        if len(known) < MIN_COSTS:
            return None
        features = encoding.features(np.array([o.row for o in known], dtype=np.int64))
        shapes: set[tuple[float, float]] = set()
        is_new = np.zeros(len(known))
        for i, shape in enumerate(_shapes(features)):
            is_new[i] = shape not in shapes
            shapes.add(shape)
        costs = np.log([o.cost_s for o in known])
        level = float(costs.mean())
        basis = _basis(features, is_new)
        covariance = basis @ basis.T + NOISE_SD**2 * np.eye(len(known))
        slopes = basis.T @ np.linalg.solve(covariance, costs - level)
        return cls(level=level, slopes=slopes, shapes=frozenset(shapes))

    def predict_s(self, features: Features) -> Floats:
        """Expected seconds of a trial of each configuration."""
        is_new = np.array([float(shape not in self.shapes) for shape in _shapes(features)])
        seconds: Floats = np.exp(self.level + _basis(features, is_new) @ self.slopes)
        return seconds


def cost_factors(costs: TrialCosts | None, features: Features) -> Floats:
    """What to divide gains by: relative costs where they differ widely, else 1."""
    even = np.ones(len(features.log_batch))
    if costs is None:
        return even
    seconds = costs.predict_s(features)
    low, high = np.quantile(seconds, (0.1, 0.9))
    return even if high < WIDE * low else seconds / low


def _shapes(features: Features) -> list[tuple[float, float]]:
    slices = features.log_batch - features.log_slices
    return list(zip(features.log_batch.tolist(), slices.tolist(), strict=True))


def _basis(features: Features, is_new: Floats) -> Floats:
    linear = np.stack([features.log_batch, features.log_instances, features.log_slices], axis=1)
    return np.hstack(
        [
            SLOPE_SD * linear,
            features.effects,
            np.ones((len(is_new), 1)),
            NEW_SHAPE_SD * is_new[:, None],
        ]
    )
