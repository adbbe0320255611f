"""Whether a measurement can be trusted: signs of neighbours, drift and allocator trouble."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from autotune.core.records import Samples
from autotune.core.units import format_duration
from autotune.measure.queueing import ServiceTimes
from autotune.measure.tail import quantile

MAX_RUN_QUEUE_WAIT = (
    0.05  # share of the window; about .002 on a quiet machine, .2 and more beside others
)
MAX_PHASE_RATIO = 1.3  # slowest over fastest eighth of the calls, by median
PHASES = 8
MIN_CALLS_PER_PHASE = 3
MAX_LATE_SHARE = 0.1  # of the P99 latency, that the load generator itself may add
LARGE_CALLS = 0.9  # quantile of the items per call
MAX_FAULTS_PER_CALL = 300.0  # the pinned allocator shows below 130


def trust_of(samples: Samples) -> tuple[str, tuple[str, ...]]:
    """The trust line ("quiet", "noisy: why") and further warnings that do not make it noisy."""
    causes = []
    wait = run_queue_wait_ratio(samples)
    if wait is not None and wait > MAX_RUN_QUEUE_WAIT and _has_cores_of_its_own(samples):
        # Threads add up, so that several of them can wait for longer than the time measured.
        long = f"{wait:.0%} of the time" if wait <= 1 else "longer than it ran"
        causes.append(f"waited {long} for its cores; something else runs there")
    ratio = phase_ratio(samples)
    if ratio is not None and ratio > MAX_PHASE_RATIO:
        causes.append(f"unstable: calls took {ratio:.2g} times as long in the slowest phase")
    causes.extend(_client_causes(samples))
    warnings = []
    if float(samples.fault_count.mean()) > MAX_FAULTS_PER_CALL:
        warnings.append(
            f"{samples.fault_count.mean():.0f} page faults per call: "
            "the allocator returns memory to the system between calls"
        )
    if not all(fact.warmup_steady for fact in samples.facts):
        warnings.append("call times had not settled when the warm-up ended")
    if samples.is_open and any(fact.pads for fact in samples.facts):
        warnings.append("every call runs a whole batch, padded where fewer requests were waiting")
    if unserved := unserved_count(samples):
        warnings.append(f"{unserved} requests were never served; they count as over any limit")
    return ("noisy: " + "; ".join(causes) if causes else "quiet"), tuple(warnings)


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
    return arrived - int(samples.item_count.sum()) if samples.is_open else 0


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
    elapsed_s = float(samples.end_s.max() - samples.start_s.min())
    return sum(samples.run_queue_wait_s) / (elapsed_s * len(samples.facts))


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


def phase_ratio(samples: Samples) -> float | None:
    """Median call time of the slowest of eight phases over the fastest's; None with few calls."""
    order = np.argsort(samples.start_s)
    times_s = (samples.end_s - samples.start_s)[order]
    if times_s.size < PHASES * MIN_CALLS_PER_PHASE:
        return None
    items = samples.item_count[order]
    if np.ptp(items) > 0:  # calls of different sizes are compared with others of their size
        times_s = ServiceTimes.fit(items, times_s).residuals
    medians = [float(np.median(phase)) for phase in np.array_split(times_s, PHASES)]
    return max(medians) / min(medians)


def _has_cores_of_its_own(samples: Samples) -> bool:
    """False where instances share cores on purpose: then they wait for each other."""
    cores = [core for fact in samples.facts for core in fact.cores]
    return len(cores) == len(set(cores))
