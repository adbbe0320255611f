"""A model of served throughput and of whatever is limited, for a search of a few dozen trials.

**Mechanism**: the cycle time `T` of all instances as a function of the batch, see `mechanism`.

A tile size to which items may be padded is chosen by its evidence, or none.

**What the mechanism misses** (cliffs, interactions) is a Gaussian process with a Matern-3/2
kernel, a little of it much shorter, whose batch axis is `b/m` too. Every further output
(log P99, ...) is `log T` plus a process of its own, or that process alone where the cycle does
not matter to it (memory, power).

**Inference.** With `theta` the standardised effects and `J` the derivative of `log T` in it,
all outputs are jointly Gaussian once the mechanism is linearised (Laplace): the covariance of
two rows is `a a' (J J'^T + s^2 C) + [same output] s_o^2 (E E'^T + C)`, with `a` 1 for outputs
that follow the cycle. `theta` is found by iterating that linearisation; the few scales
(s, s_o, noise, length) by coordinate ascent on the penalised marginal likelihood.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from autotune.core.records import Floats, Ints
from autotune.search.cross import Cross, Functional
from autotune.search.encoding import Features
from autotune.search.mechanism import Mechanism
from autotune.search.scales import (
    OUTPUT_MEAN_SD,
    TYPICAL_LENGTH,
    TYPICAL_NOISE,
    TYPICAL_SPREAD,
    Data,
    Scales,
    matern,
    output_basis,
    penalty,
)

MAX_STEPS = 8  # of the linearisation
MAX_FIT_CONFIGS = 45  # the scales are fitted on at most so many configurations
MAX_SWEEPS = 3  # of their coordinate ascent
JITTER = 1e-8
TILE_PENALTY = math.log(20.0)  # of evidence against a tile: there are half a hundred of them
MAX_TILES, MIN_TILE_GAIN = 2, 0.0  # tiles that are fitted, and the estimate from which on


class Surrogate:
    """The fitted model. `fit` builds one; `mean` and `variance` answer for configurations."""

    def __init__(self, data: Data, mechanism: Mechanism, scales: Scales) -> None:
        self.data = data
        self.mechanism = mechanism
        self.scales = scales
        known = ~np.isnan(data.values)
        self._config, self._output = np.nonzero(known)
        self._y = data.values[known]
        self._repeats = data.counts[known]
        self._follows = np.array(data.coupled, float)[self._output]
        self._means = _own_means(data)
        self.theta = np.zeros(mechanism.size(data.features))
        self._correlation = matern(data.features.places, data.features.places, scales.length)
        self._basis = output_basis(data.features)
        self._linear = self._basis @ self._basis.T
        # Where the covariance of (configuration, output) rows comes from.
        self._pairs = np.ix_(self._config, self._config)
        self._follow_both = np.multiply.outer(self._follows, self._follows)
        here = [np.flatnonzero(self._output == o) for o in range(len(data.coupled))]
        self._blocks = [np.ix_(rows, rows) for rows in here]
        self._block_configs = [np.ix_(self._config[rows], self._config[rows]) for rows in here]

    @classmethod
    def fit(cls, data: Data, *, with_batch: bool) -> Surrogate:
        """Find the scales and the effects that explain `data` best (at least one row of it)."""
        log_cycle = data.values[:, 0]
        per_item = log_cycle - data.features.log_batch
        mechanism = Mechanism(
            level=float(np.nanmean(log_cycle)) if np.any(~np.isnan(log_cycle)) else 0.0,
            level_per_item=float(np.nanmean(per_item)) if np.any(~np.isnan(per_item)) else 0.0,
            with_batch=with_batch,
        )
        outputs = len(data.coupled)
        scales = Scales(
            length=TYPICAL_LENGTH,
            spread=(TYPICAL_SPREAD,) * outputs,
            noise=(TYPICAL_NOISE,) * outputs,
        )
        part = data.take(np.arange(len(data.values))[-MAX_FIT_CONFIGS:])
        trial = cls(part, mechanism, scales)
        trial._solve()
        scales, loss = trial._climb()
        for tile in trial._tiles(scales) if with_batch else ():
            tiled = cls(part, replace(mechanism, tile=tile), scales)
            tiled._solve()
            moved, tiled_loss = tiled._climb()
            if tiled_loss + TILE_PENALTY < loss:
                trial, scales, loss = tiled, moved, tiled_loss + TILE_PENALTY
        model = cls(data, trial.mechanism, scales)
        model.theta = trial.theta
        model._solve()
        return model

    # Covariances between (configuration, output) rows of the data.

    def _parts(self, correlation: Floats) -> tuple[Floats, list[Floats]]:
        """What the residual's correlation of configurations adds to the covariance of rows:
        through the cycle, and of every further output by its own process."""
        through = correlation[self._pairs] * self._follow_both
        own = (self._linear + correlation for _ in self._blocks[1:])
        blocks = zip(own, self._block_configs[1:], strict=True)
        return through, [matrix[block] for matrix, block in blocks]

    def _covariance(
        self, jacobian: Floats, scales: Scales, parts: tuple[Floats, list[Floats]]
    ) -> Floats:
        """Of the observed rows, noise included; `jacobian` by configuration."""
        gram = (jacobian @ jacobian.T)[self._pairs] * self._follow_both
        return self._summed(gram, scales, parts)

    def _summed(self, gram: Floats, scales: Scales, parts: tuple[Floats, list[Floats]]) -> Floats:
        through, blocks = parts
        covariance = scales.spread[0] ** 2 * through
        covariance += gram
        for output, own in enumerate(blocks, start=1):
            covariance[self._blocks[output]] += scales.spread[output] ** 2 * own + OUTPUT_MEAN_SD**2
        noise = np.array(scales.noise)[self._output] ** 2 / self._repeats
        covariance.flat[:: len(covariance) + 1] += noise + JITTER
        return covariance

    def _residual(self) -> tuple[Floats, Floats]:
        """What is left of the observations about the linearised prior mean, and the Jacobian."""
        log_cycle, jacobian = self.mechanism.evaluate(self.data.features, self.theta)
        about = (log_cycle - jacobian @ self.theta)[self._config]
        return self._y - self._follows * about - self._means[self._output], jacobian

    def _solve(self) -> None:
        """Iterate the linearisation to the most probable theta, then keep the factors."""
        import scipy.linalg as linalg

        parts = self._parts(self._correlation)
        for iteration in range(MAX_STEPS):
            residual, jacobian = self._residual()
            covariance = self._covariance(jacobian, self.scales, parts)
            factor = linalg.cho_factor(covariance, lower=True, check_finite=False)
            weights = linalg.cho_solve(factor, residual, check_finite=False)
            target = jacobian.T @ self._per_config(weights * self._follows)
            step = target - self.theta
            damping = 1.0 if iteration < MAX_STEPS // 2 else 0.5
            self.theta = self.theta + step * min(damping, 1.5 / max(np.abs(step).max(), 1e-12))
            if np.abs(step).max() < 0.02:
                break
        self._factorise()

    def _factorise(self) -> None:
        """Condition on the data at the present theta."""
        import scipy.linalg as linalg

        residual, self._jacobian = self._residual()
        parts = self._parts(self._correlation)
        covariance = self._covariance(self._jacobian, self.scales, parts)
        self._lower = linalg.cholesky(covariance, lower=True, check_finite=False)
        self._weights = linalg.cho_solve((self._lower, True), residual, check_finite=False)

    def expecting(self, features: Features) -> Surrogate:
        """The model with further configurations measured exactly as it predicts (pending ones).

        No mean moves, but what is pending is no longer uncertain, so that another worker
        does not go for the same.
        """
        cross = self.cross(features)
        outputs = range(len(self.data.coupled))
        units = [Functional(weights=tuple(float(i == o) for i in outputs)) for o in outputs]
        predicted = np.stack([cross.mean(unit) for unit in units], axis=1)
        data = replace(
            self.data,
            features=self.data.features.joined(features),
            values=np.vstack([self.data.values, predicted]),
            counts=np.vstack([self.data.counts, np.ones_like(predicted, dtype=np.int64)]),
            scatter=np.vstack([self.data.scatter, np.zeros_like(predicted)]),
        )
        model = Surrogate(data, self.mechanism, self.scales)
        model.theta, model._means = self.theta, self._means
        model._factorise()
        return model

    def _per_config(self, rows: Floats) -> Floats:
        """Sum (configuration, output) rows by configuration."""
        total = np.bincount(self._config, weights=rows, minlength=len(self.data.values))
        return total.astype(np.float64)

    def _climb(self) -> tuple[Scales, float]:
        """Coordinate ascent over the scales: each goes up or down its ladder while that helps.

        Returns:
            The scales, and minus the logarithm of their evidence.
        """
        data = self.data
        residual, jacobian = self._residual()
        places = data.features.places
        gram = (jacobian @ jacobian.T)[self._pairs] * self._follow_both
        parts: dict[float, tuple[Floats, list[Floats]]] = {}
        more, scatter = np.maximum(data.counts - 1, 0).sum(0), data.scatter.sum(0)

        def loss(scales: Scales) -> float:
            if scales.length not in parts:
                parts[scales.length] = self._parts(matern(places, places, scales.length))
            covariance = self._summed(gram, scales, parts[scales.length])
            misfit = _minus_log_likelihood(covariance, residual)
            return misfit + _repeats_misfit(more, scatter, scales) + penalty(scales)

        best, best_loss = self.scales, loss(self.scales)
        for _ in range(MAX_SWEEPS):
            before = best
            for name, output in self._coordinates():
                for up in (True, False):
                    start = best
                    while (moved := best.moved(name, output, up)) != best:
                        moved_loss = loss(moved)
                        if moved_loss >= best_loss:
                            break
                        best, best_loss = moved, moved_loss
                    if best != start:
                        break
            if best == before:
                break
        return best, best_loss

    def _tiles(self, scales: Scales) -> list[int]:
        """The tile sizes that the data may speak for, as columns of the padding.

        The gain of log evidence by one more linear effect with prior N(m, s^2) is known in closed
        form from its projections, so that many tiles can be tried at once.
        """
        import scipy.linalg as linalg

        residual, jacobian = self._residual()
        places = self.data.features.places
        parts = self._parts(matern(places, places, scales.length))
        covariance = self._covariance(jacobian, scales, parts)
        lower = linalg.cholesky(covariance, lower=True, check_finite=False)
        slopes = self.mechanism.padding_slopes(self.data.features, self.theta)[self._config]
        white = linalg.solve_triangular(lower, slopes * self._follows[:, None], lower=True)
        mean, variance = self.mechanism.PADDED, self.mechanism.PADDED_SD**2
        size = (white**2).sum(0)
        pull = white.T @ linalg.solve_triangular(lower, residual, lower=True)
        left = pull - mean * size
        gain = mean * pull - 0.5 * mean**2 * size
        gain += 0.5 * variance * left**2 / (1 + variance * size) - 0.5 * np.log1p(variance * size)
        order = np.argsort(-gain, kind="stable")[:MAX_TILES]
        return [int(k) for k in order if gain[k] > MIN_TILE_GAIN]

    def _coordinates(self) -> list[tuple[str, int]]:
        outputs = range(len(self.data.coupled))
        own = [(name, output) for output in outputs for name in ("noise", "spread")]
        return [*own, ("length", 0)]

    # Answers.

    def cross(self, features: Features, *, rough: bool = False) -> Cross:
        """Prepare answers for the configurations of `features`.

        Args:
            rough: In single precision where it costs most, to screen many configurations.
        """
        precision = np.float32 if rough else np.float64
        here, known = (f.places.astype(precision) for f in (features, self.data.features))
        correlation = matern(here, known, self.scales.length)
        return Cross(surrogate=self, features=features, correlation=correlation)


def _own_means(data: Data) -> Floats:
    """Prior mean of every output's own process."""
    means = np.zeros(len(data.coupled))
    for output, coupled in enumerate(data.coupled[1:], start=1):
        own = data.values[:, output] - (data.values[:, 0] if coupled else 0.0)
        known = own[~np.isnan(own)]
        means[output] = known.mean() if known.size else 0.0
    return means


def _minus_log_likelihood(covariance: Floats, residual: Floats) -> float:
    """Of a Gaussian; the covariance is overwritten. LAPACK at first hand: it is asked often."""
    from scipy.linalg import lapack

    lower, failed = lapack.dpotrf(covariance.T, lower=1, clean=0, overwrite_a=1)
    if failed:
        return math.inf
    white, _ = lapack.dtrtrs(lower, residual, lower=1)
    return 0.5 * float(white @ white) + float(np.log(np.diagonal(lower)).sum())


def _repeats_misfit(more: Ints, scatter: Floats, scales: Scales) -> float:
    """Minus the log likelihood of the repeats about their means, which tell noise from shape.

    Args:
        more: Measurements beyond the first of each configuration, per output.
        scatter: Sum of their squared deviations, per output.
    """
    return sum(
        float(count) * math.log(noise) + 0.5 * float(square) / noise**2
        for count, square, noise in zip(more, scatter, scales.noise, strict=True)
    )
