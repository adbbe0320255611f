"""Whether a measurement can be trusted: signs of neighbours, drift and allocator trouble."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from autotune.core.records import Measurement, Samples
from autotune.core.units import format_duration
from autotune.measure.queueing import ServiceTimes
from autotune.measure.tail import quantile

MAX_RUN_QUEUE_WAIT = (
    0.05  # share of the window; about .002 on a quiet machine, .2 and more beside others
)
MIN_CANARY_RATIO = 0.9  # readings on a quiet machine scatter by some 2 %
MAX_PHASE_RATIO = 1.3  # slowest over fastest eighth of the calls, by median
PHASES = 8
COLD_PHASES = 2  # what is slow in these alone had not warmed up
MIN_DRIFT = 0.8  # rank correlation of the phases' medians with time
MIN_CALLS_PER_PHASE = 3
MAX_LATE_SHARE = 0.1  # of the P99 latency, that the load generator itself may add
LARGE_CALLS = 0.9  # quantile of the items per call
MAX_FAULTS_PER_CALL = 300.0  # the pinned allocator shows below 130
MAX_LOST = 0.75  # of a configuration's speed that is put down to neighbours
QUIET = "quiet"


class Trust(NamedTuple):
    """Whether a measurement can be trusted.

    Attributes:
        line: "quiet", or "noisy: why".
        warnings: What should be known, though it does not make it noisy.
        level: How noisy: 0 if quiet, else by how many times the bounds are exceeded, added up.
        may_pass: True if a sign is there that may be gone when it is measured again.
    """

    line: str
    warnings: tuple[str, ...]
    level: float
    may_pass: bool = False

    @property
    def is_quiet(self) -> bool:
        return self.level == 0


class _Sign(NamedTuple):
    """A sign of noise: in words, by how many times its bound is exceeded, whether it may pass."""

    text: str
    level: float
    may_pass: bool = True


def trust_of(
    samples: Samples, *, canary_ratio: float | None = None, is_first: bool = False
) -> Trust:
    """Look for neighbours, a slower machine, drift, a cold start, and allocator trouble.

    Args:
        canary_ratio: Speed of the machine around the window, relative to the study's reference.
        is_first: True for the first trial of a run, which finds everything cold.
    """
    signs = [
        *_neighbour_signs(samples),
        *_canary_signs(canary_ratio),
        *_phase_signs(samples, is_first),
        *(_Sign(text, 1.0) for text in _client_causes(samples)),
    ]
    return _trust(signs, _warnings(samples))


def trust_by_canary(canary_ratio: float | None) -> Trust:
    """All that can be told of figures that somebody else measured."""
    return _trust(list(_canary_signs(canary_ratio)), ())


def _trust(signs: Sequence[_Sign], warnings: tuple[str, ...]) -> Trust:
    line = "noisy: " + "; ".join(sign.text for sign in signs) if signs else QUIET
    level = sum(sign.level for sign in signs)
    return Trust(line, warnings, level, any(sign.may_pass for sign in signs))


def outside_level(samples: Samples, canary_ratio: float | None) -> float:
    """How noisy, as `Trust.level`, by what comes from outside of the processes alone."""
    signs = (*_neighbour_signs(samples), *_canary_signs(canary_ratio))
    return sum(sign.level for sign in signs)


def with_trust(measurement: Measurement, trust: Trust, canary_ratio: float | None) -> Measurement:
    """A measurement with what is known of the machine around it."""
    return replace(
        measurement,
        trust=trust.line,
        warnings=tuple(dict.fromkeys((*measurement.warnings, *trust.warnings))),
        canary_ratio=canary_ratio,
    )


def speed_left(measurement: Measurement) -> float:
    """Share of its undisturbed speed that a noisy measurement is likely to show; 1 if quiet.

    An estimate, by what was waited and by the canary; where threads wait together it is too low.
    """
    if measurement.trust == QUIET:
        return 1.0
    waited = min(measurement.run_queue_wait_ratio or 0.0, MAX_LOST)
    canary = 1.0 if measurement.canary_ratio is None else measurement.canary_ratio
    return (1.0 - waited) * canary


def _neighbour_signs(samples: Samples) -> Iterator[_Sign]:
    wait = run_queue_wait_ratio(samples)
    if wait is None or wait <= MAX_RUN_QUEUE_WAIT or not _has_cores_of_its_own(samples):
        return
    # The waits of an instance's threads add up; what one lost, another process had.
    threads = max((fact.thread_count or 1 for fact in samples.facts), default=1)
    share = min(wait / threads, 1.0)
    yield _Sign(f"another process took {share:.0%} of its cores", wait / MAX_RUN_QUEUE_WAIT)


def _canary_signs(canary_ratio: float | None) -> Iterator[_Sign]:
    if canary_ratio is not None and canary_ratio < MIN_CANARY_RATIO:
        slower = 1.0 - canary_ratio
        yield _Sign(
            f"the machine ran {slower:.0%} slower than at its best in this study (throttling, or "
            "a neighbour on its caches?)",
            slower / (1.0 - MIN_CANARY_RATIO),
            may_pass=False,
        )


def _phase_signs(samples: Samples, is_first: bool) -> Iterator[_Sign]:
    """What the course of the call times within the window says: cold, drifting, or unstable."""
    if samples.in_server and samples.rate_per_s is not None:
        return  # its queue is part of every call: that it grows is a finding, not noise
    medians = phase_medians(samples)
    if medians is None or (ratio := max(medians) / min(medians)) <= MAX_PHASE_RATIO:
        return
    level = ratio / MAX_PHASE_RATIO
    later = medians[COLD_PHASES:]
    if max(later) / min(later) <= MAX_PHASE_RATIO and max(medians) > max(later):
        name = "first trial: cold" if is_first else "cold"
        yield _Sign(f"{name}, calls took up to {ratio:.2g} times as long at first", level)
    elif _rank_correlation(medians) > MIN_DRIFT:
        yield _Sign(f"drift within the window: calls became {ratio:.2g} times as long", level)
    elif _rank_correlation(medians) < -MIN_DRIFT:
        yield _Sign(f"drift within the window: calls became {ratio:.2g} times as fast", level)
    else:
        slowest = f"calls took {ratio:.2g} times as long in the slowest phase"
        yield _Sign(f"unstable: {slowest}", level)


def _rank_correlation(values: Sequence[float]) -> float:
    """Spearman's, of a series with its order."""
    ranks = np.argsort(np.argsort(values))
    return float(np.corrcoef(ranks, np.arange(len(values)))[0, 1])


