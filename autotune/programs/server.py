"""The instances behind one queue, which forms batches."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import math
import multiprocessing
import os
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from autotune.programs.instance import Runtime, instance_loop, instance_process
from autotune.programs.memory import Array, Layout, Settings, as_type

MAX_QUEUED_BATCHES = 64  # per instance; what comes on top is refused
START_LIMIT_S = 600.0
CALL_LIMIT_S = 600.0


class Request:
    """Some items that came together; they may be answered in several batches.

    Args:
        shared: What it has in common with others of a batch: its inputs without items.
    """

    def __init__(self, inputs: list[Array], items: int, shared: bytes = b"") -> None:
        self.inputs, self.items, self.shared = inputs, items, shared
        self.came_s = time.monotonic()
        self.taken = 0
        self._answers: dict[int, list[Array]] = {}
        self._lock = threading.Lock()  # several instances may answer parts of it
        self.future: concurrent.futures.Future[list[Array]] = concurrent.futures.Future()

    def answer(self, start: int, outputs: list[Array]) -> None:
        """Take the outputs of the items from `start` on."""
        with self._lock:
            self._answers[start] = outputs
            parts = [self._answers[start] for start in sorted(self._answers)]
        if sum(len(part[0]) for part in parts) == self.items:
            whole = parts[0] if len(parts) == 1 else list(map(np.concatenate, zip(*parts)))  # noqa: B905
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                self.future.set_result(whole)

    def fail(self, error: Exception) -> None:
        """Answer with an error, if nothing was answered."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.future.set_exception(error)


Taken = list[tuple[Request, int, int]]
"""Parts of requests, each from an item to another, that go into one batch."""


class Batches:
    """Requests that wait; whoever is free takes as many items as wait, up to a batch.

    The oldest request is held back until a batch is full, or until it has waited for
    `max_delay_s`.
    """

    def __init__(self, batch_size: int, max_delay_s: float, most_items: int) -> None:
        self._batch_size, self._max_delay_s, self._most = batch_size, max_delay_s, most_items
        self._waiting: collections.deque[Request] = collections.deque()
        self._items = 0
        self._changed = threading.Condition()
        self._closed = False

    def put(self, request: Request) -> None:
        """Append a request.

        Raises:
            OverflowError: Too much is waiting already. RuntimeError: The server was closed.
        """
        with self._changed:
            if self._closed:
                raise RuntimeError("the server was closed")
            if self._items + request.items > self._most:
                raise OverflowError(f"{self._items} items are waiting, {self._most} are the most")
            self._waiting.append(request)
            self._items += request.items
            self._changed.notify()

    def take(self) -> Taken:
        """Wait for a batch and take it; empty when the server is closed."""
        with self._changed:
            while True:
                if self._closed:
                    return []
                if not self._waiting:
                    self._changed.wait()
                    continue
                left_s = self._waiting[0].came_s + self._max_delay_s - time.monotonic()
                if self._items >= self._batch_size or left_s <= 0:
                    return self._collect()
                self._changed.wait(left_s)

    def _collect(self) -> Taken:
        room = self._batch_size
        taken: Taken = []
        while room and self._waiting:
            request = self._waiting[0]
            if taken and request.shared != taken[0][0].shared:
                break
            count = min(room, request.items - request.taken)
            taken.append((request, request.taken, request.taken + count))
            request.taken += count
            room -= count
            if request.taken == request.items:
                self._waiting.popleft()
        self._items -= self._batch_size - room
        if self._waiting:
            self._changed.notify()
        return taken

    @property
    def closed(self) -> bool:
        """Whether nothing is handed out any more."""
        return self._closed

    def close(self) -> None:
        """Hand out nothing more; what waits is cancelled."""
        with self._changed:
            self._closed = True
            for request in self._waiting:
                request.future.cancel()
            self._waiting.clear()
            self._changed.notify_all()


