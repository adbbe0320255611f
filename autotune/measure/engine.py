"""What one instance does when it is told to measure: warm up until steady, then run the windows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.core.clock import Clock
from autotune.core.records import InstanceFacts, Plan, Samples, Window
from autotune.measure.load import CallRecord, Step, closed_loop

MIN_WARMUP_CALLS = 10
MIN_WARMUP_S = 0.3
MAX_WARMUP_SHARE = 0.25  # of the time that will be measured
STEADY_BLOCK = 8  # calls per block whose medians are compared
STEADY_TOLERANCE = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """How the warm-up went: its calls, whether their times settled, the last one's number."""

    count: int
    is_steady: bool


def warm_up(step: Step, clock: Clock, *, max_s: float) -> WarmUp:
    """Call until the time of a call has settled.

    Settled: at least 10 calls and 0.3 s have passed, and the median of the last 8 calls is
    within 3 % of that of the 8 before. The cap wins over all of it, after two calls, so that
    a slow model does not spend its trial here.
    """
    began_s = clock.now_s()
    times_s: list[float] = []
    while True:
        start_s = clock.now_s()
        step(len(times_s))
        end_s = clock.now_s()
        times_s.append(end_s - start_s)
        spent_s = end_s - began_s
        enough = len(times_s) >= MIN_WARMUP_CALLS and spent_s >= MIN_WARMUP_S
        if enough and _is_steady(times_s):
            return WarmUp(count=len(times_s), is_steady=True)
        if spent_s >= max_s and len(times_s) >= 2:
            return WarmUp(count=len(times_s), is_steady=_is_steady(times_s))


def _is_steady(times_s: Sequence[float]) -> bool:
    if len(times_s) < 2 * STEADY_BLOCK:
        return False
    before = statistics.median(times_s[-2 * STEADY_BLOCK : -STEADY_BLOCK])
    last = statistics.median(times_s[-STEADY_BLOCK:])
    return abs(last - before) <= STEADY_TOLERANCE * before


def warmup_cap_s(plan: Plan) -> float:
    """The longest a warm-up may take under a plan, in seconds."""
    planned_s = sum(w.duration_s or 0.0 for w in plan.windows)
    if planned_s == 0:  # counted calls: their time is not known beforehand
        return 2 * MIN_WARMUP_S
    return max(MIN_WARMUP_S, MAX_WARMUP_SHARE * planned_s)


def run_windows(
    step: Step,
    clock: Clock,
    plan: Plan,
    *,
    base_s: float,
    share: tuple[int, int] = (0, 1),
    first_call: int = 0,
    run_queue_wait_s: Callable[[], float] = lambda: 0.0,
) -> tuple[list[list[CallRecord]], tuple[float, ...]]:
    """Run the plan's windows one after the other.

    Args:
        base_s: When the first window starts that has no start of its own; the same for all
            instances of the group, which makes it a barrier.
        share: This instance's index and the number of instances, to share out counted calls.
        run_queue_wait_s: Reads how long this instance has waited for a core so far.
    Returns:
        The calls of each window, and per window the seconds spent waiting for a core.
    """
    windows: list[list[CallRecord]] = []
    waits: list[float] = []
    next_start_s = base_s
    for window in plan.windows:
        start_s = window.start_s if window.start_s is not None else next_start_s
        clock.sleep_until(start_s)
        waited_before_s = run_queue_wait_s()
        calls = closed_loop(
            step,
            clock,
            first_call=first_call,
            until_s=None if window.duration_s is None else start_s + window.duration_s,
            iterations=_share_of(window, share),
        )
        waits.append(run_queue_wait_s() - waited_before_s)
        windows.append(calls)
        first_call += len(calls)
        next_start_s = clock.now_s() if window.duration_s is None else start_s + window.duration_s
    return windows, tuple(waits)


def _share_of(window: Window, share: tuple[int, int]) -> int | None:
    if window.iterations is None:
        return None
    index, count = share
    return window.iterations // count + (1 if index < window.iterations % count else 0)


def to_samples(
    windows: Sequence[Sequence[CallRecord]],
    waits_s: tuple[float, ...],
    *,
    items_per_call: int,
    facts: InstanceFacts,
) -> Samples:
    """One instance's calls as arrays."""
    calls = [call for window in windows for call in window]
    table = np.array(calls, dtype=np.float64).reshape(len(calls), len(CallRecord._fields))
    column = {name: table[:, i].copy() for i, name in enumerate(CallRecord._fields)}
    index = np.repeat(np.arange(len(windows), dtype=np.int64), [len(w) for w in windows])
    return Samples(
        window=index,
        instance=np.full(len(calls), facts.instance, dtype=np.int64),
        due_s=column["due_s"],
        start_s=column["start_s"],
        end_s=column["end_s"],
        item_count=np.full(len(calls), items_per_call, dtype=np.int64),
        cpu_s=column["cpu_s"],
        switch_count=column["switch_count"].astype(np.int64),
        fault_count=column["fault_count"].astype(np.int64),
        h2d_s=column["h2d_s"],
        compute_s=column["compute_s"],
        d2h_s=column["d2h_s"],
        run_queue_wait_s=waits_s,
        facts=(facts,),
    )


def merge(parts: Sequence[Samples]) -> Samples:
    """The samples of a group from those of its instances."""

    def joined(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])

    has_stages = all(part.h2d_s is not None for part in parts)
    waits = [part.run_queue_wait_s for part in parts]
    return Samples(
        window=joined("window"),
        instance=joined("instance"),
        due_s=joined("due_s"),
        start_s=joined("start_s"),
        end_s=joined("end_s"),
        item_count=joined("item_count"),
        cpu_s=joined("cpu_s"),
        switch_count=joined("switch_count"),
        fault_count=joined("fault_count"),
        h2d_s=joined("h2d_s") if has_stages else None,
        compute_s=joined("compute_s") if has_stages else None,
        d2h_s=joined("d2h_s") if has_stages else None,
        run_queue_wait_s=tuple(sum(column) for column in zip(*waits, strict=True)),
        facts=tuple(fact for part in parts for fact in part.facts),
    )
