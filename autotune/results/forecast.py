"""What changing one parameter should bring, from where the time of a call goes.

Every forecast is a ratio of two cycle times `T`: from the start of an instance's call to that of
its next. The parts of a cycle come from a breakdown, so that it takes one configuration only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from autotune.core.diagnosis import Breakdown, Forecast
from autotune.core.records import Config, Scalar
from autotune.core.units import format_duration

COPIES_WHEN_BATCHED = 2  # one per dtype, of which inputs have two as a rule
COPIES_WHEN_PACKED = 1
STEP = 2  # the factor of a step, where no choices are known
MVA_TURNS = 20  # of the fixed point for the time that instances do not share


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is known of where a configuration runs.

    Attributes:
        choices: Values of the parameters that are searched; one that is not there may have any.
        core_count: What `cores_per_instance` shares out, None if it is not known.
        overlaps: True if the device copies and computes at the same time.
        is_host: True if instances share the cores of a host, rather than a device with one queue.
    """

    choices: Mapping[str, Sequence[Scalar]] = field(default_factory=dict)
    core_count: int | None = None
    overlaps: bool = False
    is_host: bool = False

    def reach(self, knob: str, config: Config) -> Reach:
        """Whether a parameter's next value is one that the search may take."""
        if not self.choices:
            return "free"
        if knob not in self.choices:
            return "fixed"
        return "free" if _next(knob, config, self) is not None else "end"


Reach = Literal["free", "fixed", "end"]
"""fixed: it has one value in this space. end: it has the last of its range."""


def forecast(
    knob: str,
    breakdown: Breakdown,
    config: Config,
    setting: Setting,
    *,
    after: Scalar | None = None,
) -> Forecast | None:
    """What a parameter's next step should bring.

    Args:
        after: Another value than the next one.
    Returns:
        None if the parameter has no other value, or the breakdown does not tell enough.
    """
    value = _next(knob, config, setting) if after is None else after
    rule = _RULES.get(knob)
    if rule is None or value is None or value == config.get(knob, ""):
        return None
    return rule(breakdown, config, setting, value)


def _next(knob: str, config: Config, setting: Setting) -> Scalar | None:
    """The next value of a parameter: twice as much, or on instead of off."""
    present, choices = config.get(knob, ""), setting.choices.get(knob)
    if isinstance(present, bool):
        return None if present or (choices is not None and True not in choices) else True

    def size(value: Scalar) -> float | None:
        if knob == "cores_per_instance":
            return _units(value, setting.core_count)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    now = size(present)
    if not now or choices is None:
        return int(now * STEP) if now and isinstance(present, int) else None
    larger = {choice: its for choice in choices if (its := size(choice)) and its > now}
    return min(larger, key=lambda c: abs(math.log(larger[c] / (now * STEP))), default=None)


# --- rules -------------------------------------------------------------------------------------


def _batch_size(b: Breakdown, config: Config, _: Setting, after: Scalar) -> Forecast | None:
    if b.per_call_s is None or not isinstance(after, int):
        return None
    ratio, fixed_s = after / config.batch_size, min(b.per_call_s, b.span_s)
    growing_s = b.span_s - fixed_s
    gain = ratio * b.span_s / (fixed_s + ratio * growing_s)
    t = _printer(b)
    return Forecast(
        knob="batch_size",
        before=config.batch_size,
        after=after,
        gain=gain,
        formula=f"r T / (F + r (T - F)), r = {ratio:g}, T = {t(b.span_s)}, F = {t(fixed_s)}",
        source="a call's time as a fixed part F and one that grows with the batch",
    )


def _batched_h2d(b: Breakdown, config: Config, s: Setting, after: Scalar) -> Forecast | None:
    copies = b.h2d_copies_per_call
    if copies is None or copies <= 1 or not b.h2d_s or after is not True:
        return None
    packed = COPIES_WHEN_PACKED if s.is_host else COPIES_WHEN_BATCHED
    left = min(packed, copies) / copies
    saved_s = b.h2d_s * (1 - left)
    formula = f"T / (T - C (1 - {copies * left:.0f}/{copies:.0f}))"
    if b.copy_overhead_s is not None:
        saved_s = min(saved_s, b.h2d_count * (1 - left) * b.copy_overhead_s)
        formula = f"T / (T - ({copies:.0f} - {copies * left:.0f}) c)"
    saved_s = min(saved_s, b.h2d_alone_s)
    t = _printer(b)
    overhead = f", c = {format_duration(b.copy_overhead_s)}" if b.copy_overhead_s else ""
    return Forecast(
        knob="batched_h2d",
        before=config.batched_h2d,
        after=True,
        gain=b.span_s / (b.span_s - saved_s) if saved_s < b.span_s else math.inf,
        formula=f"{formula}, T = {t(b.span_s)}, C = {t(b.h2d_s)}{overhead}",
        source="Amdahl 1967: small copies cost their number",
    )