class Server:
    """The instances of a configuration behind one queue.

        with Server(MyRuntime, SETTINGS) as server:
            outputs = server.submit({"x": array_of_some_items}).result()

    Raises:
        RuntimeError: An instance cannot be started.
    """

    def __init__(self, make: type[Runtime], settings: Settings) -> None:
        self._settings, self._layout = settings, Layout.of(settings)
        count = settings["instance_count"]
        most = MAX_QUEUED_BATCHES * count * settings["batch_size"]
        self._batches = Batches(settings["batch_size"], settings["max_queue_delay_s"], most)
        os.environ.update(settings["environment"])  # read when a process of an instance starts
        context = multiprocessing.get_context("spawn")
        size = self._layout.bytes_for(settings["micro_batch_count"])
        as_threads = settings["instance_mode"] == "thread"
        self._memory = [context.RawArray("B", size) for _ in range(count)]
        self._connections: list[Connection] = []
        self._processes: list[Any] = []
        for index, memory in enumerate(self._memory):
            ours, theirs = context.Pipe()
            arguments = (make, settings, index, memory, theirs)
            process: Any = (
                threading.Thread(target=instance_loop, args=arguments, daemon=True)
                if as_threads
                else context.Process(target=instance_process, args=arguments, daemon=True)
            )
            process.start()
            if not as_threads:
                theirs.close()
            self._connections.append(ours)
            self._processes.append(process)
            if as_threads:  # importing is not safe in several threads at once
                self._expect(index, "ready", START_LIMIT_S)
        if not as_threads:
            for index in range(count):
                self._expect(index, "ready", START_LIMIT_S)
        self._threads = [
            threading.Thread(target=self._feed, args=(index,), daemon=True)
            for index in range(count)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def closed(self) -> bool:
        """True once it was closed, or an instance has ended."""
        return self._batches.closed

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, inputs: dict[str, Any]) -> concurrent.futures.Future[list[Array]]:
        """Queue one request of some items.

        Args:
            inputs: Every input by its name; the axis that counts items may have any size.
        Returns:
            The outputs, each with one row per item; ValueError if the model fails with them.
        Raises:
            ValueError: An input is missing, unknown, or of a wrong shape or type.
            OverflowError: Too much is waiting already.
        """
        arrays, count = self._checked(inputs)
        fields = zip(self._layout.fields, arrays, strict=True)
        shared = b"".join(array.tobytes() for field, array in fields if field.axis is None)
        request = Request(arrays, count, shared)
        self._batches.put(request)
        return request.future

    def answer(self, inputs: dict[str, Any]) -> list[Array]:
        """Answer any number of items, a few batches of them in the queue at a time.

        Raises:
            As `submit`.
        """
        _, count = self._checked(inputs)
        step = self._settings["batch_size"] * self._settings["instance_count"]
        answers = []
        for start in range(0, count, step):
            part = {
                field.name: field.part(np.asarray(inputs[field.name]), start, start + step)
                for field in self._layout.fields
            }
            answers.append(self.submit(part).result())
        return list(map(np.concatenate, zip(*answers)))  # noqa: B905

    def back_to_back(self, seconds: float) -> dict[str, Any]:
        """Measure the instances with full batches, one call after the other, no queue."""
        indices = range(len(self._connections))
        for connection in self._connections:
            connection.send(("warm",))
        for index in indices:
            self._expect(index, "warm", CALL_LIMIT_S)
        start_s = time.monotonic() + 0.2
        for connection in self._connections:
            connection.send(("bench", start_s, start_s + seconds))
        calls = [self._expect(index, "times", seconds + CALL_LIMIT_S) for index in indices]
        size = self._settings["batch_size"]
        rate = sum(len(times) * size / (times[-1, 1] - times[0, 0]) for times in calls)
        latency_s = np.sort(np.concatenate([times[:, 1] - times[:, 0] for times in calls]))
        return figures(rate, latency_s, seconds)

    def close(self) -> None:
        """End the instances."""
        self._batches.close()
        for thread in self._threads:
            thread.join(CALL_LIMIT_S)
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(10)

    def _checked(self, inputs: dict[str, Any]) -> tuple[list[Array], int]:
        names = [field.name for field in self._layout.fields]
        if set(inputs) != set(names):
            raise ValueError(f"the inputs are {', '.join(names)}; given are {', '.join(inputs)}")
        arrays, counts = [], set()
        for field in self._layout.fields:
            array = as_type(np.asarray(inputs[field.name]), field)
            wanted = list(field.shape)
            if field.axis is not None and array.ndim == len(wanted):
                counts.add(array.shape[field.axis])
                wanted[field.axis] = array.shape[field.axis]
            if list(array.shape) != wanted:
                raise ValueError(f"{field.name} has the shape {array.shape}, wanted {wanted}")
            arrays.append(array)
        if len(counts) != 1 or not min(counts):
            raise ValueError(f"the inputs have {sorted(counts)} items; give the same, at least 1")
        return arrays, counts.pop()

    def _feed(self, index: int) -> None:
        """Keep an instance busy with batches of the queue."""
        flat = np.frombuffer(self._memory[index], dtype=np.uint8)
        chunks = self._layout.chunks(flat, self._settings["micro_batch_count"])
        views = [self._layout.views(chunk) for chunk in chunks]
        while taken := self._batches.take():
            try:
                self._answer(index, views, taken)
            except Exception as error:
                for request, _, _ in taken:
                    request.fail(error)
                self._batches.close()  # an instance is gone: whoever runs this starts it again
                return

    def _answer(self, index: int, views: list[list[Array]], taken: Taken) -> None:
        """Run a batch; one that the model refuses request by request, as most may be all right.

        Raises:
            RuntimeError: The instance is gone.
        """
        self._write(views, taken)
        self._connections[index].send(("run", sum(end - start for _, start, end in taken)))
        kind, found = self._received(index, CALL_LIMIT_S)
        if kind == "refused" and len(taken) > 1:
            for part in taken:
                self._answer(index, views, [part])
        elif kind == "refused":
            taken[0][0].fail(ValueError(found))
        elif kind != "done":
            raise RuntimeError(f"instance {index}: {found}")
        else:
            done = 0
            for request, start, end in taken:
                request.answer(start, [tensor[done : done + end - start] for tensor in found])
                done += end - start

    def _write(self, views: list[list[Array]], taken: Taken) -> None:
        """Write requests straight into the memory that the instance copies from."""
        size, done = self._layout.items, 0
        for request, start, end in taken:
            while start < end:
                part, place = divmod(done, size)
                count = min(size - place, end - start)
                for field, view, array in zip(
                    self._layout.fields, views[part], request.inputs, strict=True
                ):
                    field.part(view, place, place + count)[...] = field.part(
                        array, start, start + count
                    )
                start, done = start + count, done + count

    def _expect(self, index: int, kind: str, limit_s: float) -> Any:
        found, answer = self._received(index, limit_s)
        if found != kind:
            raise RuntimeError(f"instance {index}: {answer}")
        return answer

    def _received(self, index: int, limit_s: float) -> tuple[str, Any]:
        connection = self._connections[index]
        try:
            if not connection.poll(limit_s):
                raise RuntimeError(f"instance {index} did not answer within {limit_s:g} s")
            kind, answer = connection.recv()
        except (EOFError, OSError):
            raise RuntimeError(f"instance {index} has ended; its output says why") from None
        return kind, answer


def figures(rate: float, latency_s: Array, seconds: float) -> dict[str, Any]:
    """Throughput and latencies (nearest-rank quantiles), as `autotune` prints them."""
    rank = {q: max(math.ceil(q * len(latency_s)) - 1, 0) for q in (0.5, 0.99)}
    return {
        "throughput_items_per_s": float(rate),
        "latency_p50_s": float(latency_s[rank[0.5]]),
        "latency_p99_s": float(latency_s[rank[0.99]]),
        "call_count": len(latency_s),
        "duration_s": seconds,
    }
