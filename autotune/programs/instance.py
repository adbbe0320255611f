"""One instance: a model on its cores, and what it does on order."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from autotune.programs.memory import Array, Layout, Settings, aligned, as_type

MIN_WARMUP_CALLS, MIN_WARMUP_S = 10, 0.3
RING_BYTES, MAX_RING = 64 * 2**20, 8


class Runtime(Protocol):
    """A model in a framework. Built once per instance, on the instance's cores."""

    def __init__(self, settings: Settings, index: int, layout: Layout) -> None: ...

    def adopt(self, chunks: Sequence[Array], *, changes: bool) -> Any:
        """Get to know a call's host buffers, one per micro-batch; what `call` takes instead.

        Args:
            changes: Whether other requests will be written there.
        """

    def call(self, adopted: Any, items: Sequence[int]) -> Any:
        """Copy and run micro-batches of so many items."""

    def outputs(self, result: Any) -> list[list[Array]]:
        """What `call` returned as arrays, per micro-batch; the next call may overwrite them.

        They may hold more items than were asked for, where a model runs whole micro-batches only.
        """


def find_file(name: str) -> Path:
    """A model's file: beside this program, else where it was when it was exported.

    Raises:
        SystemExit: It is at neither place.
    """
    beside = Path(__file__).resolve().parent / Path(name).name
    for path in (beside, Path(name)):
        if path.is_file():
            return path
    raise SystemExit(f"there is neither {beside} nor {name}")


def parts_of(items: int, layout: Layout) -> list[int]:
    """Items of each micro-batch: full ones first, what is left over last."""
    full, rest = divmod(items, layout.items)
    return [layout.items] * full + ([rest] if rest else [])


def bind(settings: Settings, index: int) -> int:
    """Bind this thread to the instance's cores, and threads that it starts: how many they are."""
    wanted = set(settings["cores"][index]) if settings["cores"] else os.sched_getaffinity(0)
    allowed = sorted(os.sched_getaffinity(0))
    if not wanted <= set(allowed):  # another machine than the one that was measured on
        count = len(wanted)
        first = index * count
        if first + count > len(allowed):
            raise SystemExit(f"instance {index} needs {count} cores; there are {len(allowed)}")
        wanted = set(allowed[first : first + count])
        print(f"instance {index}: bound to cores {sorted(wanted)} instead", file=sys.stderr)
    os.sched_setaffinity(0, wanted)
    return len(wanted)


def draw(settings: Settings, layout: Layout, count: int) -> list[list[Array]]:
    """Random inputs of `count` micro-batches, within the ranges that were measured with."""
    drawn = []
    for number in range(count):
        inputs = []
        for index, (spec, field) in enumerate(zip(settings["inputs"], layout.fields, strict=True)):
            rng = np.random.default_rng((settings["seed"], number, index))
            low, high = spec["low"], spec["high"]
            if field.numpy_type.kind == "f" or field.dtype == "bfloat16":
                values: Array = rng.standard_normal(field.shape, dtype=np.float32)
                if low is not None or high is not None:
                    bottom = low or 0.0
                    top = bottom + 1.0 if high is None else high
                    values = rng.random(field.shape, dtype=np.float32) * (top - bottom) + bottom
            else:
                bottom = math.ceil(low or 0)
                top = bottom + 2 if high is None else math.ceil(high)
                values = rng.integers(bottom, top, size=field.shape)
            inputs.append(as_type(values, field))
        drawn.append(inputs)
    return drawn


