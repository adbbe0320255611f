"""The ratio of two configurations from what was recorded of them, without measuring anything."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autotune.core.errors import WrongOutput
from autotune.core.objective import METRICS
from autotune.core.records import (
    SAMPLE_ARRAYS,
    Comparison,
    Config,
    Floats,
    Ints,
    Measurement,
    Recommendation,
    Samples,
)
from autotune.measure.paired import RatioTest, Rule, judge_estimate
from autotune.measure.summary import summarise
from autotune.results.gain import chained

BLOCKS = 6
"""Stretches a recording is cut into. A confirmation has 6, 12 or 24 rounds of fresh processes, so
that a stretch of it is made of whole rounds, and stretches differ as processes do."""

MIN_CALLS_PER_BLOCK = 8
ONE_PROCESS_SPREAD = 0.02
"""Standard deviation of a process's speed around that of others, relative: assumed where a
recording is of a single process, which cannot show it."""

Z95 = 1.959964


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The logarithm of a metric with its standard error and the error's degrees of freedom."""

    log_value: float
    error: float
    freedom: float


def recorded_pairs(proof: Recommendation, a: Config, b: Config) -> tuple[float, ...]:
    """Throughput ratios of a over b from rounds that both took part in; () if there are none."""
    by_config = {c.config: c for c in proof.comparisons}
    ours, theirs = by_config.get(a), by_config.get(b)
    if ours is not None and ours.reference == b:
        return ours.pair_ratios
    if theirs is not None and theirs.reference == a:
        return tuple(1.0 / ratio for ratio in theirs.pair_ratios)
    if ours is None or theirs is None or ours.reference != theirs.reference:
        return ()
    found: Comparison | None = chained(ours, theirs)
    return found.pair_ratios if found is not None else ()


def from_samples(samples: Samples, metric: str, *, is_confirmation: bool) -> Estimate | None:
    """The metric over blocks of the recording; None if it has too few calls."""
    blocks = _blocks(samples)
    try:
        values = [getattr(summarise(block), METRICS[metric].field) for block in blocks]
    except WrongOutput:
        return None
    known = [math.log(value) for value in values if value is not None and 0 < value < math.inf]
    if len(known) < BLOCKS:
        return None
    logs: Floats = np.asarray(known)
    error = float(logs.std(ddof=1)) / math.sqrt(logs.size)
    if not is_confirmation:
        error = math.hypot(error, ONE_PROCESS_SPREAD)
    return Estimate(log_value=float(logs.mean()), error=error, freedom=logs.size - 1)


def from_interval(measurement: Measurement, metric: str) -> Estimate | None:
    """The throughput and its 95 % interval; None if it has none."""
    interval = measurement.throughput_ci95_items_per_s
    if metric != "throughput" or interval is None or not interval[0] > 0:
        return None
    if not math.isfinite(interval[1]) or measurement.throughput_items_per_s is None:
        return None
    error = math.log(interval[1] / interval[0]) / (2 * Z95)
    return Estimate(
        log_value=math.log(measurement.throughput_items_per_s),
        error=math.hypot(error, ONE_PROCESS_SPREAD),
        freedom=BLOCKS - 1,
    )


def judge_apart(a: Estimate, b: Estimate, rule: Rule, *, sign: float) -> RatioTest:
    """Test two independent estimates against each other (Welch).

    Args:
        sign: 1 if more of the metric is better, else -1.
    """
    squares = a.error**2, b.error**2
    error = math.sqrt(sum(squares)) or 1e-9
    spread = squares[0] ** 2 / a.freedom + squares[1] ** 2 / b.freedom
    freedom = sum(squares) ** 2 / spread if spread > 0 else a.freedom + b.freedom
    return judge_estimate(sign * (a.log_value - b.log_value), error, freedom, rule)


def _blocks(samples: Samples) -> list[Samples]:
    """Contiguous stretches: whole windows where there are enough, else stretches of calls."""
    windows = np.unique(samples.window)
    if samples.is_queued:  # a window's requests belong together
        return [samples.of_window(int(window)) for window in windows]
    if samples.start_s.size < BLOCKS * MIN_CALLS_PER_BLOCK:
        return []
    if windows.size < BLOCKS:
        order = np.argsort(samples.end_s, kind="stable")
        return [_only(samples, calls) for calls in np.array_split(order, BLOCKS)]
    groups = np.array_split(windows, BLOCKS)
    return [_only(samples, np.flatnonzero(np.isin(samples.window, group))) for group in groups]


def _only(samples: Samples, calls: Ints) -> Samples:
    """Some calls of a closed load."""
    arrays: dict[str, Any] = {
        name: None if getattr(samples, name) is None else getattr(samples, name)[calls]
        for name in SAMPLE_ARRAYS
    }
    return replace(samples, **arrays)
