"""What a study's own trials say: of where a call's time goes, and of what was forecast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from autotune.core.diagnosis import Diagnosis, Forecast
from autotune.core.records import Config, Scalar, TrialRecord
from autotune.measure.account import Stages, stage_breakdown
from autotune.measure.noise import QUIET
from autotune.results.bottleneck import diagnose
from autotune.results.forecast import Setting, forecast
from autotune.results.words import value_text

TOLD_BY_STAGES = ("h2d", "d2h", "host")
"""Parts that stage times tell. They know no launches from computing, so that of a call which
spends its time in the model nothing is said."""


def trial_diagnosis(record: TrialRecord, setting: Setting) -> Diagnosis | None:
    """The verdict that a trial's own stage times allow; None if they do not tell."""
    measurement = record.measurement
    stages = Stages.of_measurement(measurement, record.config) if measurement else None
    if stages is None:
        return None
    breakdown = stage_breakdown(stages)
    found = diagnose(breakdown, source="trial", config=record.config, setting=setting)
    return found if found.part in TOLD_BY_STAGES else None


def checked_by_trials(
    found: Diagnosis, records: Sequence[TrialRecord], setting: Setting
) -> Diagnosis:
    """A diagnosis whose forecasts are held against pairs of trials that differ in the knob alone.

    A forecast is worked out for the value that was tried; of several the one nearest to its own.
    Noisy trials prove nothing, either way.
    """
    if found.config is None:
        return found
    rates = {r.config: r for r in records if r.verdict.outcome.is_measured and _is_plain(r)}
    if found.config not in rates:
        return found
    return replace(
        found,
        forecasts=tuple(_checked(f, found, found.config, rates, setting) for f in found.forecasts),
    )


def _checked(
    made: Forecast,
    found: Diagnosis,
    config: Config,
    records: dict[Config, TrialRecord],
    setting: Setting,
) -> Forecast:
    if made.metric != "throughput":
        return made
    tried = [
        value
        for other in records
        if (value := other.get(made.knob, made.before)) != made.before
        and config.changed(**{made.knob: value}) == other
        and _is_further(made, value)
    ]
    if not tried:
        return made
    value = min(tried, key=lambda v: _distance(v, made.after))
    again = forecast(made.knob, found.breakdown, config, setting, after=value)
    if again is None:
        return made
    before, after = records[config], records[config.changed(**{made.knob: value})]
    return replace(
        again,
        measured=_rate(after) / _rate(before),
        trials=(before.number, after.number),
    )


def _is_further(made: Forecast, value: Scalar) -> bool:
    """True for a change in the direction of the forecast."""
    if isinstance(value, (bool, str)) or isinstance(made.after, (bool, str)):
        return value == made.after
    assert not isinstance(made.before, str)
    return (value - made.before) * (made.after - made.before) > 0


def _distance(value: Scalar, wanted: Scalar) -> float:
    if isinstance(value, (bool, str)) or isinstance(wanted, (bool, str)):
        return float(value != wanted)
    return abs(math.log(value / wanted)) if value > 0 and wanted > 0 else abs(value - wanted)


def _is_plain(record: TrialRecord) -> bool:
    measurement = record.measurement
    return measurement is not None and measurement.trust == QUIET and _rate(record) > 0


def _rate(record: TrialRecord) -> float:
    measurement = record.measurement
    return (measurement.throughput_items_per_s if measurement else None) or 0.0


def check_text(made: Forecast) -> str:
    """A sentence about a forecast that was checked."""
    assert made.measured is not None and made.error is not None
    change = f"{value_text(made.knob, made.before)} → {value_text(made.knob, made.after)}"
    how = f"trials {made.trials[0]} and {made.trials[1]}" if made.trials else "tried side by side"
    held = "as forecast" if made.holds else "not as forecast"
    what = "the throughput" if made.metric == "throughput" else "shorter mean latency"
    forecast = f"{'at most ' if made.at_most else ''}{made.gain:.2f}×"
    return (
        f"Checked: {made.knob} {change} brought {made.measured:.2f}× {what}, {forecast} was "
        f"forecast: {held} ({made.error:+.0%}; {how})."
    )
