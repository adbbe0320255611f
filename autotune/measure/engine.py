"""What one instance does when it is told to measure: warm up until steady, then run the windows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from autotune.core.clock import Clock
from autotune.core.records import (
    SAMPLE_ARRAYS,
    Config,
    Floats,
    InstanceFacts,
    Load,
    Plan,
    Samples,
    Window,
)
from autotune.measure.arrivals import arrival_times
from autotune.measure.client_queue import ClientQueue, ClientState
from autotune.measure.load import (
    CallRecord,
    Serve,
    Step,
    closed_loop,
    in_event_order,
    open_loop,
)
from autotune.measure.request_queue import Batch, Cursor, Queue, RequestQueue

MIN_WARMUP_CALLS = 10
MIN_WARMUP_S = 0.3
MAX_WARMUP_SHARE = 0.25  # of the time that will be measured
STEADY_BLOCK = 8  # calls per block whose medians are compared
STEADY_TOLERANCE = 0.03
CALLS_PER_SIZE = 3  # of a warm-up over batch sizes: the first of a size may compile or allocate
DRAIN_S = 1.0  # after an open window, for what arrived in it; then it counts as never served


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
        if enough and is_steady(times_s):
            return WarmUp(count=len(times_s), is_steady=True)
        if spent_s >= max_s and len(times_s) >= 2:
            return WarmUp(count=len(times_s), is_steady=is_steady(times_s))


def warm_up_sizes(serve: Serve, clock: Clock, sizes: Sequence[int], *, max_s: float) -> None:
    """Call with every size a few times, the largest first, until the time is up."""
    until_s = clock.now_s() + max_s
    for size in sorted(sizes, reverse=True):
        for call in range(CALLS_PER_SIZE):
            if clock.now_s() >= until_s:
                return
            serve(call, size)


def size_ladder(max_batch: int) -> tuple[int, ...]:
    """Batch sizes 1, 2, 3, 4, 6, 8, 12, 16 ... up to `max_batch`, itself included."""
    powers = [2**i for i in range(max_batch.bit_length())]
    halves = [3 * power // 2 for power in powers if power > 1]
    return tuple(sorted({size for size in (*powers, *halves) if size < max_batch} | {max_batch}))


def sizes_of(plan: Plan, config: Config) -> tuple[int, ...]:
    """Batch sizes other than the configuration's that a plan will call."""
    if plan.load.is_queued:
        return size_ladder(config.batch_size)
    return tuple(sorted({w.item_count for w in plan.windows if w.item_count is not None}))


