"""Further simulated kinds, written after the search was finished and never tuned to.

Other parameters than the usual five, other mechanisms: what a sampler shaped on `landscapes`
may not have been shaped for.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from landscapes import Floats, Landscape, Truth, Value, limit_of

Kind = Callable[[dict[str, "Column"], np.random.Generator], Truth]
Column = np.ndarray


def _draw(rng: np.random.Generator, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def thread_pool(c: dict[str, Floats], rng: np.random.Generator) -> Truth:
    """A CPU server: threads and instances share 16 cores, hyper-threads help a little, and an
    allocator setting matters to small batches."""
    threads, count, batch = c["cores_per_instance"], c["instance_count"], c["batch_size"]
    wanted = threads * count
    speed = np.minimum(wanted, 16.0) ** 0.95 * np.where(
        wanted > 16, 0.93 / (1 + 0.01 * (wanted - 16)), 1.0
    )
    share = speed / count
    serial = _draw(rng, 1e-4, 4e-4) * np.where(c["env.MALLOC"] > 0, 0.8, 1.0)
    cycle = serial + batch * _draw(rng, 2e-5, 2e-4) / share
    cycle = cycle + 6e-6 * threads * np.log1p(threads)
    tail = 1.1 + 0.06 * np.maximum(wanted / 16 - 1, 0) + 0.01 * count
    memory = count * (3e8 + 1e6 * batch)
    return Truth(cycle_s=cycle, tail=tail, memory=memory)


def token_model(c: dict[str, Floats], rng: np.random.Generator) -> Truth:
    """A decoder: weights are read once per step whatever the batch, the cache of keys and values
    fills the memory, and a precision changes both."""
    batch, count, small = c["batch_size"], c["instance_count"], c["precision"]
    read = _draw(rng, 3e-3, 1.5e-2) * np.array([1.0, 0.55, 0.35])[small.astype(int)]
    per_item = _draw(rng, 2e-5, 2e-4) * np.array([1.0, 0.6, 0.5])[small.astype(int)]
    cycle = np.maximum(read, batch * per_item) * count**0.9 + 2e-4 * np.log2(batch + 1)
    memory = count * (8e9 * np.array([1.0, 0.5, 0.25])[small.astype(int)] + batch * 6e7)
    status = np.where(memory > 3.2e10, "oom", "ok")
    return Truth(cycle_s=cycle, tail=1.06 + 0.02 * count, memory=memory, status=status)


def two_stage(c: dict[str, Floats], rng: np.random.Generator) -> Truth:
    """A pipeline of two devices: micro-batches fill it, each costs a hand-over; the split of
    layers must balance a heavy embedding."""
    batch, micro, split = c["global_batch_size"], c["micro_batch_count"], c["stage_split"]
    work = batch * _draw(rng, 1e-5, 1e-4)
    heavy = rng.uniform(0.3, 0.6)
    first = work * (heavy + (1 - heavy) * split / 8)
    second = work * (1 - heavy) * (1 - split / 8) + 1e-3
    slowest = np.maximum(first, second)
    over = _draw(rng, 1e-4, 1e-3) * micro * np.array([1.0, 0.6])[c["schedule"].astype(int)]
    cycle = slowest + (first + second - slowest) / micro + over + 2e-4 * batch / micro**2 * 1e-2
    memory = batch / micro * 4e7 * np.where(c["schedule"] > 0, 0.5, 1.0) + 1e9
    status = np.where(memory > 2e10, "oom", "ok")
    return Truth(cycle_s=cycle, tail=1.08 + 0 * cycle, memory=memory, status=status)


def sawtooth(c: dict[str, Floats], rng: np.random.Generator) -> Truth:
    """Waves of thread blocks: throughput falls at every start of a wave; a queue waits too."""
    batch, count = c["batch_size"], c["instance_count"]
    wave = float(rng.choice([24, 40, 48, 80, 108]))
    waves = np.ceil(batch * count / wave)
    cycle = _draw(rng, 1e-4, 8e-4) + waves * _draw(rng, 1e-4, 6e-4)
    cycle = cycle * (1 + 0.04 * (count - 1)) * np.where(c["batched_h2d"] > 0, 0.9, 1.0)
    cycle = cycle + 0.4 * c["max_queue_delay"]
    cycle = np.where(c["max_queue_delay"] > 0, 0.97 * cycle, cycle)
    tail = 1.12 + 0.5 * c["max_queue_delay"] / cycle
    return Truth(cycle_s=cycle, tail=tail, memory=count * (5e8 + 2e6 * batch))


LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
HELD_OUT: dict[str, tuple[Kind, dict[str, tuple[Value, ...]]]] = {
    "thread_pool": (
        thread_pool,
        {
            "batch_size": LADDER,
            "instance_count": (1, 2, 3, 4, 6, 8, 12, 16),
            "cores_per_instance": (1, 2, 3, 4, 6, 8, 12, 16),
            "env.MALLOC": ("0", "1"),
        },
    ),
    "token_model": (
        token_model,
        {
            "batch_size": LADDER,
            "instance_count": (1, 2, 3, 4),
            "precision": ("float16", "int8", "int4"),
            "env.GRAPH": ("0", "1"),
        },
    ),
    "two_stage": (
        two_stage,
        {
            "global_batch_size": tuple(8 * b for b in LADDER),
            "micro_batch_count": (1, 2, 4, 8, 16, 32),
            "stage_split": (1, 2, 3, 4, 5, 6, 7),
            "schedule": ("gpipe", "1f1b"),
        },
    ),
    "sawtooth": (
        sawtooth,
        {
            "batch_size": tuple(range(4, 260, 4)),
            "instance_count": (1, 2, 3, 4, 5, 6),
            "batched_h2d": (False, True),
            "max_queue_delay": (0.0, 0.0005, 0.002),
        },
    ),
}
"""Kind to its model and parameters; each has a limit on P99."""


def draw_held_out(kind: str, seed: int, noise: float = 0.03) -> Landscape:
    """Draw one landscape of a held-out kind."""
    model, params = HELD_OUT[kind]
    rng = np.random.default_rng([seed, *kind.encode()])
    sizes = [len(v) for v in params.values()]
    rows = np.stack(np.unravel_index(np.arange(math.prod(sizes)), sizes), axis=1)
    columns = {
        name: np.array([_number(values, i) for i in rows[:, k]])
        for k, (name, values) in enumerate(params.items())
    }
    truth = model(columns, rng)
    status = np.full(len(rows), "ok") if truth.status is None else truth.status
    batch = columns[next(name for name in params if name.endswith("batch_size"))]
    throughput = columns.get("instance_count", np.ones(len(rows))) * batch / truth.cycle_s
    return Landscape(
        name=f"{kind}-{seed}",
        params=params,
        rows=rows,
        throughput=throughput,
        latency_p99_s=truth.cycle_s * truth.tail,
        memory=truth.memory,
        status=status,
        cost_s=np.full(len(rows), 2.5),
        limit_s=limit_of(truth, throughput, status == "ok", rng.uniform(0.1, 0.6)),
        noise=noise,
    )


def _number(values: tuple[Value, ...], index: int) -> float:
    """A choice as a number; the place of one that is none."""
    value = values[index]
    return float(index) if isinstance(value, str) else float(value)
