"""Telemetry: what a device says of itself beside a trial, read every so often and summed up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from statistics import fmean

INTERVAL_S = 0.5
MAX_READINGS = 10_000
STOP_WAIT_S = 5.0  # for a reading that is under way


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One look at a device; None is unknown, never zero.

    Attributes:
        utilisation_ratio: Share of the time (or of the cores) in which it was busy.
        memory_used_bytes: Of the whole device, everybody's.
        frequency_hz: The present clock of its cores.
    """

    utilisation_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    frequency_hz: float | None = None


def summed_up(readings: Sequence[Reading]) -> dict[str, float]:
    """Figures over several readings, those unknown left out.

    Returns:
        Means of utilisation, power and frequency, peaks of memory and temperature, the lowest
        frequency (a throttled device shows there), and the number of readings.
    """
    known: dict[str, list[float]] = {}
    for field in fields(Reading):
        values = [getattr(reading, field.name) for reading in readings]
        known[field.name] = [float(value) for value in values if value is not None]
    figures: dict[str, float] = {}
    for name, short in (
        ("utilisation_ratio", "utilisation_mean_ratio"),
        ("power_w", "power_mean_w"),
        ("frequency_hz", "frequency_mean_hz"),
    ):
        if known[name]:
            figures[short] = sum(known[name]) / len(known[name])
    for name, short in (
        ("memory_used_bytes", "memory_used_peak_bytes"),
        ("temperature_c", "temperature_max_c"),
    ):
        if known[name]:
            figures[short] = max(known[name])
    if known["frequency_hz"]:
        figures["frequency_min_hz"] = min(known["frequency_hz"])
    return {**figures, "readings": float(len(readings))} if figures else {}


def together(readings: Sequence[Reading]) -> Reading:
    """Several devices as one: sums of memory and power, else the mean, hottest and slowest."""
    known = {
        field.name: [getattr(reading, field.name) for reading in readings]
        for field in fields(Reading)
    }
    rules: dict[str, Callable[[list[float]], float]] = {
        "utilisation_ratio": fmean,
        "temperature_c": max,
        "frequency_hz": min,
    }
    return Reading(
        **{
            name: None if None in values else rules.get(name, sum)(values)
            for name, values in known.items()
        }
    )


Meter = Callable[[], Reading]
"""Looks at a device once; may raise anything, which ends the looking."""


class Watch:
    """Reads a meter in a thread of its own until it is stopped.

    A meter that fails is not asked again: telemetry never ends a trial.

    Args:
        meter: None: nothing can be read here.
    """

    def __init__(self, meter: Meter | None, *, interval_s: float = INTERVAL_S) -> None:
        self._meter, self._interval_s = meter, interval_s
        self._readings: list[Reading] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin anew; what was read before is forgotten."""
        self.stop()
        self._readings = []
        if self._meter is None:
            return
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, float]:
        """End the reading; the figures of what was read since the start."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join(STOP_WAIT_S)
            self._thread = None
        return summed_up(self._readings)

    def _run(self) -> None:
        assert self._meter is not None
        while len(self._readings) < MAX_READINGS:
            try:
                self._readings.append(self._meter())
            except Exception:  # whatever a vendor's library or tool does
                return
            if self._stop.wait(self._interval_s):
                return
