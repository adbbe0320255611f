"""Metrics, limits and objectives: what is wanted of a configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from autotune.core.records import Load, Series


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A figure that can be limited or optimised.

    Attributes:
        field: The field of `Measurement` that holds it.
        unit: Kind of unit, a key of `units.UNITS_BY_KIND`.
        better: Which way is better; a limit is a maximum for "lower", a minimum for "higher".
        quantile: For a quantile over requests, that quantile, else None.
        series: Which time of every request the quantile is of, see `Samples.series`.
    """

    field: str
    unit: str
    better: Literal["lower", "higher"]
    quantile: float | None = None
    series: Series = "latency"


def _per_request(series: Series) -> dict[str, Metric]:
    """Mean and quantiles of one of the times that a streamed answer has."""
    quantiles = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    mean = Metric(field=f"{series}_mean_s", unit="duration", better="lower", series=series)
    return {f"{series}_mean": mean} | {
        f"{series}_{name}": Metric(
            field=f"{series}_{name}_s", unit="duration", better="lower", quantile=q, series=series
        )
        for name, q in quantiles.items()
    }


METRICS: dict[str, Metric] = {
    "latency_mean": Metric(field="latency_mean_s", unit="duration", better="lower"),
    "latency_p50": Metric(field="latency_p50_s", unit="duration", better="lower", quantile=0.5),
    "latency_p90": Metric(field="latency_p90_s", unit="duration", better="lower", quantile=0.9),
    "latency_p99": Metric(field="latency_p99_s", unit="duration", better="lower", quantile=0.99),
    "latency_p999": Metric(field="latency_p999_s", unit="duration", better="lower", quantile=0.999),
    **_per_request("ttft"),
    **_per_request("tpot"),
    "throughput": Metric(field="throughput_items_per_s", unit="rate", better="higher"),
    "token_rate": Metric(field="throughput_tokens_per_s", unit="rate", better="higher"),
    "arrival_rate": Metric(field="arrival_rate_per_s", unit="rate", better="higher"),
    "memory_peak": Metric(field="memory_peak_bytes", unit="size", better="lower"),
    "power": Metric(field="power_w", unit="power", better="lower"),
    "energy": Metric(field="energy_per_item_j", unit="energy", better="lower"),
}
"""Names as they stand in a space file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A bound that a recommendation must keep, in SI units."""

    metric: str
    bound: float

    def excess(self, value: float) -> float:
        """How far `value` breaks the limit, in the metric's unit; <= 0 holds."""
        if METRICS[self.metric].better == "lower":
            return value - self.bound
        return self.bound - value


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A metric to optimise, with its weight among several."""

    metric: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What a study is after; a file under objectives/ defines one as `OBJECTIVE`.

    Attributes:
        load: How requests arrive unless the space file says otherwise.
        goals: What is optimised; each in its metric's better direction. Several are weighed
            against each other, see `score`, unless `front`.
        required_limits: Metrics of which the space file must limit at least one; none: ().
        limits: Limits, those of the space file included once it is resolved.
        knee_share: Not the highest throughput is wanted but the knee of its curve over the batch
            size: the smallest size that delivers this share of the highest. None: no knee.
        front: The goals' trade-offs are wanted: every configuration that no other one beats in
            all of them (Pareto front). The weights then only say which of these is recommended.
    """

    name: str
    description: str = ""
    load: Load = Load()
    goals: tuple[Goal, ...] = (Goal(metric="throughput"),)
    required_limits: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()
    knee_share: float | None = None
    front: bool = False

    @property
    def is_weighted(self) -> bool:
        """True if several goals count together as one figure."""
        return len(self.goals) > 1 and not self.front

    def score(self, values: Mapping[str, float]) -> float:
        """How good figures are, by `Measurement` field; higher is better.

        The weighted sum of the goals' logarithms, so that no unit outweighs another: a score
        less the baseline's is the weighted sum of the logarithms of the improvements. -inf if a
        goal's figure is unknown.
        """
        total = 0.0
        for goal in self.goals:
            metric = METRICS[goal.metric]
            value = values.get(metric.field)
            if value is None or not 0 < value < math.inf:
                return -math.inf
            total += goal.weight * math.log(value) * (1 if metric.better == "higher" else -1)
        return total
