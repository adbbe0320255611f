"""Trials that differ in their batch size alone, as the curve that `knee` reads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from autotune.core.objective import METRICS, Limit, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Measurement, TrialRecord
from autotune.measure.knee import MOST_REPEATS, REAL, Knee, find_knee, next_points
from autotune.measure.noise import QUIET, speed_left

TYPICAL_NOISE = 0.03  # of a figure that came without an interval
NOISE_RANGE = (0.02, 0.2)  # processes differ from each other by 2 % even where calls do not
NOISY_ERROR = 0.05  # more, where a neighbour was seen: what it took is only estimated

_TOO_LARGE = (Outcome.OOM, Outcome.TIMEOUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCurve:
    """What a family of trials shows over the batch size.

    Attributes:
        sizes: Batch size of every trial that tells something, repeated ones several times.
        throughput_per_s: Of each; 0 where memory or time did not suffice.
            A noisy trial counts as what it is likely to have been without the noise.
        strain: Of each, the largest share that a limited figure takes of its limit, above 1
            where one is broken; None without limits.
        spent: Sizes not to be measured again: they crashed, or were tried often enough.
        noise: Relative standard error of one throughput.
    """

    sizes: tuple[int, ...]
    throughput_per_s: tuple[float, ...]
    strain: tuple[float, ...] | None
    spent: frozenset[int]
    noise: float

    @classmethod
    def of(cls, records: Iterable[TrialRecord], objective: Objective) -> BatchCurve:
        """The curve of finished trials that differ in their batch size alone."""
        tried = [r for r in records if not r.verdict.outcome.is_retried]
        limits = _own_limits(objective)
        points = [(r.config.batch_size, *_point(r, objective, limits)) for r in tried]
        known = [(size, speed, strain) for size, speed, strain in points if speed is not None]
        sizes = [size for size, _, _ in points]
        crashed = set(sizes) - {size for size, _, _ in known}
        often = {size for size in sizes if sizes.count(size) >= MOST_REPEATS}
        return cls(
            sizes=tuple(size for size, _, _ in known),
            throughput_per_s=tuple(speed for _, speed, _ in known),
            strain=tuple(strain for _, _, strain in known) if limits else None,
            spent=frozenset(crashed | often),
            noise=_noise([r.measurement for r in tried if r.measurement is not None]),
        )

    @property
    def running_count(self) -> int:
        """How many different sizes could be run."""
        points = zip(self.sizes, self.throughput_per_s, strict=True)
        return len({size for size, speed in points if speed > 0.0})

    def knee(self, share: float, grid: Sequence[int] = ()) -> Knee:
        """The knee as far as it is known, see `find_knee`; `grid`: sizes that may hold it too."""
        return find_knee(
            self.sizes,
            self.throughput_per_s,
            share=share,
            latency_p99_s=self.strain,
            limit_s=None if self.strain is None else 1.0,
            noise=self.noise,
            grid=grid,
        )

    def wanted(self, grid: Sequence[int], share: float) -> tuple[int, ...]:
        """Sizes of `grid` to measure next, see `next_points`; none: the knee is settled."""
        usable = sorted((set(grid) - self.spent) | set(self.sizes))
        if not usable:
            return ()
        wanted = next_points(
            self.sizes,
            self.throughput_per_s,
            usable,
            share=share,
            latency_p99_s=self.strain,
            limit_s=None if self.strain is None else 1.0,
            noise=self.noise,
        )
        return tuple(size for size in wanted if size not in self.spent)


def _own_limits(objective: Objective) -> tuple[Limit, ...]:
    """The limits that a trial's figures tell of; where the rate is sought, it keeps the tail's."""
    return tuple(
        limit
        for limit in objective.limits
        if not (objective.load.seeks_rate and METRICS[limit.metric].quantile is not None)
    )


def _point(
    record: TrialRecord, objective: Objective, limits: Sequence[Limit]
) -> tuple[float | None, float]:
    """Throughput (None: nothing is known of this size) and strain of a trial."""
    if record.verdict.outcome in _TOO_LARGE:
        return 0.0, 1.0
    measurement = record.measurement
    if measurement is None:
        return None, 1.0
    speed = getattr(measurement, METRICS[objective.goals[0].metric].field)
    strains = [_strain(measurement, limit) for limit in limits]
    known = speed is not None and 1e3 * REAL[0] < speed < 1e-3 * REAL[1] and None not in strains
    if not known:
        return None, 1.0
    strain = max((s for s in strains if s), default=1.0)
    return float(speed) / speed_left(measurement), min(max(strain, REAL[0]), REAL[1])


def _strain(measurement: Measurement, limit: Limit) -> float | None:
    metric = METRICS[limit.metric]
    value = getattr(measurement, metric.field)
    if value is None or not 0 < value < math.inf or not limit.bound > 0:
        return None
    undisturbed = {"duration": speed_left(measurement), "rate": 1 / speed_left(measurement)}
    value *= undisturbed.get(metric.unit, 1.0)
    return float(value / limit.bound if metric.better == "lower" else limit.bound / value)


def _noise(measurements: Sequence[Measurement]) -> float:
    """Typical relative standard error of a trial's throughput, from the trials' intervals."""
    errors = [
        (interval[1] - interval[0]) / (2 * 1.96 * m.throughput_items_per_s)
        + (0.0 if m.trust == QUIET else NOISY_ERROR)
        for m in measurements
        if (interval := m.throughput_ci95_items_per_s) and m.throughput_items_per_s
    ]
    low, high = NOISE_RANGE
    return min(max(median(errors), low), high) if errors else TYPICAL_NOISE
