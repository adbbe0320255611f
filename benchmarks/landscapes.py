"""Simulated serving landscapes for the search benchmark: kinds that differ in their structure.

Every kind is a small cost model of its own, drawn anew for every seed; none uses the search's
own formula. Times are seconds per cycle in which each instance serves one batch.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from autotune.core.objective import Limit, Objective
from autotune.core.records import Config, WorkloadSpec
from autotune.space.search_space import Budget, Parameter, SearchSpace, TrialOptions, settled

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Value = bool | int | float | str

SPIKE_SHARE, SPIKE_RANGE = 0.03, (1.05, 1.3)
BATCHES = (
    *(1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448),
    *(512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096),
)
CORES = ("all", "24|48", "16|16", "12|24", "6|12")
CUBES = {"all": 24.0, "24|48": 24.0, "16|16": 16.0, "12|24": 12.0, "6|12": 6.0}


@dataclass(frozen=True, kw_only=True)
class Landscape:
    """The true figures of every configuration of a grid.

    Attributes:
        params: Parameter to its values; a row of `rows` holds one index per parameter.
        status: "ok", or why a configuration cannot run.
        limit_s: Limit on P99, None for none.
        noise: Of a measured throughput, relative.
        copy_share: Of a cycle, what is copies that nothing hides; None: not told.
    """

    name: str
    params: dict[str, tuple[Value, ...]]
    rows: Ints
    throughput: Floats
    latency_p99_s: Floats
    memory: Floats
    status: npt.NDArray[np.str_]
    cost_s: Floats
    limit_s: float | None
    noise: float = 0.03
    copy_share: Floats | None = None

    @cached_property
    def configs(self) -> tuple[Config, ...]:
        """The configuration of every row."""
        names, values = list(self.params), list(self.params.values())
        return tuple(
            Config.from_dict({n: v[i] for n, v, i in zip(names, values, row, strict=True)})
            for row in self.rows.tolist()
        )

    @property
    def usable(self) -> npt.NDArray[np.bool_]:
        """Which configurations run and truly hold the limit."""
        runs: npt.NDArray[np.bool_] = self.status == "ok"
        return runs if self.limit_s is None else runs & (self.latency_p99_s <= self.limit_s)

    @property
    def optimum(self) -> float:
        """The best true throughput of a usable configuration."""
        return float(self.throughput[self.usable].max())

    def regret(self, index: int | None) -> float:
        """Share of the optimum lost by recommending a configuration; 1 if it breaks the limit."""
        if index is None or not self.usable[index]:
            return 1.0
        return 1.0 - float(self.throughput[index]) / self.optimum

    def measure(self, index: int, rng: np.random.Generator) -> tuple[float, float, float]:
        """Throughput, P99 and memory of one noisy trial."""
        throughput = self.throughput[index] * math.exp(rng.normal(0, self.noise))
        tail = self.latency_p99_s[index] * math.exp(rng.normal(0, 1.2 * self.noise))
        if rng.random() < SPIKE_SHARE:
            tail *= rng.uniform(*SPIKE_RANGE)
        return throughput, tail, self.memory[index] * (1 + rng.normal(0, 0.002))


def space_of(land: Landscape, trials: int, sampler: str, seed: int) -> SearchSpace:
    """The landscape as the space of a study."""
    limits = () if land.limit_s is None else (Limit(metric="latency_p99", bound=land.limit_s),)
    is_full = len(land.rows) == math.prod(len(v) for v in land.params.values())
    return settled(
        SearchSpace(
            study=land.name,
            workload=WorkloadSpec(kind="replay"),
            device="simulated",
            objective=Objective(name="benchmark", limits=limits),
            params=tuple(
                Parameter(name=n, choices=v, log=n == "batch_size") for n, v in land.params.items()
            ),
            rows=None if is_full else frozenset(land.configs),
            budget=Budget(trials=trials),
            sampler=sampler,
            trial=TrialOptions(seed=seed),
        )
    )


def read_grid(path: Path, limit_s: float | None, noise: float = 0.03) -> Landscape:
    """A recorded grid in the replay format."""
    with path.open(newline="") as file:
        records = list(csv.DictReader(file))
    names = [n for n in records[0] if n not in _RESULT_COLUMNS]
    params = {n: tuple(dict.fromkeys(_value(r[n]) for r in records)) for n in names}
    params = {n: tuple(sorted(v, key=_order)) for n, v in params.items()}
    rows = np.array([[params[n].index(_value(r[n])) for n in names] for r in records])
    columns = {
        n: np.array([float(r[n]) if r.get(n) else math.nan for r in records])
        for n in _RESULT_COLUMNS
        if n != "status"
    }
    return Landscape(
        name=path.stem if limit_s is None else f"{path.stem} {limit_s * 1e3:g} ms",
        params=params,
        rows=rows,
        throughput=columns["throughput_items_per_s"],
        latency_p99_s=columns["latency_p99_s"],
        memory=columns["memory_peak_bytes"],
        status=np.array([r["status"] for r in records]),
        cost_s=columns["cost_s"],
        limit_s=limit_s,
        noise=noise,
    )


def read_triton(path: Path, noise: float = 0.03, least: int = 30) -> Iterator[Landscape]:
    """Published sweeps over batch, concurrency and how the model is served, one per source.

    The limit is the P99 that two fifths of the configurations hold.
    """
    with path.open(newline="") as file:
        records = list(csv.DictReader(file))
    for source in dict.fromkeys((r["source_path"], r["gpu"]) for r in records):
        found: dict[tuple[int, int, str], dict[str, str]] = {}
        for r in records:
            if (r["source_path"], r["gpu"]) == source and r["p99_latency_ms"]:
                served = " ".join(r[n] for n in ("format", "backend", "accelerator", "precision"))
                found[int(r["client_batch"]), int(r["concurrency"]), served] = r
        if len(found) < least:
            continue
        params: dict[str, tuple[Value, ...]] = {
            name: tuple(sorted({key[k] for key in found}))
            for k, name in enumerate(("batch_size", "concurrency", "serving"))
        }
        rows = [[v.index(x) for v, x in zip(params.values(), k, strict=True)] for k in found]
        tail_s = np.array([float(r["p99_latency_ms"]) for r in found.values()]) / 1e3
        yield Landscape(
            name=f"triton {source[0].split('/')[-2]}"[:16],
            params=params,
            rows=np.array(rows),
            throughput=np.array([float(r["inferences_per_s"]) for r in found.values()]),
            latency_p99_s=tail_s,
            memory=np.full(len(rows), 1e9),
            status=np.full(len(rows), "ok"),
            cost_s=np.full(len(rows), 3.0),
            limit_s=float(np.quantile(tail_s, 0.4)),
            noise=noise,
        )


_RESULT_COLUMNS = (
    *("throughput_items_per_s", "throughput_spread_items_per_s", "latency_mean_s"),
    *("latency_p50_s", "latency_p99_s", "memory_peak_bytes", "status", "cost_s"),
)


def _value(text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        return text


def _order(value: Value) -> tuple[bool, float]:
    return (False, float(value)) if isinstance(value, (bool, int, float)) else (True, 0.0)


# --- simulated kinds ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The usual five parameters of every configuration, and the kind's random numbers."""

    batch: Floats
    instances: Floats
    cubes: Floats
    shared: Floats  # 1 where all instances share all cores
    packed: Floats
    slices: Floats
    rng: np.random.Generator

    def draw(self, low: float, high: float) -> float:
        """A number whose logarithm is uniform."""
        return math.exp(self.rng.uniform(math.log(low), math.log(high)))

    @property
    def crowd(self) -> Floats:
        """By how much the instances ask for more than the 24 cubes there are."""
        return np.maximum(1.0, self.instances * self.cubes / 24.0)


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What a kind says: cycle time, P99 over cycle time, memory, what cannot run, copies."""

    cycle_s: Floats
    tail: Floats
    memory: Floats
    status: npt.NDArray[np.str_] | None = None
    copy_s: Floats | None = None


def padding(c: Columns) -> Truth:
    """Slices are padded to whole tiles; cores split the work, sharing costs a little."""
    tile = float(c.rng.choice([16, 32, 64]))
    per_item = c.draw(1e-6, 2e-5)
    tiles = np.ceil(c.batch / c.slices / tile) * tile
    compute = c.slices * tiles * per_item * (24.0 / c.cubes) ** 0.8
    compute = np.maximum(compute, compute * c.crowd**0.9 / 1.0)
    copy = c.draw(1e-4, 6e-4) * np.where(c.packed > 0, 0.5, 1.0) * (1 + 0.15 * c.instances)
    cycle = copy + compute + c.slices * c.draw(2e-5, 1e-4)
    tail = c.draw(1.08, 1.25) + 0.02 * c.instances
    return Truth(cycle_s=cycle, tail=tail + 0 * cycle, memory=_memory(c, 8e6), copy_s=copy)


def cliff(c: Columns) -> Truth:
    """Beyond a slice size the working set leaves the cache: items suddenly cost much more."""
    per_item = c.draw(2e-6, 4e-5)
    edge = c.draw(40, 700) * (c.cubes / 24.0)
    over = 1.0 / (1.0 + np.exp(-6.0 * (np.log(c.batch / c.slices) - np.log(edge))))
    compute = c.batch * per_item * (1.0 + c.draw(1.0, 3.0) * over) * (24.0 / c.cubes) ** 0.6
    launch = c.draw(2e-4, 1.5e-3) * (1.0 + 0.5 * (c.slices - 1)) * np.where(c.packed > 0, 0.8, 1.0)
    cycle = (launch + compute) * c.crowd ** c.draw(0.5, 0.9)
    tail = 1.12 + 0.25 * over * (1 - over) * 4 + 0.03 * (c.instances - 1)
    return Truth(cycle_s=cycle, tail=tail, memory=_memory(c, 6e6))


def memory_wall(c: Columns) -> Truth:
    """Large throughput lies close to out of memory, and some partitions do not compile."""
    per_item = c.draw(5e-6, 3e-5)
    cycle = c.draw(3e-4, 2e-3) * np.where(c.packed > 0, 0.7, 1.0) + c.batch * per_item * (
        24.0 / c.cubes
    ) ** 0.5 * c.crowd**0.6 * (1 + 0.05 * (c.slices - 1))
    memory = _memory(c, c.draw(2e7, 6e7))
    capacity = np.quantile(memory, c.rng.uniform(0.6, 0.85))
    status = np.where(memory > capacity, "oom", "ok")
    too_large = (c.cubes <= 12) & (c.batch / c.slices > c.draw(200, 1500))
    status = np.where(too_large & (status == "ok"), "compile_error", status)
    return Truth(cycle_s=cycle, tail=1.15 + 0 * cycle, memory=memory, status=status)


def host_serial(c: Columns) -> Truth:
    """The host prepares one instance after the other: X = I b / max(L, I h), softly."""
    host = c.draw(1.5e-4, 6e-4) * np.where(c.packed > 0, 0.5, 1.0) + c.batch * c.draw(1e-8, 3e-7)
    device = c.draw(2e-4, 1e-3) + c.batch * c.draw(1e-6, 1e-5) * (24.0 / c.cubes) ** 0.7
    device = device * c.crowd ** c.draw(0.7, 1.0) + (c.slices - 1) * 1.5e-4
    waiting = c.instances * host
    cycle = (waiting**3 + (host + device) ** 3) ** (1 / 3)
    tail = 1.05 + 0.35 * waiting / (waiting + device)
    return Truth(cycle_s=cycle, tail=tail, memory=_memory(c, 5e6))


def interference(c: Columns) -> Truth:
    """Sharing all cores is fast for few instances and ruinous for many; splits are steady."""
    alone = c.draw(2e-4, 8e-4) + c.batch * c.draw(2e-6, 2e-5)
    fight = 1.0 + c.draw(0.15, 0.6) * (c.instances - 1) ** 1.3
    split = (24.0 / c.cubes) ** 0.75 * c.crowd**1.1
    cycle = alone * np.where(c.shared > 0, fight, split) * np.where(c.packed > 0, 0.85, 1.0)
    cycle = cycle * np.array([1.0, 0.93, 1.06])[np.log2(c.slices).astype(int)]
    tail = np.where(c.shared > 0, 1.1 + 0.3 * (c.instances - 1), 1.1 + 0.1 * (c.crowd - 1))
    return Truth(cycle_s=cycle, tail=tail, memory=_memory(c, 5e6))


def wavy_tail(c: Columns) -> Truth:
    """P99 is not monotone in the batch: collections and retries hit some sizes."""
    cycle = (
        c.draw(3e-4, 1.2e-3) * np.where(c.packed > 0, 0.75, 1.0)
        + c.batch * c.draw(1e-6, 1.5e-5) * (24.0 / c.cubes) ** 0.6 * c.crowd**0.8
    )
    cycle = cycle + 8e-5 * (c.slices - 1) - np.minimum(0.2 * cycle, 4e-5 * (c.slices > 1) * 2)
    phase = c.rng.uniform(0, 2 * math.pi)
    wave = 0.5 + 0.5 * np.sin(1.7 * np.log(c.batch) + phase + 0.4 * c.instances)
    return Truth(cycle_s=cycle, tail=1.08 + c.draw(0.3, 0.9) * wave, memory=_memory(c, 5e6))


def overlap(c: Columns) -> Truth:
    """Copies hide under compute when the batch is sliced: the best slice count is inside."""
    copy = c.batch * c.draw(2e-6, 1.5e-5) * np.where(c.packed > 0, 0.6, 1.0) + c.draw(5e-5, 3e-4)
    compute = c.batch * c.draw(3e-6, 1.5e-5) * (24.0 / c.cubes) ** 0.7 * c.crowd**0.9
    hidden = np.minimum(copy, compute) * (1 - 1 / c.slices)
    cycle = copy + compute - hidden + c.draw(5e-5, 4e-4) * c.slices
    tail, exposed = 1.1 + 0.04 * c.instances, copy - hidden
    return Truth(cycle_s=cycle, tail=tail, memory=_memory(c, 7e6), copy_s=exposed)


def flat(c: Columns) -> Truth:
    """Nothing matters much: within a few per cent all large configurations are the same."""
    per_item = c.draw(1e-5, 1e-4)
    cycle = c.instances * c.batch * per_item * (1 + 0.03 * np.sin(3 * np.log(c.batch + 1)))
    cycle = cycle + c.instances * 2e-5 * (2 - c.packed)
    return Truth(cycle_s=cycle, tail=1.1 + 0 * cycle, memory=_memory(c, 5e6))


def only_batch(c: Columns) -> Truth:
    """A single free parameter, with a throughput that falls beyond its peak."""
    small = c.draw(2e-4, 2e-3)
    cycle = small + c.batch * c.draw(2e-6, 2e-5) * (1 + (c.batch / c.draw(300, 2000)) ** 1.5)
    return Truth(cycle_s=cycle, tail=1.15 + 0 * cycle, memory=_memory(c, 5e6))


KINDS: dict[str, tuple[Callable[[Columns], Truth], bool]] = {
    "padding": (padding, True),
    "cliff": (cliff, True),
    "memory_wall": (memory_wall, True),
    "host_serial": (host_serial, True),
    "interference": (interference, True),
    "wavy_tail": (wavy_tail, True),
    "overlap": (overlap, True),
    "flat": (flat, False),
    "only_batch": (only_batch, False),
}
"""Kind to its model and whether it has a limit on P99."""


def simulate(kind: str, seed: int, noise: float = 0.03) -> Landscape:
    """Draw one landscape of a kind."""
    model, limited = KINDS[kind]
    params: dict[str, tuple[Value, ...]] = {"batch_size": BATCHES}
    if kind != "only_batch":
        params |= {
            "instance_count": tuple(range(1, 9)),
            "cores_per_instance": CORES,
            "batched_h2d": (False, True),
            "micro_batch_count": (1, 2, 4),
        }
    sizes = [len(v) for v in params.values()]
    rows = np.stack(np.unravel_index(np.arange(math.prod(sizes)), sizes), axis=1)
    rng = np.random.default_rng([seed, *kind.encode()])
    columns = _columns(params, rows, rng)
    truth = model(columns)
    status = truth.status if truth.status is not None else np.full(len(rows), "ok")
    throughput = columns.instances * columns.batch / truth.cycle_s
    share = rng.uniform(0.05, 0.35)
    return Landscape(
        name=f"{kind}-{seed}",
        params=params,
        rows=rows,
        throughput=throughput,
        latency_p99_s=truth.cycle_s * truth.tail,
        memory=truth.memory,
        status=status,
        cost_s=2.4 + 0.15 * columns.instances + 1e-4 * columns.batch,
        limit_s=limit_of(truth, throughput, status == "ok", share) if limited else None,
        noise=noise,
        copy_share=None if truth.copy_s is None else truth.copy_s / truth.cycle_s,
    )


def _columns(params: dict[str, tuple[Value, ...]], rows: Ints, rng: np.random.Generator) -> Columns:
    def column(name: str, default: Value) -> list[Value]:
        if name not in params:
            return [default] * len(rows)
        return [params[name][i] for i in rows[:, list(params).index(name)]]

    cores = column("cores_per_instance", "24|48")
    return Columns(
        batch=np.array(column("batch_size", 1), float),
        instances=np.array(column("instance_count", 1), float),
        cubes=np.array([CUBES[str(c)] for c in cores]),
        shared=np.array([c == "all" for c in cores], float),
        packed=np.array(column("batched_h2d", False), float),
        slices=np.array(column("micro_batch_count", 1), float),
        rng=rng,
    )


def _memory(c: Columns, per_item: float) -> Floats:
    return c.instances * (4e8 + per_item * c.batch / c.slices + 2e5 * c.batch)


def limit_of(truth: Truth, throughput: Floats, runs: npt.NDArray[np.bool_], share: float) -> float:
    """A limit that about `share` of the configurations hold, and the best of them clearly.

    Nobody can tell an optimum within a measurement's noise of the limit from one that breaks
    it, and a person would not choose such a limit.
    """
    tail_s = truth.cycle_s * truth.tail
    limit = float(np.quantile(tail_s[runs], share))
    for _ in range(100):
        usable = runs & (tail_s <= limit)
        best = int(np.argmax(np.where(usable, throughput, 0.0)))
        if tail_s[best] <= 0.95 * limit:
            break
        limit = float(tail_s[best]) / 0.94
    return limit