def bench_ring(runtime: Runtime, settings: Settings, layout: Layout) -> list[Any]:
    """Different requests to take turns with, so that nothing can be answered from memory."""
    count = settings["micro_batch_count"]
    size = layout.bytes_for(count)
    ring = max(2, min(MAX_RING, RING_BYTES // size))
    values = draw(settings, layout, ring * count)
    adopted = []
    for number in range(ring):
        chunks = layout.chunks(aligned(size), count)
        for chunk, inputs in zip(chunks, values[number * count :], strict=False):
            for view, array in zip(layout.views(chunk), inputs, strict=True):
                view[...] = array
        adopted.append(runtime.adopt(chunks, changes=False))
    return adopted


def back_to_back(
    runtime: Runtime, ring: Sequence[Any], parts: list[int], until_s: float, at_least: int = 1
) -> Array:
    """Call after call until the time is up: start and end of each, shape (calls, 2)."""
    times: list[tuple[float, float]] = []
    while len(times) < at_least or times[-1][1] < until_s:
        start_s = time.monotonic()
        runtime.call(ring[len(times) % len(ring)], parts)
        times.append((start_s, time.monotonic()))
    return np.array(times)


def instance_loop(
    make: type[Runtime], settings: Settings, index: int, memory: Any, connection: Connection
) -> None:
    """Build an instance, then answer orders until the other end closes.

    Orders: ("run", items) for what lies in `memory`; ("warm",); ("bench", start, end).
    """
    try:
        layout = Layout.of(settings)
        runtime = make(settings, index, layout)
        flat = np.frombuffer(memory, dtype=np.uint8)
        own = runtime.adopt(layout.chunks(flat, settings["micro_batch_count"]), changes=True)
        first = runtime.call(own, parts_of(settings["batch_size"], layout))
        joined(runtime.outputs(first), settings["batch_size"], layout)
        ring: list[Any] = []
        gc.collect()
        gc.freeze()
        connection.send(("ready", None))
        while True:
            order = connection.recv()
            if order[0] == "run":
                connection.send(answer(runtime, own, flat, order[1], layout))
            elif order[0] == "warm":
                ring = bench_ring(runtime, settings, layout)
                parts = parts_of(settings["batch_size"], layout)
                until_s = time.monotonic() + MIN_WARMUP_S
                back_to_back(runtime, ring, parts, until_s, MIN_WARMUP_CALLS)
                gc.collect()
                gc.disable()
                connection.send(("warm", None))
            else:
                while time.monotonic() < order[1]:
                    time.sleep(max(0.0, min(0.01, order[1] - time.monotonic())))
                connection.send(("times", back_to_back(runtime, ring, parts, order[2])))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except BaseException as error:
        with contextlib.suppress(OSError):
            connection.send(("failed", f"{type(error).__name__}: {error}"))
        raise


def answer(
    runtime: Runtime, own: Any, flat: Array, items: int, layout: Layout
) -> tuple[str, list[Array] | str]:
    """ "done" and the outputs of what lies in `flat`, or "refused" and why.

    Raises:
        Exception: The model fails with zeros too, which it took before: the instance is broken.
    """
    parts = parts_of(items, layout)
    try:
        return "done", joined(runtime.outputs(runtime.call(own, parts)), items, layout)
    except Exception as error:
        flat[:] = 0
        runtime.outputs(runtime.call(own, parts))
        return "refused", f"the model failed with {type(error).__name__}: {error}"


def instance_process(*arguments: Any) -> None:
    """`instance_loop` in a process and session of its own, as it was measured.

    Linux shares cores out by session, so that instances of one would get less beside other
    programs; and a terminal's Ctrl-C is for the server to handle.
    """
    os.setsid()
    instance_loop(*arguments)


def joined(outputs: list[list[Array]], items: int, layout: Layout) -> list[Array]:
    """Outputs of a call's micro-batches, put together; the first axis of each counts items.

    Raises:
        ValueError: It does not.
    """
    parts = parts_of(items, layout)
    whole = []
    for tensors in zip(*outputs, strict=True):
        if any(t.ndim == 0 or len(t) < count for t, count in zip(tensors, parts, strict=True)):
            raise ValueError(f"an output of the shape {tensors[0].shape} has no row per item")
        cut = [tensor[:count] for tensor, count in zip(tensors, parts, strict=True)]
        whole.append(np.concatenate(cut) if len(cut) > 1 else np.array(cut[0]))
    return whole
