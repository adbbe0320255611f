"""Clients that wait for their answers: against an exact event simulation, and across processes."""

from __future__ import annotations

import heapq
import os
import time
from collections import deque
from dataclasses import replace

import numpy as np
import pytest
from open_server import CallTime, jittered, run_open

from autotune.core.clock import MonotonicClock
from autotune.core.records import Floats, Load
from autotune.measure.client_queue import ClientQueue, SharedClients, shared_states_file
from autotune.measure.judge import variance_floor
from autotune.measure.noise import unserved_count
from autotune.measure.summary import summarise


def event_simulation(
    clients: int, times: list[CallTime], end_s: float, max_batch: int, max_delay_s: float
) -> tuple[Floats, list[int]]:
    """Latencies in the order of service and items per call, event by event."""
    waiting = deque([0.0] * clients)
    idle = deque(range(len(times)))
    ends: list[tuple[float, int, int]] = []
    now_s, latencies, items = 0.0, [], []
    while True:
        if idle and waiting:
            start_s = now_s
            if len(waiting) < max_batch:
                start_s = max(now_s, waiting[0] + max_delay_s)
            if not ends or start_s < ends[0][0]:
                count = min(len(waiting), max_batch)
                server = idle.popleft()
                ended_s = start_s + times[server](count)
                latencies += [ended_s - waiting.popleft() for _ in range(count)]
                items.append(count)
                heapq.heappush(ends, (ended_s, server, count))
                now_s = start_s
                continue
        if not ends:
            return np.array(latencies), items
        now_s, server, count = heapq.heappop(ends)
        idle.append(server)
        if now_s < end_s:
            waiting += [now_s] * count


@pytest.mark.parametrize("clients", [1, 5, 40])
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("max_delay_s", [0.0, 3e-3])
def test_the_loop_is_the_event_simulation(clients: int, servers: int, max_delay_s: float) -> None:
    fixed_s = [2e-3, 3.1e-3]

    def times() -> list[CallTime]:
        return [jittered(fixed_s[i], 0.4e-3, seed=i) for i in range(servers)]

    samples = run_open(
        times(), 0.0, load=Load(clients=clients), duration_s=2.0, max_batch=8,
        max_delay_s=max_delay_s,
    )  # fmt: skip
    expected_s, items = event_simulation(clients, times(), 2.0, 8, max_delay_s)
    order = np.lexsort((samples.first_request,))
    assert samples.item_count[order].tolist() == items
    np.testing.assert_allclose(samples.request_latency_s(), expected_s, atol=1e-9)
    assert samples.clients == clients and samples.rate_per_s is None


def test_rate_times_latency_is_the_number_of_clients() -> None:
    samples = run_open([jittered(2e-3, 1e-4, 0)], 0.0, load=Load(clients=12), duration_s=20.0)
    measurement = summarise(samples)
    assert measurement.throughput_items_per_s is not None
    assert measurement.latency_mean_s is not None
    little = measurement.throughput_items_per_s * measurement.latency_mean_s
    assert little == pytest.approx(12, rel=0.01)
    assert measurement.throughput_ci95_items_per_s is not None
    low, high = measurement.throughput_ci95_items_per_s
    assert low < measurement.throughput_items_per_s < high < 1.05 * low
    assert variance_floor(samples) == 12  # a slow call holds up all clients


def test_never_more_requests_are_under_way_than_clients() -> None:
    samples = run_open(
        [jittered(2e-3, 1e-4, 0), jittered(3e-3, 1e-4, 1)],
        0.0,
        load=Load(clients=7),
        duration_s=3.0,
    )
    sent_s = samples.arrivals_s[0]
    ended_s = sent_s + samples.request_latency_s()
    under_way = np.searchsorted(sent_s, sent_s, side="right") - np.array(
        [(ended_s <= at_s).sum() for at_s in sent_s]
    )
    assert under_way.max() == 7
    assert sent_s.max() < 3.0 and unserved_count(samples) == 0


def test_what_is_never_answered_counts_as_over_any_limit() -> None:
    samples = run_open([lambda items: 0.4], 0.0, load=Load(clients=40), duration_s=1.0, max_batch=4)
    assert unserved_count(samples) == np.isinf(samples.request_latency_s()).sum() > 0


def test_a_client_that_is_late_is_said() -> None:
    samples = run_open([lambda items: 1e-3], 0.0, load=Load(clients=4))
    assert summarise(samples).trust == "quiet"
    assert samples.late_s is not None
    late = replace(samples, late_s=samples.late_s + 0.5e-3)
    assert "the client is saturated" in summarise(late).trust


def serve_in_child(fd: int, load: Load, end_s: float, out: int) -> None:
    """Serve from the shared queue; writes how many requests this process answered."""
    assert load.clients is not None
    states = SharedClients(fd, load.clients)
    clock = MonotonicClock(spin_s=0.0)
    queue = ClientQueue(
        states.state(1), start_s=end_s - 0.4, end_s=end_s, closing_s=end_s + 1.0,
        max_batch=3, max_delay_s=0.0,
    )  # fmt: skip
    answered = 0
    while (batch := queue.take(clock)) is not None:
        time.sleep(0.002)
        answered += batch.items
        queue.answered(batch, clock.now_s())
    known = int(np.isfinite(queue.arrivals_s()).sum())
    os.write(out, f"{answered} {known}\n".encode())


def test_processes_share_the_clients() -> None:
    load, end_s = Load(clients=10), time.monotonic() + 0.4
    fd = shared_states_file(load, 2)
    read, write = os.pipe()
    children = []
    for _ in range(3):
        if (pid := os.fork()) == 0:
            try:
                serve_in_child(os.dup(fd), load, end_s, write)
            finally:
                os._exit(0)
        children.append(pid)
    os.close(write)
    for pid in children:
        os.waitpid(pid, 0)
    with os.fdopen(read) as stream:
        counts = [tuple(map(int, line.split())) for line in stream]
    assert len(counts) == 3 and all(answered > 0 for answered, _ in counts)
    states = SharedClients(fd, 10)
    taken, sent = states.state(1).counts()
    assert taken == sent == sum(answered for answered, _ in counts)
    assert [known for _, known in counts] == [answered for answered, _ in counts]
    states.close()
