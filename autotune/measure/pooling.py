"""Several results of one configuration, from fresh processes, as one result."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np

from autotune.core.records import SAMPLE_ARRAYS, Reported, Result, Samples
from autotune.measure.ratio import geometric_mean

ADDED_UP_BY_MAXIMUM = ("memory_peak_bytes",)


def pooled(results: Sequence[Result]) -> Result:
    """All calls together, every window on its own; or the mean of finished figures.

    Raises:
        ValueError: There are none, or they are of different kinds.
    """
    samples = [result for result in results if isinstance(result, Samples)]
    reports = [result for result in results if isinstance(result, Reported)]
    if samples and not reports:
        return _pooled_samples(samples)
    if reports and not samples:
        return _pooled_reports(reports)
    raise ValueError("results of one kind are needed")


def _pooled_samples(parts: Sequence[Samples]) -> Samples:
    shifted: list[Samples] = []
    offset = 0
    for part in parts:
        shifted.append(replace(part, window=part.window + offset))
        # Windows of an open load have arrivals even where no call was made.
        offset += len(part.arrivals_s) or int(part.window.max(initial=-1)) + 1
    arrays: dict[str, Any] = {
        name: None
        if any(getattr(part, name) is None for part in shifted)
        else np.concatenate([getattr(part, name) for part in shifted])
        for name in SAMPLE_ARRAYS
    }
    waits = tuple(wait for part in parts for wait in part.run_queue_wait_s)
    arrivals_s = tuple(arrivals for part in parts for arrivals in part.arrivals_s)
    failures = sum((Counter(part.failures) for part in parts), Counter[str]())
    return replace(
        parts[-1],
        **arrays,
        run_queue_wait_s=waits,
        arrivals_s=arrivals_s,
        failures=dict(failures),
    )


def _pooled_reports(parts: Sequence[Reported]) -> Reported:
    """Geometric means, since the noise of such figures is relative; it falls with their number."""
    names = [name for name in parts[-1].metrics if all(name in p.metrics for p in parts)]
    return replace(
        parts[-1],
        metrics={name: _mean(name, [p.metrics[name] for p in parts]) for name in names},
        relative_noise=parts[-1].relative_noise / math.sqrt(len(parts)),
        duration_s=sum(p.duration_s for p in parts),
    )


def _mean(name: str, values: Sequence[float]) -> float:
    if name in ADDED_UP_BY_MAXIMUM:
        return max(values)
    return geometric_mean(values) if min(values) > 0 else fmean(values)
