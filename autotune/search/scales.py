"""The surrogate's data, its few free scales with their priors, and its correlation function."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.core.records import Floats, Ints
from autotune.search.encoding import EFFECT_SD, Features

Reals = npt.NDArray[Any]
"""Numbers of either precision."""

OUTPUT_MEAN_SD = 0.5  # of the level of an output's own process
ROUGH = 0.15  # share of the residual's variance that is of short length: steps, single odd points


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Observed outputs of distinct configurations.

    Attributes:
        values: Mean over repeats, shape (configurations, outputs), NaN where unknown; the
            first output is log T.
        counts: Number of repeats, same shape.
        scatter: Sum of squared deviations of the repeats from their mean, same shape.
        coupled: Which outputs follow the cycle; the first does by definition.
    """

    features: Features
    values: Floats
    counts: Ints
    scatter: Floats
    coupled: tuple[bool, ...]

    def take(self, index: Ints) -> Data:
        """Some of the configurations."""
        return replace(
            self,
            features=self.features.take(index),
            values=self.values[index],
            counts=self.counts[index],
            scatter=self.scatter[index],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """The model's few free scales, all as standard deviations of logarithms.

    Attributes:
        length: Multiplies the residual's lengths.
        spread: Of each output's own process; of the first, the residual of log T.
        noise: Of one measurement of each output.
    """

    length: float
    spread: tuple[float, ...]
    noise: tuple[float, ...]

    def moved(self, name: str, output: int, up: bool) -> Scales:
        """One scale a step up or down its ladder; unchanged at the end of it."""
        step, (low, high) = _LADDERS[name]
        values = [self.length] if name == "length" else list(getattr(self, name))
        value = values[output] * step if up else values[output] / step
        if not low <= value <= high:
            return self
        if name == "length":
            return replace(self, length=value)
        values[output] = value
        if name == "spread":
            return replace(self, spread=tuple(values))
        return replace(self, noise=tuple(values))


TYPICAL_LENGTH, LENGTH_STEP, LENGTH_RANGE = 1.0, 1.5, (0.4, 2.5)
TYPICAL_SPREAD, SPREAD_STEP, SPREAD_RANGE = 0.12, 1.6, (0.015, 1.0)
TYPICAL_NOISE, NOISE_STEP, NOISE_RANGE = 0.035, 1.25, (0.002, 0.5)
_LADDERS = {
    "length": (LENGTH_STEP, LENGTH_RANGE),
    "spread": (SPREAD_STEP, SPREAD_RANGE),
    "noise": (NOISE_STEP, NOISE_RANGE),
}


def penalty(scales: Scales) -> float:
    """Minus the log prior: lognormal about typical values, wide enough for data to overrule."""
    spread = sum(math.log(s / TYPICAL_SPREAD) ** 2 / 2 for s in scales.spread)
    noise = sum(math.log(s / TYPICAL_NOISE) ** 2 / (2 * 0.5**2) for s in scales.noise)
    return spread + noise + math.log(scales.length) ** 2 / 2


def square_distance(left: Reals, right: Reals) -> Reals:
    """Squared distance of every row of `left` to every row of `right`."""
    square: Reals = left @ (-2.0 * right.T)
    square += (left**2).sum(1)[:, None]
    square += (right**2).sum(1)
    return np.maximum(square, 0.0, out=square)


def matern(left: Reals, right: Reals, length: float) -> Reals:
    """Correlation of all rows of `left` with all of `right`: Matern-3/2, and a rough part."""
    root = square_distance(left, right)
    root *= 3.0 / length**2
    np.sqrt(root, out=root)
    decay = np.exp(-root)
    root += 1.0
    root *= (1.0 - ROUGH) * decay
    decay **= 2
    decay **= 2  # exp(-4 root): a quarter of the length
    decay *= ROUGH
    root += decay
    return root


def output_linear(features: Features, weights: Floats) -> Floats:
    """`output_basis(features) @ weights`, without building it."""
    split = features.effects.shape[1]
    slice_size = features.log_batch - features.log_slices
    by_batch, by_slice, by_instances = 0.5 * weights[split:]
    total: Floats = features.effects @ (weights[:split] / EFFECT_SD)
    total += by_batch * features.log_batch + by_slice * slice_size
    total += by_instances * features.log_instances
    return total


def output_basis(features: Features) -> Floats:
    """Linear part of an output's own process: main effects, batch and slice size."""
    slice_size = features.log_batch - features.log_slices
    linear = np.stack([features.log_batch, slice_size, features.log_instances], axis=1)
    basis: Floats = np.hstack([features.effects / EFFECT_SD, 0.5 * linear])
    return basis
