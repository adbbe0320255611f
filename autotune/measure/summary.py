"""From a result to the figures a person reads: throughput with its interval, quantiles, costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from autotune.core.errors import WrongOutput
from autotune.core.records import (
    Floats,
    InstanceFacts,
    Measurement,
    Reported,
    Result,
    Samples,
    Series,
)
from autotune.measure.noise import measured_s, run_queue_wait_ratio, trust_of
from autotune.measure.pipeline_timeline import figures_of
from autotune.measure.tail import quantile

MAX_BLOCKS = 20  # of calls, for the interval of the throughput
MIN_CALLS_PER_BLOCK = 4
PER_TOKEN: tuple[Series, ...] = ("ttft", "tpot")
POSITIVE_FIELDS = (
    "throughput_items_per_s",
    "arrival_rate_per_s",
    "latency_mean_s",
    "latency_p50_s",
    "latency_p90_s",
    "latency_p99_s",
    "latency_p999_s",
)


def summarise(result: Result) -> Measurement:
    """Figures of a result.

    Raises:
        WrongOutput: A reported figure is impossible (NaN, infinite, negative), or no call ended.
    """
    return _with_energy(
        _from_report(result) if isinstance(result, Reported) else _from_samples(result)
    )


def _with_energy(measurement: Measurement) -> Measurement:
    """Energy per item from power and throughput, where both are known and it is not."""
    power_w, rate = measurement.power_w, measurement.throughput_items_per_s
    if power_w is None or not rate or measurement.energy_per_item_j is not None:
        return measurement
    return replace(measurement, energy_per_item_j=power_w / rate)


def _from_report(report: Reported) -> Measurement:
    types = {f.name: f.type for f in fields(Measurement)}
    figures: dict[str, Any] = {}
    for name, value in report.metrics.items():
        wrong = ""
        if name not in types:
            wrong = f"{name} is not a figure of a measurement"
        elif not math.isfinite(value) or value < 0 or (value == 0 and name in POSITIVE_FIELDS):
            wrong = f"{name} is {value:g}, which cannot be"
        if wrong:
            raise WrongOutput(f"{wrong}{report.again}", log_tail=report.log_tail)
        figures[name] = round(value) if types[name] == "int | None" else value
    return Measurement(duration_s=report.duration_s, **figures)


def _from_samples(samples: Samples) -> Measurement:
    if samples.start_s.size == 0:
        arrived = sum(arrivals.size for arrivals in samples.arrivals_s)
        if samples.is_queued and not arrived:
            raise WrongOutput("no request arrived within the window: its rate needs a longer one")
        raise WrongOutput("no call was made within the window")
    latency_s = samples.request_latency_s()
    rate, interval = served_per_s(samples) if samples.is_queued else throughput(samples)
    trust = trust_of(samples)
    facts = samples.facts
    return Measurement(
        throughput_items_per_s=rate,
        throughput_ci95_items_per_s=interval,
        throughput_tokens_per_s=_in_tokens(rate, samples),
        arrival_rate_per_s=samples.rate_per_s,
        call_count=int(samples.start_s.size),
        latency_mean_s=float(latency_s.mean()),
        latency_p50_s=quantile(latency_s, 0.5),
        latency_p90_s=quantile(latency_s, 0.9),
        latency_p99_s=quantile(latency_s, 0.99),
        latency_p999_s=quantile(latency_s, 0.999),
        **_per_token_figures(samples),
        failed_count=sum(samples.failures.values()) if samples.in_server else None,
        **_stage_figures(samples),
        copies_per_call=facts[0].copies_per_call if facts else None,
        memory_peak_bytes=_total_memory(facts),
        load_s=max((f.load_s for f in facts), default=None),
        compile_s=max((f.compile_s for f in facts), default=None),
        first_call_s=max((f.first_call_s for f in facts), default=None),
        warmup_count=sum(f.warmup_count for f in facts),
        duration_s=measured_s(samples),
        faults_per_call=float(samples.fault_count.mean()),
        run_queue_wait_ratio=run_queue_wait_ratio(samples),
        device_busy_ratio=samples.telemetry.get("utilisation_mean_ratio"),
        power_w=samples.telemetry.get("power_mean_w"),
        telemetry=samples.telemetry,
        trust=trust.line,
        warnings=trust.warnings,
        environment=_environment(facts),
        pipeline=figures_of([f.rank for f in facts if f.rank is not None]),
    )


def throughput(samples: Samples) -> tuple[float, tuple[float, float] | None]:
    """Items per second of wall-clock time, with its 95 % interval.

    Each instance counts from its first call's start to its last call's end, so that a call
    which outlasts the window neither adds nor loses items; instances add up, windows are
    weighted by their time. The interval comes from the means of up to 20 blocks of consecutive
    calls, which absorbs the dependence between neighbours; None with fewer than 8 calls.
    """
    rate = variance = 0.0
    has_interval = True
    for instance in np.unique(samples.instance):
        own = samples.instance == instance
        spans_s = [_span_s(samples, own & (samples.window == w)) for w in np.unique(samples.window)]
        if not sum(spans_s) > 0:
            raise WrongOutput("no time passed while calls were made")
        own_rate = float(samples.item_count[own].sum()) / sum(spans_s)
        error = _relative_error(samples.end_s[own] - samples.start_s[own])
        rate += own_rate
        has_interval = has_interval and error is not None
        variance += (own_rate * (error or 0.0)) ** 2
    if not has_interval:
        return rate, None
    half = 1.96 * math.sqrt(variance)
    return rate, (max(rate - half, 0.0), rate + half)


def served_per_s(samples: Samples) -> tuple[float, tuple[float, float] | None]:
    """Items per second that were served from a queue, and the 95 % interval for clients.

    Under an open load it has none: the load decides it as long as all requests are served.
    Arrivals are counted until the last of them, what was served too late until its end.
    """
    items = elapsed_s = 0.0
    for window, arrivals_s in enumerate(samples.arrivals_s):
        own = samples.window == window
        if not own.any():
            continue
        items += float(samples.item_count[own].sum())
        elapsed_s += max(float(samples.end_s[own].max()), arrivals_s[-1]) - arrivals_s[0]
    if not elapsed_s > 0:
        raise WrongOutput("no time passed from the first arrival to the last answer")
    rate = items / elapsed_s
    error = None if samples.clients is None else _relative_error(_item_gaps_s(samples))
    if error is None:
        return rate, None
    return rate, (max(1.0 - 1.96 * error, 0.0) * rate, (1.0 + 1.96 * error) * rate)


def _item_gaps_s(samples: Samples) -> Floats:
    """From the end of one call of the group to that of the next, per item of the next."""
    order = np.lexsort((samples.end_s, samples.window))
    follows = np.diff(samples.window[order]) == 0
    gaps_s = np.diff(samples.end_s[order]) / samples.item_count[order][1:]
    return np.asarray(gaps_s[follows])


def _span_s(samples: Samples, keep: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
    if not keep.any():
        return 0.0
    return float(samples.end_s[keep].max() - samples.start_s[keep].min())


def _relative_error(times_s: Floats) -> float | None:
    """Half the 95 % interval of the mean over 1.96, relative to the mean; t over block means."""
    blocks = min(MAX_BLOCKS, times_s.size // MIN_CALLS_PER_BLOCK)
    if blocks < 2:
        return None
    from scipy.special import stdtrit

    means = np.array([block.mean() for block in np.array_split(times_s, blocks)])
    t = float(stdtrit(blocks - 1, 0.975))
    return t / 1.96 * float(means.std(ddof=1)) / math.sqrt(blocks) / float(times_s.mean())


def _stage_figures(samples: Samples) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for stage in ("h2d", "compute", "d2h"):
        times_s = getattr(samples, f"{stage}_s")
        if times_s is not None:
            figures[f"{stage}_mean_s"] = float(times_s.mean())
            figures[f"{stage}_p99_s"] = quantile(times_s, 0.99)
    return figures


def _per_token_figures(samples: Samples) -> dict[str, Any]:
    """Mean and quantiles of the times that streamed answers have, as far as they have any."""
    figures: dict[str, Any] = {}
    for series in PER_TOKEN:
        times_s = samples.series(series)
        if times_s is None or times_s.size == 0:
            continue
        figures[f"{series}_mean_s"] = float(times_s.mean())
        for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            figures[f"{series}_{name}_s"] = quantile(times_s, q)
    return figures


def _in_tokens(rate: float, samples: Samples) -> float | None:
    """Items per second in tokens; instances take turns with the same requests."""
    if samples.token_count is not None:
        return rate * float(samples.token_count.sum()) / float(samples.item_count.sum())
    tokens = samples.facts[0].tokens_per_item if samples.facts else None
    return None if tokens is None else rate * tokens


def _total_memory(facts: tuple[InstanceFacts, ...]) -> int | None:
    peaks = [f.memory_peak_bytes for f in facts if f.memory_peak_bytes is not None]
    if any(f.rank is not None for f in facts):
        return max(peaks, default=None)  # every rank has a device of its own to fill
    return sum(peaks) if peaks else None


def _environment(facts: tuple[InstanceFacts, ...]) -> Mapping[str, str]:
    return dict(_environment_pairs(facts)) if facts else {}


def _environment_pairs(facts: tuple[InstanceFacts, ...]) -> Iterator[tuple[str, str]]:
    yield "precision", facts[0].precision
    if any(f.cores for f in facts):  # neither is known of a simulated instance
        yield "cores", " ".join(",".join(map(str, f.cores)) for f in facts)
    if all(f.thread_count is not None for f in facts):
        yield "threads", " ".join(str(f.thread_count) for f in facts)
    yield from facts[0].versions.items()
    for number, note in enumerate(facts[0].notes, 1):
        yield f"note {number}", note
