"""Parsing and printing of quantities; everywhere else values are SI with the unit in the name."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

_NUMBER = r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
_QUANTITY = re.compile(rf"\s*{_NUMBER}\s*(\S*)\s*")

DURATION_UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
}
SIZE_UNITS = {
    "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
RATE_UNITS = {"/s": 1.0, "/min": 1 / 60.0, "/h": 1 / 3600.0}
POWER_UNITS = {"mW": 1e-3, "W": 1.0, "kW": 1e3}
ENERGY_UNITS = {"uJ": 1e-6, "mJ": 1e-3, "J": 1.0, "kJ": 1e3}
RATIO_UNITS = {"%": 0.01}

UNITS_BY_KIND: dict[str, dict[str, float]] = {
    "duration": dict(DURATION_UNITS),
    "size": {unit: float(factor) for unit, factor in SIZE_UNITS.items()},
    "rate": dict(RATE_UNITS),
    "power": dict(POWER_UNITS),
    "energy": dict(ENERGY_UNITS),
    "ratio": dict(RATIO_UNITS),
}
_EXAMPLE = {
    "duration": "20ms", "size": "4GiB", "rate": "500/s", "power": "300W", "energy": "5mJ",
    "ratio": "5%",
}  # fmt: skip


def parse_quantity(text: object, kind: str) -> float:
    """Read a quantity such as "20ms" into SI (s, bytes, 1/s, W, share).

    Args:
        text: Text with its unit. A bare 0 is allowed; any other bare number is not,
            since its unit would be a guess.
        kind: A key of `UNITS_BY_KIND`.
    Raises:
        ValueError: Not a number with a unit of this kind, or not finite.
    """
    units = UNITS_BY_KIND[kind]
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise ValueError(f"expected a {kind} such as {_EXAMPLE[kind]}, found {text!r}")
    match = _QUANTITY.fullmatch(str(text).replace("\u03bc", "\u00b5"))  # the letter for the sign
    if match is None:
        raise ValueError(f"expected a {kind} such as {_EXAMPLE[kind]}, found {text!r}")
    number, unit = float(match.group(1)), match.group(2)
    if not unit and number == 0:
        return 0.0
    if not unit:
        raise ValueError(f"{text!r} has no unit; write {_EXAMPLE[kind]!r}")
    if unit not in units:
        raise ValueError(f"unknown unit {unit!r} in {text!r}; known: {', '.join(units)}")
    value = number * units[unit]
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not finite")
    return value


_COUNTLESS = 1e12  # from here on a rate's digits are not written out


def format_duration(seconds: float) -> str:
    """Seconds as a person reads them: 3.21 ms, 12.4 s, 2 min 05 s."""
    if not math.isfinite(seconds):
        return "unknown"
    size = abs(seconds)
    if size >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    if size >= 120:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if size >= factor:
            return f"{_three_digits(seconds / factor)} {unit}"
    return "0 s" if seconds == 0 else f"{_three_digits(seconds / 1e-9)} ns"


def format_size(size_bytes: float) -> str:
    """Bytes as a person reads them, in binary units: 384 MiB."""
    if not math.isfinite(size_bytes):
        return "unknown"
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size_bytes) >= factor:
            return f"{_three_digits(size_bytes / factor)} {unit}"
    return f"{size_bytes:.0f} B"


def format_rate(per_s: float) -> str:
    """A rate as a person reads it: 493,065/s, 3.21/s."""
    if not math.isfinite(per_s):
        return "unknown"
    if abs(per_s) >= _COUNTLESS:
        return f"{per_s:.3g}/s"
    return f"{per_s:,.0f}/s" if abs(per_s) >= 1000 else f"{_three_digits(per_s)}/s"


_FORMATS: dict[str, Callable[[float], str]] = {
    "duration": format_duration,
    "size": format_size,
    "rate": format_rate,
    "power": lambda watts: f"{watts:.3g} W",
    "energy": lambda joules: f"{joules * 1e3:.3g} mJ" if joules < 1 else f"{joules:.3g} J",
    "ratio": lambda share: f"{share:.3g}",
}


def format_quantity(value: float, kind: str) -> str:
    """An SI value as a person reads it; `kind` is a key of `UNITS_BY_KIND`."""
    return _FORMATS[kind](value)


def _three_digits(value: float) -> str:
    size = abs(value)
    decimals = 0 if size >= 100 else 1 if size >= 10 else 2
    return f"{value:.{decimals}f}"
