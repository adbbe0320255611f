"""Load loops: who calls the model when, and the raw record of every call."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from autotune.core.clock import Clock
from autotune.core.records import StageTimes
from autotune.measure.request_queue import Batch, Queue

MAX_CALLS = 3_000_000  # one window's record stays below about 1 GB

T = TypeVar("T")

Step = Callable[[int], StageTimes]
"""One inference call of one instance; takes the call's number."""

Serve = Callable[[int, int], StageTimes]
"""One inference call for some items, at most a batch; takes the call's number and the items."""


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


class _Meter:
    """Counters of the calling thread, from one call to the next."""

    __slots__ = ("_before", "_usage_of")

    def __init__(self) -> None:
        self._usage_of = resource.getrusage
        self.reset()

    def reset(self) -> None:
        """What was spent until now belongs to no call."""
        self._before = self._usage_of(resource.RUSAGE_THREAD)

    def record(self, due_s: float, start_s: float, end_s: float, stages: StageTimes) -> CallRecord:
        """The call that has just ended."""
        before, after = self._before, self._usage_of(resource.RUSAGE_THREAD)
        self._before = after
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return CallRecord(
            due_s, start_s, end_s, *stages,
            cpu_s, after.ru_nivcsw - before.ru_nivcsw, after.ru_minflt - before.ru_minflt,
        )  # fmt: skip


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
    append, now_s, record = records.append, clock.now_s, _Meter().record
    last_call = first_call + min(iterations or MAX_CALLS, MAX_CALLS)
    call = first_call
    start_s = now_s()
    while call < last_call and (until_s is None or start_s < until_s):
        stages = step(call)
        append(record(start_s, start_s, now_s(), stages))
        call += 1
        start_s = now_s()
    return records


def open_loop(
    serve: Serve, clock: Clock, queue: Queue, *, first_call: int = 0
) -> Iterator[tuple[Batch, CallRecord]]:
    """Serve batches from a queue until it is empty for good; yields after each.

    The call runs with as many items as were taken.

    Args:
        first_call: Number of the first call, which picks its request from the ring.
    """
    meter = _Meter()
    for call in range(first_call, first_call + MAX_CALLS):
        batch = queue.take(clock)
        if batch is None:
            return
        meter.reset()  # waiting is no part of the call
        start_s = clock.now_s()
        stages = serve(call, batch.items)
        end_s = clock.now_s()
        queue.answered(batch, end_s)
        yield batch, meter.record(batch.due_s, start_s, end_s, stages)


def in_event_order(loops: Sequence[Iterator[T]], clocks: Sequence[Clock]) -> tuple[list[T], ...]:
    """Run loops that share a queue, always the one whose clock is behind.

    On virtual clocks this is the order of real time: whoever is free first takes first.

    Returns:
        What each loop yielded.
    """
    yielded: tuple[list[T], ...] = tuple([] for _ in loops)
    if len(loops) == 1:
        yielded[0].extend(loops[0])
        return yielded
    live = list(range(len(loops)))
    while live:
        index = min(live, key=lambda i: clocks[i].now_s())
        try:
            yielded[index].append(next(loops[index]))
        except StopIteration:
            live.remove(index)
    return yielded
