"""Which configuration serves which load best: small and quick at low load, large at high load.

What holds a device's full rate is rarely what answers soonest at half of it. For a few levels of
load the tested configurations are simulated under the same arrivals; a level gets the one with the
lowest mean latency that keeps the limits there, with the headroom on top and down to where it is
switched to. The full rate keeps the configuration that was chosen for it.

A server that follows the table measures its rate over a while. It goes up a row as soon as the rate
is above the row's level, and down only when it is a tenth below: near a level it does not flutter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.measure.capacity import Queued, Served

LEVELS = (0.1, 0.25, 0.5, 0.75, 1.0)  # shares of the full rate
MIN_GAIN = 0.03  # of the mean latency, for which a switch is worth it
HYSTERESIS = 0.1  # of the rate, between going up and coming down
SIGMAS = 4.0  # that the hysteresis is of the noise of a measured rate
MIN_WATCH_S, MAX_WATCH_S = 1.0, 60.0  # over which a server measures its rate
MAX_CANDIDATES = 16  # simulated at a level, those with the quickest lone request
IDLE_SHARE = 0.2  # of the first level: the lowest rate at which its configuration is tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A level of load.

    Attributes:
        share: Of the full rate, up to which the row counts. `rate_per_s`: that rate, of a device.
        index: Of the candidate chosen.
        served: Its figures at that rate; `full`: those of the full rate's configuration there.
    """

    share: float
    rate_per_s: float
    index: int
    served: Served
    full: Served


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Neighbouring rows of one configuration, as a server follows them.

    Attributes:
        up_above_per_s: Go to the next step when a device's rate is above; None: there is none.
        down_below_per_s: Go to the step before when it is below; None: there is none.
    """

    index: int
    up_above_per_s: float | None
    down_below_per_s: float | None


def load_table(
    candidates: Sequence[Queued], full: int, rate_per_s: float, *, headroom: float
) -> tuple[Row, ...]:
    """The best candidate for every level of a device's full rate.

    Args:
        full: Index of the candidate that serves the full rate.
        headroom: Share of what is held that stays free.
    """
    quickest = sorted(range(len(candidates)), key=lambda i: _lone_s(candidates[i]))
    tried = sorted({full, *quickest[:MAX_CANDIDATES]})
    rows: list[Row] = []
    for share in LEVELS:
        rate = share * rate_per_s
        below = (1.0 - HYSTERESIS) * rows[-1].rate_per_s if rows else IDLE_SHARE * rate
        edges = (below, rate / (1.0 - headroom))
        at_full = candidates[full].at(rate)
        index, served = full, at_full
        if share < 1.0:
            index, served = _best(candidates, tried, full, at_full, rate, edges)
        rows.append(Row(share=share, rate_per_s=rate, index=index, served=served, full=at_full))
    return tuple(rows)


def steps(rows: Sequence[Row]) -> tuple[Step, ...]:
    """The rows as a server follows them."""
    merged: list[Row] = []
    for row in rows:
        if merged and merged[-1].index == row.index:
            merged[-1] = row
        else:
            merged.append(row)
    tops = [row.rate_per_s for row in merged]
    return tuple(
        Step(
            index=row.index,
            up_above_per_s=row.rate_per_s if number < len(merged) - 1 else None,
            down_below_per_s=(1.0 - HYSTERESIS) * tops[number - 1] if number else None,
        )
        for number, row in enumerate(merged)
    )


def watch_s(rows: Sequence[Row]) -> float:
    """Seconds over which a server should measure its rate: then chance moves it by less than the
    hysteresis."""
    slowest = rows[0].rate_per_s
    return min(max((SIGMAS / HYSTERESIS) ** 2 / slowest, MIN_WATCH_S), MAX_WATCH_S)


def _best(
    candidates: Sequence[Queued],
    tried: Sequence[int],
    full: int,
    at_full: Served,
    rate: float,
    edges: tuple[float, float],
) -> tuple[int, Served]:
    """The quickest that holds at the rate and at both edges."""
    wanted_s = (1.0 - MIN_GAIN) * at_full.mean_s
    found = [
        (candidates[index].at(rate), index)
        for index in tried
        if index != full
        and _lone_s(candidates[index]) < wanted_s
        and _capacity(candidates[index]) > edges[1]
    ]
    for served, index in sorted(found, key=lambda pair: pair[0].mean_s):
        if served.mean_s > wanted_s:
            break
        if served.holds and all(candidates[index].at(edge).holds for edge in edges):
            return index, served
    return full, at_full


def _capacity(queued: Queued) -> float:
    goal = queued.goals[0]
    return queued.service.capacity_per_s(goal.max_batch, goal.servers)


def _lone_s(queued: Queued) -> float:
    """Latency of a request that meets nobody."""
    call_s = float(queued.service.median_s(np.ones(1))[0] * queued.service.residuals.mean())
    goal = queued.goals[0]
    return call_s + (goal.max_delay_s if goal.max_batch > 1 else 0.0)
