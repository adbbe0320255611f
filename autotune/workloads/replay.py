"""Recorded grids: a row of the file, with declared noise, in place of a measurement."""

from __future__ import annotations

import hashlib
import math

import numpy as np

from autotune.core.errors import CompileError, OutOfMemory, TrialCrashed, TrialError, TrialTimeout
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, GroupSpec, Plan, Reported, WorkloadSpec
from autotune.workloads.grid import Row, read_grid
from autotune.workloads.noise import read_noise

DEFAULT_NOISE = 0.03
P99_FACTOR = 1.2  # a tail figure scatters more than a mean
OUTLIER_SHARE = 0.03
OUTLIER_RANGE = (1.05, 1.3)
MEMORY_NOISE = 0.002

_FAILURES: dict[Outcome, type[TrialError]] = {
    Outcome.OOM: OutOfMemory,
    Outcome.TIMEOUT: TrialTimeout,
    Outcome.COMPILE_ERROR: CompileError,
    Outcome.CRASHED: TrialCrashed,
}


def check(spec: WorkloadSpec) -> None:
    """Raise UsageError if the grid cannot be read or an option is wrong."""
    read_noise(spec.options, DEFAULT_NOISE)
    read_grid(spec.model)


def preload(spec: WorkloadSpec) -> tuple[str, ...]:
    """Nothing: it runs in this process."""
    return ()


def report(spec: GroupSpec, plan: Plan) -> Reported:
    """Look the configuration up and add noise.

    The noise depends on the workload's seed, the configuration and `plan.arrival_seed`, of
    which a repetition needs a new one.

    Returns:
        Figures of the row; `duration_s` is the row's cost plus the length of the plan's
        windows, which the caller charges to its virtual clock.
    Raises:
        TrialError: The row is a failure; carries its cost.
        UsageError: The grid has no such configuration.
    """
    row = read_grid(spec.workload.model).lookup(spec.config)
    failure = _FAILURES.get(row.status)
    if failure is not None:
        error = failure(f"recorded as {row.status} in line {row.line} of {spec.workload.model}")
        error.cost_s = row.cost_s
        raise error
    noise, seed = read_noise(spec.workload.options, DEFAULT_NOISE)
    rng = np.random.default_rng(_seed_of(spec.config, seed, plan.arrival_seed))
    return Reported(
        metrics=_with_noise(row, noise, rng),
        relative_noise=P99_FACTOR * noise,
        duration_s=row.cost_s + _windows_s(row, spec.config, plan),
    )


def _with_noise(row: Row, noise: float, rng: np.random.Generator) -> dict[str, float]:
    """The row's figures as a repetition would have given them.

    Every draw is made whether or not its figure is known, so that a column more or less does
    not change the others.
    """
    pace = math.exp(noise * rng.standard_normal())
    tail = math.exp(P99_FACTOR * noise * rng.standard_normal())
    is_outlier, outlier = rng.random() < OUTLIER_SHARE, rng.uniform(*OUTLIER_RANGE)
    size = 1.0 + MEMORY_NOISE * rng.standard_normal()
    if noise and is_outlier:
        tail *= outlier
    factors = {
        "throughput_items_per_s": pace,
        "latency_mean_s": 1 / pace,  # of a closed loop: the same calls, seen the other way round
        "latency_p50_s": 1 / pace,
        "latency_p90_s": 1 / pace,
        "latency_p99_s": tail,
        "latency_p999_s": tail,
        "memory_peak_bytes": size if noise else 1.0,
    }
    noisy = {name: value * factors.get(name, 1.0) for name, value in row.figures.items()}
    for name in ("latency_p50_s", "latency_p90_s"):
        if name in noisy and "latency_p99_s" in noisy:
            noisy[name] = min(noisy[name], noisy["latency_p99_s"])
    if "memory_peak_bytes" in noisy:
        noisy["memory_peak_bytes"] = round(noisy["memory_peak_bytes"])
    return noisy


def _windows_s(row: Row, config: Config, plan: Plan) -> float:
    """How long the plan's windows take; counted calls last as long as the row says."""
    seconds = 0.0
    for window in plan.windows:
        if window.duration_s is not None:
            seconds += window.duration_s
        elif window.iterations is not None:
            items = window.iterations * config.batch_size
            seconds += items / row.figures["throughput_items_per_s"]
    return seconds


def _seed_of(config: Config, seed: int, repetition: int) -> int:
    text = repr((seed, repetition, sorted(config.as_dict().items())))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
