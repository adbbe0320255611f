"""The queue of an open load: when a batch is due, and cursors that processes share."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from autotune.core.clock import MonotonicClock, VirtualClock
from autotune.measure.request_queue import (
    Batch,
    LocalCursor,
    RequestQueue,
    SharedCursors,
    shared_file,
)


def queue(arrivals_s: list[float], max_batch: int = 4, max_delay_s: float = 0.0) -> RequestQueue:
    return RequestQueue(
        np.array(arrivals_s),
        LocalCursor(),
        max_batch=max_batch,
        max_delay_s=max_delay_s,
        closing_s=10.0,
    )


def test_without_a_delay_whoever_is_free_takes_what_has_arrived() -> None:
    clock, requests = VirtualClock(), queue([1.0, 1.1, 2.0])
    assert requests.take(clock) == Batch(first=0, items=1, due_s=1.0, ready_s=1.0)
    clock.advance(1.5)
    assert requests.take(clock) == Batch(first=1, items=2, due_s=1.1, ready_s=2.5)
    assert requests.take(clock) is None


def test_a_delay_collects_until_the_batch_is_full() -> None:
    clock, requests = VirtualClock(), queue([1.0, 1.1, 1.2, 1.3, 5.0], 4, 0.5)
    assert requests.take(clock) == Batch(first=0, items=4, due_s=1.0, ready_s=1.3)
    assert clock.now_s() == 1.3
    assert requests.take(clock) == Batch(first=4, items=1, due_s=5.0, ready_s=5.5)


def test_a_batch_is_never_larger_than_allowed_and_nothing_is_taken_after_the_close() -> None:
    clock, requests = VirtualClock(start_s=9.0), queue([float(i) / 10 for i in range(10)], 4)
    assert [requests.take(clock).items for _ in range(2)] == [4, 4]  # type: ignore[union-attr]
    clock.advance(1.0)
    assert requests.take(clock) is None  # two requests are left


def test_taking_costs_the_same_however_many_wait() -> None:
    clock = MonotonicClock()
    queues = [
        RequestQueue(
            np.linspace(-1.0, -0.5, count) + clock.now_s(),
            LocalCursor(),
            max_batch=2,
            max_delay_s=1e-3,
            closing_s=1e12,
        )
        for count in (2_000, 400_000)
    ]
    times_s: list[list[float]] = [[], []]
    for _ in range(700):  # turn about, so that both meet the same machine
        for requests, times in zip(queues, times_s, strict=True):
            began_s = time.perf_counter()
            assert requests.take(clock) is not None
            times.append(time.perf_counter() - began_s)
    few, many = (np.median(times) for times in times_s)
    assert many < 10 * few


def served_by_child(fd: int, arrivals_s: np.ndarray, pipe: int) -> None:
    cursors = SharedCursors(os.dup(fd))
    requests = RequestQueue(
        arrivals_s, cursors.state(1), max_batch=3, max_delay_s=0.0, closing_s=1e12
    )
    with os.fdopen(pipe, "w") as out:
        while (batch := requests.take(MonotonicClock())) is not None:
            out.write(f"{batch.first} {batch.items}\n")
    os._exit(0)


def test_processes_share_the_queue_and_serve_every_request_once() -> None:
    fd, arrivals_s = shared_file(2), time.monotonic() + np.arange(900) * 1e-4
    ends = []
    for _ in range(3):
        read, write = os.pipe()
        if os.fork() == 0:
            os.close(read)
            served_by_child(fd, arrivals_s, write)
        os.close(write)
        ends.append(read)
    served: list[int] = []
    for read in ends:
        with os.fdopen(read) as lines:
            for line in lines:
                first, items = map(int, line.split())
                served += range(first, first + items)
        os.wait()
    os.close(fd)
    assert sorted(served) == list(range(900))


@pytest.mark.timeout(20)
def test_a_holder_that_is_killed_leaves_the_queue_free_and_no_file() -> None:
    fd = shared_file(1)
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        with SharedCursors(os.dup(fd)).state(0):
            os.write(tell, b"x")
            time.sleep(60)
    os.read(ready, 1)  # the child holds the cursor
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with SharedCursors(os.dup(fd)).state(0) as cursor:
        cursor.position = 7
        assert cursor.position == 7
    assert "memfd:autotune-arrivals" in str(Path(f"/proc/self/fd/{fd}").readlink())
    assert not Path("/dev/shm/autotune-arrivals").exists()
    os.close(fd)
