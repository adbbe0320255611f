"""When requests arrive: whole arrays of times, drawn before the window begins.

No thread sends anything. A request "arrives" when the clock passes its time, so that a slow
server cannot slow its clients down, and latency counts from the scheduled arrival.
"""

from __future__ import annotations

import functools
import math
from array import array
from pathlib import Path

import numpy as np

from autotune.core.errors import UsageError
from autotune.core.records import Floats, Load
from autotune.core.text import clean
from autotune.core.units import format_duration, format_rate

MAX_ARRIVALS = 20_000_000  # of one window; their times alone take 160 MB
MAX_TRACE_BYTES = 2**30
MAX_KEPT = 300_000  # arrivals of a pattern that is kept, 2.4 MB
_SPARE_SIGMAS = 8.0  # drawn beyond the expected number, so that a window is never short


def arrival_times(
    load: Load, *, seed: int, window: int = 0, duration_s: float | None, count: int | None = None
) -> Floats:
    """Arrival times of one window in seconds from its start, ascending.

    Poisson arrivals of one seed are the same pattern at any rate, only stretched: that makes
    configurations, and rates, comparable.

    Args:
        seed: Of the arrivals. `window`: index of the window, which has arrivals of its own.
        duration_s: All arrivals lie before this; None: as many as `count` says.
        count: At most this many.
    Raises:
        UsageError: The load has no rate, its trace cannot be read, or there are too many.
    """
    if load.kind == "trace":
        times_s = read_trace(load.trace)
        return times_s[_before(times_s, duration_s)][:count]
    rate = load.rate_per_s
    if rate is None or not 0.0 < rate < math.inf:
        raise UsageError(f"load.{load.kind}.rate: {rate} is no number of arrivals per second")
    wanted = _wanted(rate, duration_s, count)
    if wanted > MAX_ARRIVALS:
        raise UsageError(f"{wanted} arrivals in one window; at most {MAX_ARRIVALS} are possible")
    if load.kind == "constant":
        times_s = np.arange(wanted, dtype=np.float64) / rate
    else:
        times_s = _unit_poisson(seed, window, wanted) / rate
    return times_s[_before(times_s, duration_s)][:count]


def _unit_poisson(seed: int, window: int, count: int) -> Floats:
    """Arrivals at one per second; the shorter patterns are kept, as searches stretch them often."""
    draw = _kept_unit_poisson if count <= MAX_KEPT else _kept_unit_poisson.__wrapped__
    return draw(seed, window, count)


@functools.lru_cache(maxsize=4)
def _kept_unit_poisson(seed: int, window: int, count: int) -> Floats:
    times_s = np.cumsum(np.random.default_rng((seed, window)).standard_exponential(count))
    times_s.flags.writeable = False
    return times_s


def _wanted(rate: float, duration_s: float | None, count: int | None) -> int:
    if duration_s is None:
        return count or 0
    expected = rate * duration_s
    enough = math.ceil(expected + _SPARE_SIGMAS * math.sqrt(expected) + 16)
    return enough if count is None else min(enough, count)


def _before(times_s: Floats, duration_s: float | None) -> slice:
    end = times_s.size if duration_s is None else int(np.searchsorted(times_s, duration_s))
    return slice(0, end)


def read_trace(path: str) -> Floats:
    """Arrival times of a trace file, in seconds from its first: one number per line, ascending.

    Blank lines and those that begin with "#" are skipped.

    Raises:
        UsageError: The file cannot be read, or a line is no number or goes back in time.
    """
    try:
        changed_ns = Path(path).stat().st_mtime_ns
    except OSError as error:
        raise UsageError(f"load.trace: cannot read {path}: {error.strerror}") from error
    return _read_trace(path, changed_ns)


@functools.lru_cache(maxsize=2)
def _read_trace(path: str, changed_ns: int) -> Floats:
    times_s = array("d")
    try:
        if (size := Path(path).stat().st_size) > MAX_TRACE_BYTES:
            raise UsageError(f"load.trace: {path} has {size} bytes; at most {MAX_TRACE_BYTES}")
        with Path(path).open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                _add_arrival(times_s, line.strip(), f"{path}:{number}")
    except OSError as error:
        raise UsageError(f"load.trace: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise UsageError(f"load.trace: {path} is not text: one time in seconds per line") from None
    if not times_s:
        raise UsageError(f"load.trace: {path} has no arrivals")
    arrivals_s = np.array(times_s) - times_s[0]
    arrivals_s.flags.writeable = False
    return arrivals_s


def _add_arrival(times_s: array[float], text: str, place: str) -> None:
    """Add the time that a line tells, if it tells one.

    Raises:
        UsageError: It is no time, goes back in time, or is one too many.
    """
    if not text or text.startswith("#"):
        return
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{place}: {clean(text[:40])!r} is no time in seconds")
    if times_s and value < times_s[-1]:
        raise UsageError(f"{place}: {text[:40]} is before the arrival above it")
    if len(times_s) == MAX_ARRIVALS:
        raise UsageError(f"{place}: more than {MAX_ARRIVALS} arrivals")
    times_s.append(value)


def check_load(load: Load, duration_s: float | None) -> None:
    """Refuse arrivals of which nothing could be measured, before anything is.

    Args:
        duration_s: Of a window; None: it counts calls.
    Raises:
        UsageError: A trace cannot be read; at a given rate a window has too many arrivals, or
            most have none.
    """
    if load.kind == "trace":
        read_trace(load.trace)
    rate = load.rate_per_s
    if rate is None or duration_s is None:
        return
    expected, seconds = rate * duration_s, format_duration(duration_s)
    if expected > MAX_ARRIVALS:
        raise UsageError(
            f"load.{load.kind}.rate: {format_rate(rate)} are {expected:.3g} arrivals within a "
            f"trial of {seconds}; at most {MAX_ARRIVALS}"
        )
    if expected < 1.0:
        raise UsageError(
            f"load.{load.kind}.rate: at {rate:g}/s a request comes every {1.0 / rate:.3g} s, and a "
            f"trial lasts {seconds}; give it a longer one, as --set trial.duration=1min"
        )
