"""How a served configuration's cycle time comes about: the part of the model that knows machines.

`I` instances that each serve batches of `b` items back to back take a cycle of `T = I b / X`
seconds for a throughput of `X` items/s. A cycle has a part that does not grow with the batch
(launches, copies' overhead) and a part that does, and the two may overlap:

    log T = (1/p) log(t0^p + (t1 b)^p),    p = 1: one after the other; p -> inf: the longer one

`log t0` and `log t1` are sums of main effects, one group per parameter other than the batch.
Each effect has a Gaussian prior (partial pooling): an ordered parameter a slope and a smooth
deviation, any other parameter an independent value per choice. An instance count's slope lies
between 0 (instances do not notice each other) and 1 (they take turns).

Kernels see slices of `b/m` items (`m` micro-batches) and may pad them to whole tiles, so that
`log t1` also has a small effect of log(padded / unpadded) for each usual tile size. If the data
speak for one tile, or for waves of so many of the `I b/m` items in flight (see `Surrogate`),
its effect is about 1.

A pipeline's step is known better: the batch goes through `S` ranks in `m` pieces, so that

    T = t1 b (1 + idle) + t0 m,    idle = (S - 1) / m for schedules that fill no bubbles

(`measure.pipeline_theory`). `t1 b` is a rank's work and `t0` what a micro-batch costs beyond it;
both have effects of every parameter but `b` and `m`, and there is no padding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from autotune.core.records import Floats
from autotune.search.encoding import USUAL_TILES, Features


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """log T as a function of the standardised effects `theta`; see the module's docstring."""

    level: float  # mean of the observed log T
    level_per_item: float  # mean of the observed log(T / b)
    with_batch: bool
    tile: int | None = None  # column of `Features.padding`

    INSTANCE_SLOPE = 0.35
    SLICE_SLOPE = 0.5
    LEVEL_SD = 1.5
    PIPELINE_GAP = 4.0  # prior of log(t1 b / t0): a micro-batch costs some 2 % of the work
    SHARPNESS = (math.log(1.5), 0.5)  # mean and standard deviation of log p
    PIPELINE_SHARPNESS = (0.0, 0.03)  # a sum
    PADDED = 1.0  # share of a part-filled tile that costs as if it were full
    PADDED_SD = 0.3
    USUAL_SD = 0.3

    def size(self, features: Features) -> int:
        """Length of theta."""
        count = 1 + int(features.effects.shape[1])
        return 2 * count + USUAL_TILES + 2 if self.with_batch else count

    def moved(self, features: Features, theta: Floats, step: Floats) -> Floats:
        """log T of each row at `theta`, and from there `step` along its derivative."""
        if not self.with_batch:
            linear: Floats = self.level + self._sum(features, theta + step)
            return linear
        count = 1 + features.effects.shape[1]
        log_cycle, share, slope = self._cycle(features, theta)
        grown = self._sum(features, step[count : 2 * count])
        grown = grown + self._padding(features) @ step[2 * count : -1]
        fixed = self._sum(features, step[:count])
        result: Floats = log_cycle + share * fixed + (1 - share) * grown + slope * step[-1]
        return result

    def evaluate(self, features: Features, theta: Floats) -> tuple[Floats, Floats]:
        """log T of each row, and its derivative in theta, shape (rows, len(theta))."""
        basis = np.hstack([np.full((len(features.effects), 1), self.LEVEL_SD), features.effects])
        if not self.with_batch:
            return self.level + basis @ theta, basis
        log_cycle, share, slope = self._cycle(features, theta)
        grown = (1 - share)[:, None] * np.hstack([basis, self._padding(features)])
        jacobian = np.hstack([share[:, None] * basis, grown, slope[:, None]])
        return log_cycle, jacobian

    def _cycle(self, features: Features, theta: Floats) -> tuple[Floats, Floats, Floats]:
        """log T, the share of the cycle that does not grow, and the derivative in log p."""
        count = 1 + features.effects.shape[1]
        shared = self.INSTANCE_SLOPE * features.log_instances
        growing = self.level_per_item + shared + features.log_batch
        if features.log_idle is None:
            fixed = self.level - 1.0 + shared + self.SLICE_SLOPE * features.log_slices
        else:
            fixed = self.level - self.PIPELINE_GAP + features.log_slices
            growing = growing + features.log_idle
        fixed = fixed + self._sum(features, theta[:count])
        growing = growing + self._sum(features, theta[count : 2 * count])
        padding = self._padding(features)
        growing = growing + padding @ theta[2 * count : -1]
        growing = growing + self.PADDED / self.PADDED_SD * padding[:, -1]  # its prior mean
        centre, spread = self.SHARPNESS
        if features.log_idle is not None:
            centre, spread = self.PIPELINE_SHARPNESS
        sharpness = math.exp(centre + spread * theta[-1])
        log_cycle = np.logaddexp(sharpness * fixed, sharpness * growing) / sharpness
        share = np.exp(sharpness * (fixed - log_cycle))
        mean = share * fixed + (1 - share) * growing
        return log_cycle, share, spread * (mean - log_cycle)

    def padding_slopes(self, features: Features, theta: Floats) -> Floats:
        """Derivative of log T in the share of each tile that is padded, (rows, tiles)."""
        share = self._cycle(features, theta)[1]
        slopes: Floats = (1 - share)[:, None] * features.padding
        return slopes

    def _padding(self, features: Features) -> Floats:
        """The standardised effects of padding: of usual tiles, and of `tile` (0 without)."""
        effects = np.zeros((len(features.log_batch), USUAL_TILES + 1))
        effects[:, :-1] = self.USUAL_SD * features.padding[:, :USUAL_TILES]
        if self.tile is not None:
            effects[:, -1] = self.PADDED_SD * features.padding[:, self.tile]
        return effects

    def _sum(self, features: Features, effects: Floats) -> Floats:
        """The level and the main effects of each row, summed."""
        total: Floats = self.LEVEL_SD * effects[0] + features.effects @ effects[1:]
        return total
