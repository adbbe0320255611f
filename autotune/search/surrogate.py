"""A model of served throughput and of whatever is limited, for a search of a few dozen trials.

**Mechanism.** `I` instances that each serve batches of `b` items back to back take a cycle of
`T = I b / X` seconds for a throughput of `X` items/s. A cycle has a part that does not grow
with the batch (launches, copies' overhead) and a part that does, and the two may overlap:

    log T = (1/p) log(t0^p + (t1 b)^p),    p = 1: one after the other; p -> inf: the longer one

`log t0` and `log t1` are sums of main effects, one group per parameter other than the batch.
Each effect has a Gaussian prior (partial pooling): an ordered parameter a slope and a smooth
deviation, any other parameter an independent value per choice. An instance count's slope lies
between 0 (instances do not notice each other) and 1 (they take turns).

Kernels see slices of `b/m` items (`m` micro-batches) and may pad them to whole tiles, so that
`log t1` also has an effect of log(padded / unpadded) for each of a few tile sizes.

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
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from autotune.core.records import Floats, Ints
from autotune.search.encoding import EFFECT_SD, TILES, Features

MAX_STEPS = 8  # of the linearisation
MAX_FIT_CONFIGS = 45  # the scales are fitted on at most so many configurations
OUTPUT_MEAN_SD = 0.5  # of the level of an output's own process
ROUGH = 0.15  # share of the residual's variance that is of short length: steps, single odd points
JITTER = 1e-8


# --- the mechanism -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """log T as a function of the standardised effects `theta`; see the module's docstring."""

    level: float  # mean of the observed log T
    level_per_item: float  # mean of the observed log(T / b)
    with_batch: bool

    INSTANCE_SLOPE = 0.35
    SLICE_SLOPE = 0.5
    LEVEL_SD = 1.5
    SHARPNESS = math.log(1.5)
    SHARPNESS_SD = 0.5

    def size(self, features: Features) -> int:
        """Length of theta."""
        count = 1 + int(features.effects.shape[1])
        return 2 * count + len(TILES) + 1 if self.with_batch else count

    def evaluate(self, features: Features, theta: Floats) -> tuple[Floats, Floats]:
        """log T of each row, and its derivative in theta, shape (rows, len(theta))."""
        count = 1 + features.effects.shape[1]
        basis = np.hstack([np.full((len(features.effects), 1), self.LEVEL_SD), features.effects])
        if not self.with_batch:
            return self.level + basis @ theta, basis
        shared = self.INSTANCE_SLOPE * features.log_instances
        fixed = self.level - 1.0 + shared + self.SLICE_SLOPE * features.log_slices
        fixed = fixed + basis @ theta[:count]
        growing = self.level_per_item + shared + features.log_batch
        growing = (
            growing + basis @ theta[count : 2 * count] + features.padding @ theta[2 * count : -1]
        )
        sharpness = math.exp(self.SHARPNESS + self.SHARPNESS_SD * theta[-1])
        log_cycle = np.logaddexp(sharpness * fixed, sharpness * growing) / sharpness
        share = np.exp(sharpness * (fixed - log_cycle))  # of the cycle that does not grow
        mean = share * fixed + (1 - share) * growing
        slope = self.SHARPNESS_SD * (mean - log_cycle)  # d/dlog p of the power mean
        grown = (1 - share)[:, None] * np.hstack([basis, features.padding])
        jacobian = np.hstack([share[:, None] * basis, grown, slope[:, None]])
        return log_cycle, jacobian


# --- data and scales ---------------------------------------------------------------------------


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
MAX_SWEEPS = 3  # of the coordinate ascent


def _penalty(scales: Scales) -> float:
    """Minus the log prior: lognormal about typical values, wide enough for data to overrule."""
    spread = sum(math.log(s / TYPICAL_SPREAD) ** 2 / 2 for s in scales.spread)
    noise = sum(math.log(s / TYPICAL_NOISE) ** 2 / (2 * 0.5**2) for s in scales.noise)
    return spread + noise + math.log(scales.length) ** 2 / 2


def square_distance(left: Floats, right: Floats) -> Floats:
    """Squared distance of every row of `left` to every row of `right`."""
    square: Floats = left @ (-2.0 * right.T)
    square += (left**2).sum(1)[:, None]
    square += (right**2).sum(1)
    return np.maximum(square, 0.0, out=square)


def matern(left: Floats, right: Floats, length: float) -> Floats:
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


def output_basis(features: Features) -> Floats:
    """Linear part of an output's own process: main effects, batch and slice size."""
    slice_size = features.log_batch - features.log_slices
    linear = np.stack([features.log_batch, slice_size, features.log_instances], axis=1)
    basis: Floats = np.hstack([features.effects / EFFECT_SD, 0.5 * linear])
    return basis


