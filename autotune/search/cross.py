"""A fitted model's answers for configurations: means, variances, all of any weighted sum."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from autotune.core.records import Floats
from autotune.search.encoding import Features
from autotune.search.scales import OUTPUT_MEAN_SD, Reals, output_basis, output_linear

if TYPE_CHECKING:
    from autotune.search.surrogate import Surrogate


@dataclass(frozen=True, slots=True, kw_only=True)
class Functional:
    """A quantity asked of the model: a weighted sum of outputs plus `work` times log(I b)."""

    weights: tuple[float, ...]
    work: float = 0.0


@dataclass(frozen=True, kw_only=True)  # no slots: properties are cached
class Cross:
    """Some configurations seen against the data of a fitted model."""

    surrogate: Surrogate
    features: Features
    correlation: Reals

    @cached_property
    def jacobian(self) -> Floats:
        """Derivative of log T in theta, shape (configurations here, effects)."""
        return self.surrogate.mechanism.evaluate(self.features, self.surrogate.theta)[1]

    @cached_property
    def basis(self) -> Floats:
        """Linear part of the outputs' own processes."""
        return output_basis(self.features)

    def mean(self, asked: Functional) -> Floats:
        """Posterior mean of a quantity."""
        model = self.surrogate
        follow = sum(w for w, c in zip(asked.weights, model.data.coupled, strict=True) if c)
        followed = model._per_config(model._weights * model._follows)
        spread, precision = model.scales.spread, self.correlation.dtype
        # The linearised mechanism, which interpolates the data whether or not theta has settled.
        moved = model._jacobian.T @ followed - model.theta
        cycle = model.mechanism.moved(self.features, model.theta, moved)
        cycle = cycle + spread[0] ** 2 * (self.correlation @ followed.astype(precision))
        mean: Floats = follow * cycle + asked.work * self.features.log_work
        for output, weight in enumerate(asked.weights):
            if output == 0 or weight == 0:
                continue
            pull = model._per_config(model._weights * (model._output == output))
            own = output_linear(
                self.features, model._basis.T @ pull
            ) + self.correlation @ pull.astype(precision)
            own = OUTPUT_MEAN_SD**2 * pull.sum() + spread[output] ** 2 * own
            mean = mean + weight * (model._means[output] + own)
        return mean

    def variance(self, asked: Functional) -> Floats:
        """Posterior variance of a quantity, noise of a measurement not included."""
        known = np.zeros_like(self.white[0])
        for weight, white in zip(asked.weights, self.white, strict=True):
            known += weight * white
        model = self.surrogate
        spread = model.scales.spread
        follow = sum(w for w, c in zip(asked.weights, model.data.coupled, strict=True) if c)
        prior = follow**2 * ((self.jacobian**2).sum(1) + spread[0] ** 2)
        own = (self.basis**2).sum(1) + 1.0
        for weight, s in zip(asked.weights[1:], spread[1:], strict=True):
            prior += weight**2 * (OUTPUT_MEAN_SD**2 + s**2 * own)
        variance: Floats = np.maximum(prior - np.einsum("ij,ij->j", known, known), 1e-12)
        return variance

    @cached_property
    def white(self) -> tuple[Floats, ...]:
        """Covariance of every output here with the data, whitened: shape (data, here) each."""
        import scipy.linalg as linalg

        model = self.surrogate
        spread = model.scales.spread
        cycle = model._jacobian @ self.jacobian.T + spread[0] ** 2 * self.correlation.T
        cycle = cycle[model._config] * model._follows[:, None]
        own = model._basis @ self.basis.T + self.correlation.T
        found = []
        for output, coupled in enumerate(model.data.coupled):
            cross = cycle.copy() if coupled else np.zeros_like(cycle)
            if output > 0:
                here = model._output == output
                covariance = OUTPUT_MEAN_SD**2 + spread[output] ** 2 * own
                cross[here] += covariance[model._config[here]]
            found.append(
                linalg.solve_triangular(
                    model._lower, cross, lower=True, check_finite=False, overwrite_b=True
                )
            )
        return tuple(found)

    def rough_variance(self, asked: Functional) -> Floats:
        """A cheap stand-in for `variance`, from the nearest configuration alone; for screening."""
        spread = self.surrogate.scales.spread
        follow = sum(
            w for w, c in zip(asked.weights, self.surrogate.data.coupled, strict=True) if c
        )
        own = sum((w * s) ** 2 for w, s in zip(asked.weights[1:], spread[1:], strict=True))
        prior = (follow * spread[0]) ** 2 + own
        nearest = self.correlation.max(axis=1)
        rough: Floats = prior * np.maximum(1.0 - nearest**2, 0.05) + 1e-6
        return rough

    def noise_variance(self, asked: Functional) -> float:
        """Variance that one measurement adds to the quantity."""
        pairs = zip(asked.weights, self.surrogate.scales.noise, strict=True)
        return sum((weight * noise) ** 2 for weight, noise in pairs)
