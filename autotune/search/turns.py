"""The rates of a confirmation's windows in the order of their turns."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from autotune.core.records import Result, Samples, TurnRate
from autotune.measure.summary import throughput


def turn_rates(results: Mapping[int, Result]) -> tuple[TurnRate, ...]:
    """One configuration's windows, from its results by round; () of finished figures.

    Times are seconds since its first window. On virtual clocks every session begins at zero: there
    a round follows the one before without a break.
    """
    found: list[TurnRate] = []
    first_s = ended_s = None
    shift_s = 0.0
    for number in sorted(results):
        samples = results[number]
        if not isinstance(samples, Samples) or samples.start_s.size == 0:
            continue
        began_s = float(samples.start_s.min())
        first_s = began_s if first_s is None else first_s
        if ended_s is not None and began_s + shift_s < ended_s:
            shift_s = ended_s - began_s
        for turn in np.unique(samples.window):
            window = samples.of_window(int(turn))
            at_s = float(window.start_s.min()) + shift_s - first_s
            found.append(
                TurnRate(round=number, turn=int(turn), at_s=at_s, rate=throughput(window)[0])
            )
        ended_s = float(samples.end_s.max()) + shift_s
    return tuple(found)