# --- the posterior -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Functional:
    """A quantity asked of the model: a weighted sum of outputs plus `work` times log(I b)."""

    weights: tuple[float, ...]
    work: float = 0.0


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
        scales = trial._climb()
        model = cls(data, mechanism, scales)
        model.theta = trial.theta
        model._solve()
        return model

    # Covariances between (configuration, output) rows of the data.

    def _covariance(self, jacobian: Floats, scales: Scales, correlation: Floats) -> Floats:
        """Of the observed rows, noise included; `correlation` and `jacobian` by configuration."""
        pairs = self._pairs
        covariance: Floats = (jacobian @ jacobian.T + scales.spread[0] ** 2 * correlation)[pairs]
        covariance *= self._follow_both
        for output in range(1, len(self.data.coupled)):
            block = self._blocks[output]
            own = (self._linear + correlation)[self._block_configs[output]]
            own *= scales.spread[output] ** 2
            own += OUTPUT_MEAN_SD**2
            covariance[block] += own
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

        for iteration in range(MAX_STEPS):
            residual, jacobian = self._residual()
            covariance = self._covariance(jacobian, self.scales, self._correlation)
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
        covariance = self._covariance(self._jacobian, self.scales, self._correlation)
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

    def _climb(self) -> Scales:
        """Coordinate ascent over the scales: each goes up or down its ladder while that helps."""
        data = self.data
        residual, jacobian = self._residual()
        places = data.features.places
        correlations: dict[float, Floats] = {}

        def loss(scales: Scales) -> float:
            if scales.length not in correlations:
                correlations[scales.length] = matern(places, places, scales.length)
            covariance = self._covariance(jacobian, scales, correlations[scales.length])
            misfit = _minus_log_likelihood(covariance, residual) + _repeats_misfit(data, scales)
            return misfit + _penalty(scales)

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
        return best

    def _coordinates(self) -> list[tuple[str, int]]:
        outputs = range(len(self.data.coupled))
        own = [(name, output) for output in outputs for name in ("noise", "spread")]
        return [*own, ("length", 0)]

    # Answers.

    def cross(self, features: Features) -> Cross:
        """Prepare answers for the configurations of `features`."""
        log_cycle, jacobian = self.mechanism.evaluate(features, self.theta)
        return Cross(
            surrogate=self,
            features=features,
            log_cycle=log_cycle,
            jacobian=jacobian,
            basis=output_basis(features),
            correlation=matern(features.places, self.data.features.places, self.scales.length),
        )


def _own_means(data: Data) -> Floats:
    """Prior mean of every output's own process."""
    means = np.zeros(len(data.coupled))
    for output, coupled in enumerate(data.coupled[1:], start=1):
        own = data.values[:, output] - (data.values[:, 0] if coupled else 0.0)
        known = own[~np.isnan(own)]
        means[output] = known.mean() if known.size else 0.0
    return means


def _minus_log_likelihood(covariance: Floats, residual: Floats) -> float:
    import scipy.linalg as linalg

    lower = linalg.cholesky(covariance, lower=True, check_finite=False, overwrite_a=True)
    white = linalg.solve_triangular(lower, residual, lower=True, check_finite=False)
    return float(0.5 * white @ white + np.log(np.diagonal(lower)).sum())


def _repeats_misfit(data: Data, scales: Scales) -> float:
    """Minus the log likelihood of the repeats about their means, which tell noise from shape."""
    noise = np.array(scales.noise)
    more = np.maximum(data.counts - 1, 0).sum(0)
    return float((more * np.log(noise) + 0.5 * data.scatter.sum(0) / noise**2).sum())


@dataclass(frozen=True, kw_only=True)  # no slots: a property is cached
class Cross:
    """Some configurations seen against the data of a fitted model."""

    surrogate: Surrogate
    features: Features
    log_cycle: Floats
    jacobian: Floats
    basis: Floats
    correlation: Floats

    def take(self, index: Ints) -> Cross:
        """Some of the configurations."""
        return replace(
            self,
            features=self.features.take(index),
            log_cycle=self.log_cycle[index],
            jacobian=self.jacobian[index],
            basis=self.basis[index],
            correlation=self.correlation[index],
        )

    def mean(self, asked: Functional) -> Floats:
        """Posterior mean of a quantity."""
        model = self.surrogate
        follow = sum(w for w, c in zip(asked.weights, model.data.coupled, strict=True) if c)
        followed = model._per_config(model._weights * model._follows)
        spread = model.scales.spread
        # The linearised mechanism, which interpolates the data whether or not theta has settled.
        moved = model._jacobian.T @ followed - model.theta
        cycle = self.log_cycle + self.jacobian @ moved
        cycle = cycle + spread[0] ** 2 * (self.correlation @ followed)
        mean: Floats = follow * cycle + asked.work * self.features.log_work
        for output, weight in enumerate(asked.weights):
            if output == 0 or weight == 0:
                continue
            pull = model._per_config(model._weights * (model._output == output))
            own = self.basis @ (model._basis.T @ pull) + self.correlation @ pull
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
