"""The gradient noise scale: up to which batch a larger one still saves steps.

`B_simple = tr(Sigma) / |G|^2` (McCandlish et al. 2018, arXiv 1812.06162, section 2.2) from the
squared norms of gradients of two batch sizes (appendix A.1 there):

    |G|^2     ~ (B_big |G_big|^2 - B_small |G_small|^2) / (B_big - B_small)
    tr(Sigma) ~ (|G_small|^2 - |G_big|^2) / (1 / B_small - 1 / B_big)

Both are without bias, their quotient of one step is not and may even be negative: they are
averaged over many steps separately, and only then divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autotune.core.errors import UsageError

MIN_STEPS = 20
RESAMPLES = 2000


class SquaredNorms(NamedTuple):
    """Of one step: the mean of |gradient|^2 over its micro-batches, and that of their mean."""

    small: float
    big: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseScale:
    """The noise scale at the weights it was measured at; it grows while a model is trained.

    Attributes:
        items: B_simple; None where the gradient itself cannot be told from noise.
        low, high: 95 % interval over the steps (bootstrap); None: no bound.
        steps: How many it rests on.
    """

    items: float | None
    low: float | None
    high: float | None
    steps: int

    def text(self) -> str:
        """In a sentence."""
        if self.items is None or self.low is None:
            return (
                f"the gradient noise scale is not known: {self.steps} steps do not tell the "
                "gradient from its noise, which then is far larger than these batches"
            )
        high = "and more" if self.high is None else f"to {_count(self.high)}"
        return (
            f"gradient noise scale about {_count(self.items)} items (95 % interval "
            f"{_count(self.low)} "
            f"{high}, {self.steps} steps at untrained weights): batches far above it save few "
            "steps"
        )


def _count(items: float) -> str:
    """With three digits that count: 0.52, 12.3, 3,120."""
    text = f"{items:.3g}"
    return text if items < 100 else f"{float(text):,.0f}"


def noise_scale(
    norms: Sequence[SquaredNorms], *, small: int, big: int, seed: int = 0
) -> NoiseScale:
    """The noise scale from the gradients of many steps on different items.

    Args:
        small: Items of a micro-batch. big: items of all of them together.
    Raises:
        UsageError: Too few steps, or a step of one micro-batch.
    """
    if len(norms) < MIN_STEPS:
        raise UsageError(
            f"a gradient noise scale needs {MIN_STEPS} steps at least, not {len(norms)}: that of "
            "single steps has any value"
        )
    if not 0 < small < big:
        raise UsageError(f"gradients of {small} and of {big} items: the second must be more")
    table = np.array(norms, dtype=np.float64)
    odd = np.flatnonzero(~np.isfinite(table).all(axis=1) | (table < 0).any(axis=1))
    if odd.size:
        raise UsageError(
            f"the gradient of step {odd[0] + 1} is not a number (NaN or infinite), in {odd.size} "
            f"of {len(norms)} steps"
        )
    if not table.any():
        raise UsageError("the gradient is 0 in every step: nothing is trained at these weights")
    signal = (big * table[:, 1] - small * table[:, 0]) / (big - small)
    noise = (table[:, 0] - table[:, 1]) / (1 / small - 1 / big)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(norms), size=(RESAMPLES, len(norms)))
    signals, noises = signal[drawn].mean(1), noise[drawn].mean(1)
    found = np.full(RESAMPLES, np.inf)
    np.divide(noises, signals, out=found, where=signals > 0)
    low, high = np.quantile(found, (0.025, 0.975), method="nearest")
    whole = float(noise.mean() / signal.mean()) if signal.mean() > 0 else None
    return NoiseScale(
        items=None if whole is None else max(whole, 0.0),
        low=max(float(low), 0.0) if np.isfinite(low) else None,
        high=max(float(high), 0.0) if np.isfinite(high) else None,
        steps=len(norms),
    )
