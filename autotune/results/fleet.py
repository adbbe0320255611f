"""How many devices a rate needs, and which configuration is to serve which load: as a value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from autotune.core.codec import to_json_dict
from autotune.core.objective import METRICS, Limit
from autotune.core.records import Config
from autotune.measure.capacity import Served
from autotune.measure.load_table import HYSTERESIS, Row, Step
from autotune.measure.scaling import Scaling
from autotune.results.study_result import Origin

JSON_SCHEMA = 1
TABLE_SCHEMA = 1
JOULES_PER_KWH = 3.6e6

Basis = Literal["shown", "simulated", "throughput", "measured", "rounds"]
"""What a device's capacity rests on: a rate that the study showed to hold, a simulation of the
queue, a closed load's throughput, a fresh measurement at the rate that is needed, or fresh rounds
back to back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked for.

    Attributes:
        rate_per_s: Requests per second, of all devices together.
        headroom: Share of the capacity that stays free at that rate.
        price_per_hour: Of one device, in the user's money; None: unknown.
        per_machine: Devices that share a machine; None: all that are needed.
    """

    rate_per_s: float
    limits: tuple[Limit, ...] = ()
    headroom: float = 0.0
    price_per_hour: float | None = None
    per_machine: int | None = None

    @property
    def capacity_per_s(self) -> float:
        """What the devices have to hold, so that the headroom stays free."""
        return self.rate_per_s / (1.0 - self.headroom)


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelCheck:
    """A row of the table measured: its configuration beside that of the full rate.

    Attributes:
        ratio: Mean latency of the full rate's configuration over this one's; above 1 is a gain.
        ci95: Its interval. `outcome`: of the limits at this rate.
        kept: False if the row went back to the full rate's configuration.
    """

    share: float
    rate_per_s: float
    config: Config
    ratio: float | None
    ci95: tuple[float, float] | None
    mean_s: float | None
    full_mean_s: float | None
    outcome: str
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RateCheck:
    """A number of devices measured: one device at its share of the rate, headroom on top."""

    device_count: int
    rate_per_s: float
    p99_s: float | None
    outcome: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    """The answer.

    Attributes:
        config: Serves the full rate. `basis`: what its capacity rests on.
        devices: Enough, by lower bounds. `likely_devices`: by estimates, without any margin.
        single_per_s: What one device holds at least; `likely_per_s`: is expected to.
        least_per_s: What all of them hold at least.
        scaling: None: it was not measured, and devices are taken to share nothing.
        is_extrapolated: More devices share a machine than were measured on one.
        rows, steps: The load table, of `configs`; () without a limit on latency.
        watch_s: Over which a server should measure its rate.
        power_w: Of one device at work; None: unknown.
        rate_checks, level_checks: Fresh measurements, if there were any.
    """

    study: str
    origin: Origin
    wanted: Wanted
    config: Config
    basis: Basis
    devices: int
    likely_devices: int
    single_per_s: float
    likely_per_s: float
    least_per_s: float
    scaling: Scaling | None = None
    is_extrapolated: bool = False
    configs: tuple[Config, ...] = ()
    rows: tuple[Row, ...] = ()
    steps: tuple[Step, ...] = ()
    watch_s: float = 0.0
    power_w: float | None = None
    rate_checks: tuple[RateCheck, ...] = ()
    level_checks: tuple[LevelCheck, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """True if it was measured and no number of devices was shown to hold the rate."""
        return bool(self.rate_checks) and self.rate_checks[-1].outcome != "ok"

    @property
    def full_per_s(self) -> float:
        """A device's share of the rate."""
        return self.wanted.rate_per_s / self.devices

    @property
    def cost_per_hour(self) -> float | None:
        """Of all devices."""
        price = self.wanted.price_per_hour
        return None if price is None else price * self.devices

    @property
    def cost_per_million(self) -> float | None:
        """Of a million items at the full rate."""
        hourly = self.cost_per_hour
        return None if hourly is None else hourly / 3600.0 / self.wanted.rate_per_s * 1e6

    @property
    def kwh_per_million(self) -> float | None:
        """Energy of the devices for a million items at the full rate."""
        if self.power_w is None:
            return None
        return self.power_w * self.devices / self.wanted.rate_per_s * 1e6 / JOULES_PER_KWH

    def to_json(self) -> dict[str, Any]:
        """As `plan --json` prints it; no NaN, no Infinity."""
        wanted = self.wanted
        data: dict[str, Any] = {
            "schema": JSON_SCHEMA,
            "study": self.study,
            "origin": self.origin,
            "wanted": {
                "rate_per_s": wanted.rate_per_s,
                "limits": {METRICS[x.metric].field: x.bound for x in wanted.limits},
                "headroom": wanted.headroom,
                "devices_per_machine": wanted.per_machine,
            },
            "devices": self.devices,
            "likely_devices": self.likely_devices,
            "shown": not self.is_open,
            "config": self.config.as_dict(),
            "basis": self.basis,
            "one_device_per_s": {"least": self.single_per_s, "likely": self.likely_per_s},
            "capacity_per_s": self.least_per_s,
            "used_share": wanted.rate_per_s / self.least_per_s,
            "scaling": _scaling_json(self.scaling, self.is_extrapolated),
            "load_table": self.table_json() if self.rows else None,
            "cost": {
                "per_hour": self.cost_per_hour,
                "per_million_items": self.cost_per_million,
                "power_w_per_device": self.power_w,
                "kwh_per_million_items": self.kwh_per_million,
            },
            "checks": {"rates": self.rate_checks, "levels": [*map(_check_json, self.level_checks)]},
            "notes": self.notes,
        }
        return to_json_dict(data)

    def table_json(self) -> dict[str, Any]:
        """The load table for a server that follows it; rates are those of one device."""
        return to_json_dict(
            {
                "schema": TABLE_SCHEMA,
                "study": self.study,
                "full_rate_per_s": self.full_per_s,
                "measure_rate_over_s": self.watch_s,
                "hysteresis": HYSTERESIS,
                "steps": [
                    {
                        "config": self.configs[step.index].as_dict(),
                        "up_above_per_s": step.up_above_per_s,
                        "down_below_per_s": step.down_below_per_s,
                    }
                    for step in self.steps
                ],
                "levels": [
                    {
                        "up_to_share": row.share,
                        "rate_per_s": row.rate_per_s,
                        "config": self.configs[row.index].as_dict(),
                        "simulated": _served_json(row.served),
                        "full_rate_config_simulated": _served_json(row.full),
                    }
                    for row in self.rows
                ],
            }
        )


