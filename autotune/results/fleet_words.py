"""A plan as a person reads it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from autotune.core.units import format_duration, format_rate
from autotune.measure.capacity import SIMULATED_SHARE
from autotune.measure.load_table import HYSTERESIS
from autotune.measure.scaling import CONFIDENCE
from autotune.results.fleet import FleetPlan, LevelCheck, RateCheck
from autotune.results.summary import ORIGIN_NOTICE
from autotune.results.words import (
    config_text,
    factor_interval_text,
    factor_text,
    limit_text,
    outcome_text,
)

_BASIS = {
    "shown": "a rate that the study showed to hold",
    "simulated": (
        "a simulation of the queue with the study's call times, "
        f"{1 - SIMULATED_SHARE:.0%} off; --confirm measures it"
    ),
    "throughput": "the lower end of the interval of its throughput",
    "measured": "measured at its share of the rate, headroom on top",
    "rounds": "measured back to back, in rounds of fresh processes",
}


def plan_lines(plan: FleetPlan) -> Iterator[str]:
    """The whole answer."""
    wanted = plan.wanted
    limits = ", ".join(map(limit_text, wanted.limits)) or "no limit"
    by = "not shown. By its records, " if plan.is_open else ""
    yield (
        f"{plan.study}: {by}{devices_text(plan.devices)} for {format_rate(wanted.rate_per_s)} "
        f"with {limits} and {wanted.headroom:.0%} of headroom"
    )
    if plan.origin in ORIGIN_NOTICE:
        yield " ".join(ORIGIN_NOTICE[plan.origin])
    yield f"  {config_text(plan.config)}"
    used = wanted.rate_per_s / plan.least_per_s
    yield _line(
        "One device", f"holds {format_rate(plan.single_per_s)} at least ({_BASIS[plan.basis]})"
    )
    yield _line(
        "All together",
        f"hold {format_rate(plan.least_per_s)} at least; {used:.0%} of it is used at the full rate",
    )
    yield _line("Scaling", _scaling_text(plan))
    if plan.likely_devices < plan.devices and not plan.rate_checks:
        yield _line("Fewer", _fewer_text(plan))
    yield from _money_lines(plan)
    yield from (_line("Measured", _rate_check_text(check)) for check in plan.rate_checks)
    if plan.is_open:
        yield _line(
            "Not shown",
            "none of these numbers was seen to hold the rate: measure again when the machine is "
            "quiet, or longer, or plan more devices",
        )
    yield from _table_lines(plan)
    yield from (f"  - {note}" for note in plan.notes)


def devices_text(count: int) -> str:
    """A number of devices: "1 device", "5 devices"."""
    return f"{count} device{'s' * (count != 1)}"


def _line(name: str, text: str) -> str:
    return f"  {name:<16} {text}"


def _fewer_text(plan: FleetPlan) -> str:
    return (
        f"{plan.likely_devices} may do by the estimates alone, which leave nothing for doubt; "
        "--confirm tells"
    )


def _scaling_text(plan: FleetPlan) -> str:
    scaling = plan.scaling
    if scaling is None:
        return (
            "not measured: the devices are taken to share nothing, as on machines of their own; "
            "params.device_count: [1, 2, 4] measures it"
        )
    counts = ", ".join(str(point.device_count) for point in scaling.points)
    text = (
        f"measured with {counts} devices: Universal Scalability Law, "
        f"sigma {scaling.sigma:.3g} ({_range(scaling.sigma_range)}), "
        f"kappa {scaling.kappa:.2g} ({_range(scaling.kappa_range)})"
    )
    if plan.is_extrapolated:
        text += (
            f"; beyond {scaling.measured_up_to} devices nothing was measured: "
            f"the worst law that fits with {CONFIDENCE:.0%} is counted on"
        )
    return text


def _range(ends: tuple[float, float]) -> str:
    high = f"{ends[1]:.2g}" if math.isfinite(ends[1]) else "no bound"
    return f"{ends[0]:.2g} to {high}"


def _money_lines(plan: FleetPlan) -> Iterator[str]:
    hourly, million = plan.cost_per_hour, plan.cost_per_million
    if hourly is not None and million is not None:
        yield _line("Cost", f"{hourly:,.2f} per hour, {million:.3g} per million items")
    if plan.kwh_per_million is not None and plan.power_w is not None:
        yield _line(
            "Energy",
            f"{plan.kwh_per_million:.3g} kWh per million items ({plan.power_w:.3g} W a device)",
        )


def _rate_check_text(check: RateCheck) -> str:
    p99 = f", P99 {format_duration(check.p99_s)}" if check.p99_s is not None else ""
    text = (
        f"{devices_text(check.device_count)}: {format_rate(check.rate_per_s)} on one of them{p99}, "
        f"{outcome_text(check.outcome)}"
    )
    return f"{text} ({check.reason})" if check.reason else text


def _table_lines(plan: FleetPlan) -> Iterator[str]:
    if not plan.rows:
        return
    names = _differing(plan)
    yield f"  Load table (rates are of one device; full {format_rate(plan.full_per_s)}):"
    for row in plan.rows:
        config = config_text(plan.configs[row.index], names) if names else "the same"
        gain = ""
        if row.served is not row.full:
            gain = (
                f", {factor_text(row.full.mean_s / row.served.mean_s)} as quick as the last row's"
            )
        yield (
            f"    up to {row.share:>4.0%}  {format_rate(row.rate_per_s):>10}  "
            f"mean {format_duration(row.served.mean_s)}, P99 {format_duration(row.served.p99_s)}"
            f"{gain}  {config}"
        )
    yield from (f"    measured: {_level_text(check, names)}" for check in plan.level_checks)
    if len(plan.steps) > 1:
        yield (
            f"    switch up above a level, down {HYSTERESIS:.0%} below it, by the rate of the last "
            f"{format_duration(plan.watch_s)}"
        )
    else:
        yield "    no tested configuration is quicker at a lower load"


def _level_text(check: LevelCheck, names: list[str]) -> str:
    if check.ratio is None:
        why = "too little time" if check.outcome == "undecided" else outcome_text(check.outcome)
        return f"up to {check.share:.0%}: {why}; not used"
    interval = f", 95 % interval {factor_interval_text(check.ci95)}" if check.ci95 else ""
    text = (
        f"up to {check.share:.0%}: on average {factor_text(check.ratio)} as quick as the last row's"
        f"{interval}, limits {outcome_text(check.outcome)}"
    )
    return text if check.kept else f"{text}: not used"


def _differing(plan: FleetPlan) -> list[str]:
    """The parameters in which the table's configurations differ."""
    used = [plan.configs[row.index].as_dict() for row in plan.rows]
    return [name for name in used[0] if len({config.get(name) for config in used}) > 1]
