"""What `autotune plan` is asked, from the words of the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.apps.show import read_preferences
from autotune.core.errors import UsageError
from autotune.core.objective import Limit
from autotune.core.units import parse_quantity

MAX_HEADROOM = 0.95
_NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
RATES = ("throughput", "arrival_rate")
"""Metrics whose limits are what --rate is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What is asked, as the command line says it.

    Attributes:
        limits: Instead of the study's on the same metrics.
        power_w: Of one device, instead of what was measured.
        time_s: Most seconds that `confirm` may measure; None: no limit.
        out: Where the load table is written; None: nowhere.
    """

    rate_per_s: float
    limits: tuple[Limit, ...] = ()
    headroom: float = 0.0
    price_per_hour: float | None = None
    power_w: float | None = None
    per_machine: int | None = None
    confirm: bool = False
    time_s: float | None = None
    out: Path | None = None
    studies_dir: Path = Path("studies")
    storage: str = ""


def plan_options(
    *,
    rate: str,
    limits: Sequence[str] = (),
    headroom: str = "0%",
    price_per_hour: float | None = None,
    power: str = "",
    per_machine: int = 0,
    confirm: bool = False,
    time: str = "",
    out: Path | None = None,
    studies_dir: Path = Path("studies"),
    storage: str = "",
) -> PlanOptions:
    """Options from the words of the command line.

    Raises:
        UsageError: A quantity is none, or out of range.
    """
    share = _quantity("--headroom", headroom, "ratio", least=0.0)
    if share > MAX_HEADROOM + 1e-9:
        raise UsageError(f"--headroom {headroom}: at most {MAX_HEADROOM:.0%}, what stays free")
    if price_per_hour is not None and not 0 <= price_per_hour < float("inf"):
        raise UsageError(f"--price-per-hour {price_per_hour:g}: must be 0 or more")
    if time and not confirm:
        raise UsageError("--time is for --confirm: nothing is measured without it")
    found = read_preferences(limits, "--limit")
    for limit in found:
        if limit.metric in RATES:
            raise UsageError(f"--limit {limit.metric}: the rate is what --rate says")
    return PlanOptions(
        rate_per_s=_quantity("--rate", rate, "rate"),
        limits=found,
        headroom=share,
        price_per_hour=price_per_hour,
        power_w=_quantity("--power", power, "power") if power else None,
        per_machine=per_machine or None,
        confirm=confirm,
        time_s=_quantity("--time", time, "duration") if time else None,
        out=out,
        studies_dir=studies_dir,
        storage=storage,
    )


def _quantity(option: str, text: str, kind: str, least: float | None = None) -> float:
    if kind == "rate" and _NUMBER.fullmatch(text):
        text = f"{text}/s"  # there is but one thing that a rate can be per
    try:
        value = parse_quantity(text, kind)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    if value < (least or 0.0) or (least is None and value == 0):
        raise UsageError(f"{option} {text}: must be above 0")
    return value
