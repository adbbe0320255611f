"""What torch can say of its own work: a trace of what ran, and how fast the device is at best."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from autotune.core.diagnosis import Ceilings
from autotune.devices.base import Mark

TRACE = "trace.json"
COPY_BYTES = (2**16, 2**20, 2**26)  # of the tensor; a copy reads and writes it
HOST_BYTES = 2**24
MATRIX_SIZES = (512, 1024)
TRIES = 5  # of each ceiling; the best counts
TRY_S = 0.01  # at least, of one try
MAX_CALLS = 20_000  # of one try


@contextlib.contextmanager
def torch_trace(folder: Path, kind: str) -> Iterator[Mark]:
    """Record what runs into a trace in `folder`.

    Args:
        kind: Of the device: "cpu", "cuda", or another that torch's profiler knows.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU]
    if kind != "cpu":
        activities.append(getattr(ProfilerActivity, kind.upper(), ProfilerActivity.PrivateUse1))
    with profile(activities=activities) as session:
        yield record_function
        if kind != "cpu":
            getattr(torch, kind).synchronize()
    session.export_chrome_trace(str(folder / TRACE))


def measure_ceilings(device: str, precision: str, synchronize: Callable[[], None]) -> Ceilings:
    """A few hundred milliseconds of matrix products, copies and calls of nothing.

    Args:
        device: What torch calls it. `precision`: of the matrices.
        synchronize: Waits for all that was launched.
    """
    import torch

    with torch.inference_mode():
        dtype = getattr(torch, precision)
        matrices = [torch.ones((n, n), device=device, dtype=dtype) for n in MATRIX_SIZES]
        flops_per_s = max(
            2.0 * len(m) ** 3 / _least_s(lambda m=m: torch.mm(m, m), synchronize)  # type: ignore[misc]
            for m in matrices
        )
        rates = []
        for size in COPY_BYTES:
            source = torch.ones(size, dtype=torch.uint8, device=device)
            target = torch.empty_like(source)
            rates.append(2.0 * size / _least_s(lambda: target.copy_(source), synchronize))  # noqa: B023
        one = torch.ones(1, device=device)
        host = torch.ones(HOST_BYTES, dtype=torch.uint8)
        there = torch.empty(HOST_BYTES, dtype=torch.uint8, device=device)
        if device != "cpu":
            host = host.pin_memory()
        return Ceilings(
            flops_per_s=flops_per_s,
            copy_bytes=tuple(2.0 * size for size in COPY_BYTES),
            copy_rates=tuple(rates),
            launch_s=_least_s(lambda: torch.add(one, one), synchronize),
            host_bytes_per_s=HOST_BYTES
            / _least_s(lambda: there.copy_(host, non_blocking=True), synchronize),
        )


def _least_s(action: Callable[[], object], synchronize: Callable[[], None]) -> float:
    """The shortest mean time of one call over several tries."""
    action()
    synchronize()
    calls = 1
    while (spent_s := _timed_s(action, synchronize, calls)) < TRY_S and calls < MAX_CALLS:
        calls = min(MAX_CALLS, max(2 * calls, int(calls * TRY_S / max(spent_s, 1e-9)) + 1))
    return min(_timed_s(action, synchronize, calls) for _ in range(TRIES)) / calls


def _timed_s(action: Callable[[], object], synchronize: Callable[[], None], calls: int) -> float:
    began_s = time.perf_counter()
    for _ in range(calls):
        action()
    synchronize()
    return time.perf_counter() - began_s