def _served_json(served: Served) -> dict[str, float]:
    return {
        "latency_mean_s": served.mean_s,
        "latency_p50_s": served.p50_s,
        "latency_p99_s": served.p99_s,
        "share_of_allowed_over_limit": served.margin,
    }


def _check_json(check: LevelCheck) -> dict[str, Any]:
    return {
        "up_to_share": check.share,
        "rate_per_s": check.rate_per_s,
        "config": check.config.as_dict(),
        "mean_latency_ratio": check.ratio,
        "mean_latency_ratio_ci95": check.ci95,
        "latency_mean_s": check.mean_s,
        "full_rate_config_latency_mean_s": check.full_mean_s,
        "outcome": check.outcome,
        "kept": check.kept,
    }


def _scaling_json(scaling: Scaling | None, is_extrapolated: bool) -> dict[str, Any]:
    if scaling is None:
        return {"basis": "assumed: devices share nothing"}
    return {
        "basis": "measured",
        "law": "Universal Scalability Law",
        "sigma": scaling.sigma,
        "sigma_range": [_finite(end) for end in scaling.sigma_range],
        "kappa": scaling.kappa,
        "kappa_range": [_finite(end) for end in scaling.kappa_range],
        "points": [
            {"device_count": p.device_count, "rate_per_s": p.rate, "relative_error": p.error}
            for p in scaling.points
        ],
        "measured_up_to": scaling.measured_up_to,
        "extrapolated": is_extrapolated,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