def is_steady(times_s: Sequence[float]) -> bool:
    """True if the last calls took as long as those before them."""
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
    serve: Serve | None = None,
) -> tuple[list[list[CallRecord]], tuple[float, ...]]:
    """Run the windows of a closed load one after the other.

    Args:
        base_s: When the first window starts that has no start of its own; the same for all
            instances of the group, which makes it a barrier.
        share: This instance's index and the number of instances, to share out counted calls.
        run_queue_wait_s: Reads how long this instance has waited for a core so far.
        serve: For windows with a number of items of their own.
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
            _step_of(window, step, serve),
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


def _step_of(window: Window, step: Step, serve: Serve | None) -> Step:
    items = window.item_count
    if items is None:
        return step
    assert serve is not None, "a window with its own number of items needs a way to serve them"
    return lambda call: serve(call, items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """An instance as an open load sees it.

    Attributes:
        first_call: Number of its next call.
        run_queue_wait_s: Reads how long it has waited for a core so far.
    """

    serve: Serve
    clock: Clock
    first_call: int = 0
    run_queue_wait_s: Callable[[], float] = lambda: 0.0


class OpenWindow(NamedTuple):
    """What one instance served in one window, and all arrivals of the window."""

    served: list[tuple[Batch, CallRecord]]
    arrivals_s: Floats
    run_queue_wait_s: float


def run_open_windows(
    servers: Sequence[Server],
    config: Config,
    plan: Plan,
    *,
    base_s: float,
    state: Callable[[int], Cursor | ClientState],
) -> list[list[OpenWindow]]:
    """Run the windows of a load with a queue one after the other.

    What arrived in a window is still served after its end, for up to `DRAIN_S`.

    Args:
        servers: One, or, on virtual clocks, all instances of the group.
        base_s: When the first window starts that has no start of its own.
        state: Of a window's queue, shared by all instances of the group.
    Returns:
        The windows of each server.
    """
    windows: list[list[OpenWindow]] = [[] for _ in servers]
    clocks = [server.clock for server in servers]
    calls_made = [server.first_call for server in servers]
    next_start_s = base_s
    for number, window in enumerate(plan.windows):
        start_s = window.start_s if window.start_s is not None else next_start_s
        queue, end_s = _queue(plan, number, config, state(number), start_s)
        for clock in clocks:
            clock.sleep_until(start_s)
        waited_s = [server.run_queue_wait_s() for server in servers]
        loops = [
            open_loop(server.serve, server.clock, queue, first_call=made)
            for server, made in zip(servers, calls_made, strict=True)
        ]
        for index, served in enumerate(in_event_order(loops, clocks)):
            wait_s = servers[index].run_queue_wait_s() - waited_s[index]
            windows[index].append(OpenWindow(served, queue.arrivals_s(), wait_s))
            calls_made[index] += len(served)
        # A fixed length, so that instances in several processes agree on the next start.
        next_start_s = end_s + DRAIN_S
    return windows


def _queue(
    plan: Plan, number: int, config: Config, state: Cursor | ClientState, start_s: float
) -> tuple[Queue, float]:
    """The queue of a window, and when the window ends."""
    window, load = plan.windows[number], plan.load
    max_batch, max_delay_s = config.batch_size, float(config.get("max_queue_delay", 0.0))
    if not load.is_open:
        assert not isinstance(state, Cursor)
        # So many requests end when they end; until then no window has to know when.
        end_s = start_s + (window.duration_s or math.inf)
        return ClientQueue(
            state,
            start_s=start_s,
            end_s=end_s,
            closing_s=end_s + DRAIN_S,
            max_batch=max_batch,
            max_delay_s=max_delay_s,
            count=window.iterations,
        ), end_s
    assert isinstance(state, Cursor)
    arrivals_s = start_s + arrival_times(
        load,
        seed=plan.arrival_seed,
        window=number,
        duration_s=window.duration_s,
        count=window.iterations,
    )
    end_s = start_s + (window.duration_s or (arrivals_s[-1] - start_s))
    return RequestQueue(
        arrivals_s,
        state,
        max_batch=max_batch,
        max_delay_s=max_delay_s,
        closing_s=end_s + DRAIN_S,
    ), end_s


def _share_of(window: Window, share: tuple[int, int]) -> int | None:
    if window.iterations is None:
        return None
    index, count = share
    return window.iterations // count + (1 if index < window.iterations % count else 0)


def to_samples(
    windows: Sequence[Sequence[CallRecord]],
    waits_s: tuple[float, ...],
    *,
    items_per_call: int | Sequence[int],
    facts: InstanceFacts,
) -> Samples:
    """One instance's calls as arrays.

    Args:
        items_per_call: Of all calls, or of each.
    """
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
        item_count=np.broadcast_to(np.asarray(items_per_call, dtype=np.int64), len(calls)).copy(),
        cpu_s=column["cpu_s"],
        switch_count=column["switch_count"].astype(np.int64),
        fault_count=column["fault_count"].astype(np.int64),
        h2d_s=column["h2d_s"],
        compute_s=column["compute_s"],
        d2h_s=column["d2h_s"],
        run_queue_wait_s=waits_s,
        facts=(facts,),
    )


def items_of_calls(
    windows: Sequence[Sequence[CallRecord]], plan: Plan, batch_size: int
) -> list[int]:
    """Items of each call of a closed load's windows."""
    return [
        window.item_count or batch_size
        for window, calls in zip(plan.windows, windows, strict=True)
        for _ in calls
    ]


def to_open_samples(windows: Sequence[OpenWindow], load: Load, facts: InstanceFacts) -> Samples:
    """What one instance served, as arrays."""
    batches = [batch for window in windows for batch, _ in window.served]
    samples = to_samples(
        [[call for _, call in window.served] for window in windows],
        tuple(window.run_queue_wait_s for window in windows),
        items_per_call=[batch.items for batch in batches],
        facts=facts,
    )
    return replace(
        samples,
        first_request=np.array([batch.first for batch in batches], dtype=np.int64),
        late_s=samples.start_s - np.array([batch.ready_s for batch in batches], dtype=np.float64),
        arrivals_s=tuple(window.arrivals_s for window in windows),
        rate_per_s=load.rate_per_s,
        clients=load.clients,
    )


def merge(parts: Sequence[Samples]) -> Samples:
    """The samples of a group from those of its instances."""

    def joined(name: str) -> Any:
        arrays = [getattr(part, name) for part in parts]
        return None if any(array is None for array in arrays) else np.concatenate(arrays)

    waits = [part.run_queue_wait_s for part in parts]
    arrivals = zip(*(part.arrivals_s for part in parts), strict=True)
    return replace(
        parts[0],
        **{name: joined(name) for name in SAMPLE_ARRAYS},
        run_queue_wait_s=tuple(sum(column) for column in zip(*waits, strict=True)),
        arrivals_s=tuple(map(_known_arrivals, arrivals)),
        facts=tuple(fact for part in parts for fact in part.facts),
    )


def _known_arrivals(parts: Sequence[Floats]) -> Floats:
    """Arrivals of one window as far as any instance knows them (NaN: it does not)."""
    if len(parts) == 1:
        return parts[0]
    known = np.full(max(part.size for part in parts), np.nan)
    for part in parts:
        known[: part.size] = np.fmax(known[: part.size], part)
    return known
