"""Figures, configurations and limits as a person reads them."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Mapping

from autotune.core.objective import METRICS, Limit
from autotune.core.outcomes import Outcome
from autotune.core.pipeline import NOT_OF_PIPELINES
from autotune.core.records import Config, Measurement, Scalar, TrialRecord
from autotune.core.units import format_duration, format_quantity, format_rate
from autotune.measure.noise import QUIET

UNKNOWN = "unknown"
WIDEST = 1000.0
"""Upper end of an interval over its lower one from which on its figures tell nobody anything."""

SAYS_NOTHING = f"wider than a factor of {WIDEST:,.0f}"

_LABELS = {
    "latency_mean": "mean latency",
    "latency_p50": "P50 latency",
    "latency_p90": "P90 latency",
    "latency_p99": "P99 latency",
    "latency_p999": "P99.9 latency",
    **{
        f"{short}_{name}": f"{word}{what}"
        for short, what in (("ttft", "time to first token"), ("tpot", "time per output token"))
        for name, word in (("mean", "mean "), ("p50", "P50 "), ("p90", "P90 "), ("p99", "P99 "))
    },
    "throughput": "throughput",
    "token_rate": "tokens per second",
    "arrival_rate": "arrival rate",
    "memory_peak": "peak memory",
    "power": "power",
    "energy": "energy per item",
}
_OUTCOMES = {
    "ok": "ok",
    "over_limit": "over the limit",
    "undecided": "undecided",
    "oom": "out of memory",
    "timeout": "timed out",
    "compile_error": "does not compile",
    "crashed": "crashed",
    "wrong_output": "wrong output",
    "lost": "lost",
    "interrupted": "interrupted",
}


def capital(text: str) -> str:
    """The text with a capital at its head."""
    return text[:1].upper() + text[1:]


def metric_label(metric: str) -> str:
    """A metric of the space file in words: "P99 latency"."""
    return _LABELS.get(metric, metric)


def metric_text(metric: str, value: float | None) -> str:
    """A metric's value with its unit."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return format_quantity(value, METRICS[metric].unit)


def figure_text(metric: str, measurement: Measurement) -> str:
    """A measurement's value with its unit; "≈" before one that a simulation has estimated."""
    field = METRICS[metric].field
    text = metric_text(metric, getattr(measurement, field))
    return f"≈ {text}" if field in measurement.estimated else text


def limit_text(limit: Limit) -> str:
    """A limit: "P99 latency ≤ 20.0 ms"."""
    sign = "≤" if METRICS[limit.metric].better == "lower" else "≥"
    return f"{metric_label(limit.metric)} {sign} {metric_text(limit.metric, limit.bound)}"


def outcome_text(outcome: str) -> str:
    """An outcome in words."""
    return _OUTCOMES[outcome]


def value_text(name: str, value: Scalar) -> str:
    """A parameter's value as it can be written in a space file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if name == "max_queue_delay" and isinstance(value, (int, float)):
        return f"{value * 1e3:g}ms"
    if name == "bucket_size" and isinstance(value, (int, float)):
        return f"{value / 1024:g}KiB"
    return f"{value:g}" if isinstance(value, float) else str(value)


def config_items(config: Config, names: Collection[str] | None = None) -> dict[str, str]:
    """The parameters of a configuration as text, those of `names` alone if given."""
    return {
        name: value_text(name, value)
        for name, value in config.as_dict().items()
        if (names is None or name in names)
        and not (config.is_pipeline and name in NOT_OF_PIPELINES)
    }


def config_text(config: Config, names: Collection[str] | None = None) -> str:
    """A configuration on one line: "batch_size=32 instance_count=2"."""
    items = config_items(config, names)
    return " ".join(f"{name}={value}" for name, value in items.items()) or "the only configuration"


def quoted(text: str) -> str:
    """Text as one word of a shell command."""
    return shlex.quote(text)


def factor_text(ratio: float) -> str:
    """A gain: "2.70×"."""
    return f"{ratio:,.{_decimals(ratio)}f}×" if math.isfinite(ratio) else UNKNOWN


def factor_interval_text(interval: tuple[float, float]) -> str:
    """The interval of a gain: "2.61 to 2.80"; one that says nothing is not written out."""
    return factor_range_text(interval) if _says_something(interval) else SAYS_NOTHING


def factor_range_text(interval: tuple[float, float]) -> str:
    """From one factor to another."""
    decimals = _decimals(interval[1])
    return f"{interval[0]:,.{decimals}f} to {interval[1]:,.{decimals}f}"


def _says_something(interval: tuple[float, float]) -> bool:
    low, high = interval
    return low > 0 and high < WIDEST * low


def _decimals(ratio: float) -> int:
    """Three digits that count, at most six decimals; a ratio just below 1 has two decimals."""
    if ratio >= 0.1 or ratio <= 0:
        return 0 if ratio >= 100 else 1 if ratio >= 10 else 2
    return min(6, 2 - math.floor(math.log10(ratio)))


def rate_interval_text(interval: tuple[float, float]) -> str:
    """The interval of a rate: "1,902 to 1,998/s"; one that says nothing is not written out."""
    if not _says_something(interval):
        return SAYS_NOTHING
    return f"{format_rate(interval[0]).removesuffix('/s')} to {format_rate(interval[1])}"


def counts_text(counts: Mapping[str, int]) -> str:
    """Trials by outcome: "20 ok, 7 over the limit"."""
    return ", ".join(f"{count} {outcome_text(name)}" for name, count in counts.items() if count)


def trust_text(record: TrialRecord) -> str:
    """Whether a record can be trusted: "quiet", "noisy: why", "undecided: needs 12 s more"."""
    trust = record.measurement.trust if record.measurement else UNKNOWN
    if record.verdict.outcome is not Outcome.UNDECIDED:
        return trust
    needed_s = record.verdict.needed_s
    if needed_s:
        more = f"needs {format_duration(needed_s)} more"
    elif record.phase == "confirm":
        more = "measure longer (confirm.duration, budget.time) or allow more by the limit"
    else:
        more = "one short trial cannot tell, measure longer (trial.duration) or see the proof"
    return f"undecided: {more}" if trust == QUIET else f"undecided: {more}; {trust}"


def reason_text(record: TrialRecord) -> str:
    """The most telling reason of a trial's outcome, empty if it gave none."""
    return record.verdict.reasons[0] if record.verdict.reasons else ""
