"""Load loops: who calls the model when, and the raw record of every call."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import NamedTuple

from autotune.core.clock import Clock
from autotune.core.records import StageTimes

MAX_CALLS = 3_000_000  # one window's record stays below about 1 GB


Step = Callable[[int], StageTimes]
"""One inference call of one instance; takes the call's number."""


class CallRecord(NamedTuple):
    """One call as the loop saw it; times on the loop's clock, counters of the calling thread."""

    due_s: float
    start_s: float
    end_s: float
    h2d_s: float
    compute_s: float
    d2h_s: float
    cpu_s: float
    switch_count: int
    fault_count: int


def closed_loop(
    step: Step,
    clock: Clock,
    *,
    first_call: int = 0,
    until_s: float | None = None,
    iterations: int | None = None,
) -> list[CallRecord]:
    """Call back to back until a time or a count is reached.

    A call that began before `until_s` is finished and counted: dropping it would favour
    configurations with short calls.

    Args:
        first_call: Number of the first call, which picks its request from the ring.
        until_s: No call starts after this time on `clock`.
        iterations: Stop after this many calls.
    """
    records: list[CallRecord] = []
    append, now_s, usage_of = records.append, clock.now_s, resource.getrusage
    thread = resource.RUSAGE_THREAD
    last_call = first_call + min(iterations or MAX_CALLS, MAX_CALLS)
    call = first_call
    before = usage_of(thread)
    start_s = now_s()
    while call < last_call and (until_s is None or start_s < until_s):
        stages = step(call)
        end_s = now_s()
        after = usage_of(thread)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        append(
            CallRecord(
                start_s, start_s, end_s, *stages,
                cpu_s, after.ru_nivcsw - before.ru_nivcsw, after.ru_minflt - before.ru_minflt,
            )
        )  # fmt: skip
        before = after
        call += 1
        start_s = now_s()
    return records