def _micro_batch_count(b: Breakdown, config: Config, s: Setting, after: Scalar) -> Forecast | None:
    before = config.micro_batch_count
    if not s.overlaps or before != 1 or not isinstance(after, int) or config.batch_size % after:
        return None
    # The first slice's copy stays in front; each further slice is launched and copied by itself.
    further_s = b.idle_s - b.host_s + b.h2d_count * (b.copy_overhead_s or 0.0)
    hidden_s = min(b.h2d_alone_s, b.busy_s) * (1 - 1 / after)
    cycle_s = b.span_s - hidden_s + (after - 1) * further_s
    t = _printer(b)
    return Forecast(
        knob="micro_batch_count",
        before=before,
        after=after,
        gain=b.span_s / cycle_s,
        formula=f"T / (T - C (1 - 1/m) + (m - 1) L), m = {after}, T = {t(b.span_s)}, "
        f"C = {t(b.h2d_alone_s)}, L = {t(further_s)}",
        source="all copies but the first hide under computing; each slice is launched again",
    )


def _cores(b: Breakdown, config: Config, s: Setting, after: Scalar) -> Forecast | None:
    before = config.cores_per_instance
    units = _units(before, s.core_count), _units(after, s.core_count)
    if units[0] is None or units[1] is None or units[1] <= units[0]:
        return None
    if s.is_host and s.core_count and config.instance_count * units[1] > s.core_count:
        return None
    parallel_s = b.busy_s * (1 - (b.memory_share or 0.0))
    cycle_s = b.span_s - parallel_s * (1 - units[0] / units[1])
    t = _printer(b)
    return Forecast(
        knob="cores_per_instance",
        before=before,
        after=after,
        gain=b.span_s / cycle_s,
        at_most=True,
        formula=f"T / (T - B (1 - {units[0]}/{units[1]})), T = {t(b.span_s)}, B = {t(parallel_s)}",
        source="Amdahl 1967",
    )


def _units(cores: Scalar, core_count: int | None) -> int | None:
    """How many units a value of `cores_per_instance` stands for; of "cube|vector" the cubes."""
    if cores == "all":
        return core_count
    text = str(cores).partition("|")[0]
    return int(text) if text.isdecimal() else None


def _instance_count(b: Breakdown, config: Config, s: Setting, after: Scalar) -> Forecast | None:
    if b.shared_s is None or not isinstance(after, int):
        return None
    before, t = config.instance_count, _printer(b)
    cores = config.cores_per_instance
    if isinstance(cores, int) and s.is_host and s.core_count and after * cores > s.core_count:
        return None
    demand_s = min(b.shared_s, b.span_s)
    if s.is_host:
        limit = b.span_s / demand_s if demand_s else math.inf
        gain = min(after, max(limit, before)) / before
        formula = f"min({after}, T / D) / {before}"
        source = "asymptotic bound, Denning and Buzen 1978"
    else:
        free_s = _unshared_s(before, demand_s, b.span_s)
        gain = _mva_rate(after, demand_s, free_s) / _mva_rate(before, demand_s, free_s)
        formula = f"X({after}) / X({before}) with Z = {t(free_s)}"
        source = "mean value analysis, Reiser and Lavenberg 1980"
    return Forecast(
        knob="instance_count",
        before=before,
        after=after,
        gain=gain,
        at_most=s.is_host,
        formula=f"{formula}, T = {t(b.span_s)}, D = {t(demand_s)}",
        source=source,
    )


_RULES = {
    "batch_size": _batch_size,
    "batched_h2d": _batched_h2d,
    "micro_batch_count": _micro_batch_count,
    "cores_per_instance": _cores,
    "instance_count": _instance_count,
}
KNOBS = tuple(_RULES)
"""Parameters of which something can be forecast."""


def _mva_rate(count: int, demand_s: float, free_s: float) -> float:
    """Cycles per second of so many instances that share one station and are free between."""
    queue, rate = 0.0, 0.0
    for instances in range(1, count + 1):
        response_s = demand_s * (1 + queue)
        rate = instances / (response_s + free_s)
        queue = rate * response_s
    return rate


def _unshared_s(count: int, demand_s: float, cycle_s: float) -> float:
    """The time per cycle outside of the shared station, from the cycle of `count` instances."""
    free_s = cycle_s - demand_s
    for _ in range(MVA_TURNS):
        free_s = max(free_s + cycle_s - count / _mva_rate(count, demand_s, free_s), 0.0)
    return free_s


def _printer(breakdown: Breakdown) -> Callable[[float], str]:
    """Prints times of a breakdown as of one call, where the calls are known."""
    calls = breakdown.call_count or 1
    return lambda seconds: format_duration(seconds / calls)