def _warnings(samples: Samples) -> tuple[str, ...]:
    warnings = []
    if float(samples.fault_count.mean()) > MAX_FAULTS_PER_CALL:
        warnings.append(
            f"{samples.fault_count.mean():.0f} page faults per call: "
            "the allocator returns memory to the system between calls"
        )
    if not all(fact.warmup_steady for fact in samples.facts):
        warnings.append("call times had not settled when the warm-up ended")
    if samples.is_queued and any(fact.pads for fact in samples.facts):
        warnings.append("every call runs a whole batch, padded where fewer requests were waiting")
    for what, count in samples.failures.items():
        warnings.append(f"{count} requests failed: {what}")
    if unserved := unserved_count(samples):
        warnings.append(f"{unserved} requests were never served; they count as over any limit")
    return tuple(warnings)


def _client_causes(samples: Samples) -> list[str]:
    """Whether the load generator, not the model, made requests wait."""
    if samples.late_s is None or samples.late_s.size == 0:
        return []
    late_s, latency_s = quantile(samples.late_s, 0.99), quantile(samples.latency_s, 0.99)
    if late_s <= MAX_LATE_SHARE * latency_s:
        return []
    return [
        f"the client is saturated: calls began up to {format_duration(late_s)} late (P99), "
        f"a part of the {format_duration(latency_s)} that requests took"
    ]


def unserved_count(samples: Samples) -> int:
    """Requests of an open load that had not been served when the measuring ended."""
    arrived = sum(arrivals.size for arrivals in samples.arrivals_s)
    return arrived - int(samples.item_count.sum()) if samples.is_queued else 0


def in_flight(samples: Samples) -> float:
    """Requests that a server had at a time, on average over time (Little's law)."""
    spans_s = sum(
        float(np.ptp(np.concatenate([samples.due_s[own], samples.end_s[own]])))
        for own in (samples.window == window for window in np.unique(samples.window))
    )
    return float(samples.latency_s.sum()) / spans_s if spans_s > 0 else 1.0


def utilisation(samples: Samples) -> float:
    """What arrived under an open load over what could have been served.

    What could be is taken from the calls with most items: with dynamic batching servers are
    busy long before they are at their limit.
    """
    times_s = samples.end_s - samples.start_s
    largest = samples.item_count >= np.quantile(samples.item_count, LARGE_CALLS)
    per_server = float(samples.item_count[largest].sum() / times_s[largest].sum())
    instances = np.unique(samples.instance).size
    arrived = sum(arrivals.size for arrivals in samples.arrivals_s)
    lasted_s = sum(float(np.ptp(arrivals)) for arrivals in samples.arrivals_s)
    return arrived / (lasted_s * per_server * instances) if lasted_s > 0 else 0.0


def run_queue_wait_ratio(samples: Samples) -> float | None:
    """Time an instance's threads waited for a core, over the time measured; None if unknown."""
    if not samples.run_queue_wait_s or not samples.facts:
        return None
    return sum(samples.run_queue_wait_s) / (measured_s(samples) * len(samples.facts))


def measured_s(samples: Samples) -> float:
    """Seconds of wall-clock time inside the windows."""
    spans_s = (
        np.ptp(np.concatenate([samples.start_s[own], samples.end_s[own]]))
        for own in (samples.window == window for window in np.unique(samples.window))
    )
    return float(sum(spans_s))


def read_run_queue_wait_s(*, whole_process: bool) -> float:
    """Seconds that this process's threads, or this thread alone, have waited for a core so far."""
    if not whole_process:
        return _task_wait_s(Path("/proc/thread-self/schedstat"))
    return sum(map(_task_wait_s, Path("/proc/self/task").glob("*/schedstat")))


def _task_wait_s(path: Path) -> float:
    try:
        return int(path.read_text().split()[1]) * 1e-9  # second field: time runnable, not running
    except (OSError, IndexError, ValueError):
        return 0.0  # the thread has ended, or the kernel does not tell


def phase_medians(samples: Samples) -> list[float] | None:
    """Median call time of each eighth of the calls, in their order; None with few calls."""
    order = np.lexsort((samples.start_s, samples.window))  # virtual sessions all begin at zero
    times_s = (samples.end_s - samples.start_s)[order]
    if times_s.size < PHASES * MIN_CALLS_PER_PHASE:
        return None
    items = samples.item_count[order]
    if np.ptp(items) > 0:  # calls of different sizes are compared with others of their size
        times_s = ServiceTimes.fit(items, times_s).residuals
    return [float(np.median(phase)) for phase in np.array_split(times_s, PHASES)]


def _has_cores_of_its_own(samples: Samples) -> bool:
    """False where instances share cores on purpose: then they wait for each other."""
    cores = [core for fact in samples.facts for core in fact.cores]
    return len(cores) == len(set(cores))
