"""Round numbers to label an axis with."""

from __future__ import annotations

import math


def log_ticks(low: float, high: float) -> list[float]:
    """Round values of a logarithmic axis."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 2, 3, 4, 6, 8)):
        values = [d * 10.0**e for e in decades for d in digits if low <= d * 10.0**e <= high]
        if len(values) >= 3:
            # Too many decades for 1-2-5: every second of them would drop the round ones.
            return (
                values if len(values) <= 9 else [10.0**e for e in decades if low <= 10.0**e <= high]
            )
    return values or [math.sqrt(low * high)]


def linear_ticks(high: float, most: float) -> list[float]:
    """Round values from 0 to `high`, about as many as `most`, not more."""
    rough = high / max(most, 1.0)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough)
    return [step * i for i in range(int(high / step * (1 + 1e-9)) + 1)]
