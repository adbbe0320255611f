"""Simulated models: declared costs on a virtual clock. What they give is never a measurement.

The model `recommender_a3` follows a vendor's published tuning case: a recommender with 28 input
tensors on an Atlas A3, 10,000 inferences on random inputs per configuration.

    instances  cores    copies    batch   items/s   mean latency
    1          all      separate  128      74,555   1.471 ms
    1          all      separate  256     132,247   1.685 ms
    1          all      packed    128     131,191   0.792 ms
    1          all      packed    256     209,927   1.030 ms
    4          all      separate  128     155,104   2.089 ms
    4          all      separate  256     360,253   2.034 ms
    4          16|16    separate  128     185,415   1.797 ms
    4          16|16    separate  256     384,163   1.850 ms
    4          16|16    packed    128     251,877   1.285 ms
    4          16|16    packed    256     493,065   1.317 ms

Its profiles add the time of the copies (0.740 of 1.383 ms before tuning) and a configuration of
6 instances, "8|8", packed, batch 5096 (3.820 ms, 0.398 ms of it copies, device 72 % busy). One
call of an instance takes

    latency = copy + launches + items x (work + idle / instances^2) + (instances - 1) x contention

and the host spends a further `host_s` per call of any instance, one after the other, so that

    throughput = instances x batch / (latency + instances x host)

Mean error over the ten rows: 2.7 % in throughput, 2.4 % in latency. The worst cell, four
instances without a core limit at batch 128, is 14 % off in throughput: the source's own two
rows there contradict each other under any such law (the larger batch has the lower latency).

Several devices of one machine slow each other down as the option `scaling` declares: with N of
them everything takes 1 + contention (N - 1) + coherency N (N - 1) times as long (Gunther's
Universal Scalability Law, see `measure.scaling`).
"""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from autotune.core.clock import VirtualClock
from autotune.core.diagnosis import Breakdown
from autotune.core.errors import OutOfMemory, UsageError
from autotune.core.records import Config, StageTimes, WorkloadSpec
from autotune.core.units import format_size
from autotune.devices.simulated import CUBE_COUNT, MEMORY_BYTES, VECTOR_COUNT
from autotune.workloads.base import Context, Program
from autotune.workloads.disturbance import OPTION, Disturbance
from autotune.workloads.noise import read_noise

DEFAULT_NOISE = 0.02  # standard deviation of a call's time, relative
STALL_SHARE = 0.004  # calls that something outside delays
STALL_FACTOR = (1.1, 1.5)
PACKED_COPIES = 2  # as the source's profile shows after tuning
SCALING = "scaling"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """What calls of a model cost on the simulated device.

    Attributes:
        copy_separate_s: Copying all inputs of a call one by one, whatever their size.
        copy_packed_s: The same as one packed copy.
        copy_item_s: Moving the data of one item, in either way.
        launch_s: Running the model's kernels on almost no data: launches and dependencies.
        work_item_s: Device time per item if one instance has all units; with a limit to a
            share of them it grows as the inverse of the share.
        idle_item_s: Gaps per item that a lone instance leaves; others fill them, so that it
            falls with the square of the instance count.
        contention_s: What each further instance delays a call by, where every instance may
            use all units; it falls with the square root of the share an instance may use.
        host_separate_s, host_packed_s: Host work per call, not shared out over instances.
        load_s: Loading the model. `base_bytes`, `item_bytes`: memory of an instance, and of
            an item in flight. These three are assumed, not fitted.
        input_count: Input tensors, each a copy of its own unless packed.
        traffic_s, traffic_item_s: What the device's memory needs for the weights of a call and
            for each item; beside the work, so that the longer of both counts.
    """

    description: str
    copy_separate_s: float
    copy_packed_s: float
    copy_item_s: float
    launch_s: float
    work_item_s: float
    idle_item_s: float
    contention_s: float
    host_separate_s: float
    host_packed_s: float
    load_s: float
    base_bytes: int
    item_bytes: int
    input_count: int = 28
    traffic_s: float = 0.0
    traffic_item_s: float = 0.0

    def stage_times(self, config: Config) -> StageTimes:
        """Copy and compute time of one call without noise; their sum is the latency.

        The copy of a micro-batch runs beside the compute of the one before; only what it takes
        longer than that counts as copy time.
        """
        count = config.micro_batch_count
        items = config.batch_size / count
        fixed_s = self.copy_packed_s if config.batched_h2d else self.copy_separate_s
        copy_s = fixed_s + items * self.copy_item_s
        compute_s = self._compute_s(config, items)
        exposed_s = copy_s + (count - 1) * max(0.0, copy_s - compute_s)
        return StageTimes(h2d_s=exposed_s, compute_s=count * compute_s, d2h_s=0.0)

    def _compute_s(self, config: Config, items: float) -> float:
        instances = config.instance_count
        idle_s = self.launch_s + self._idle_s(config, items) + self._contention_s(config)
        # All instances together cannot get more done than the device's units and memory can do.
        device_s = instances * max(items * self.work_item_s, self._traffic_s(items))
        return max(idle_s + self._busy_s(config, items), device_s)

    def _busy_s(self, config: Config, items: float) -> float:
        work_s = items * self.work_item_s / unit_share(config.cores_per_instance)
        return max(work_s, self._traffic_s(items))

    def _traffic_s(self, items: float) -> float:
        return self.traffic_s + items * self.traffic_item_s

    def _idle_s(self, config: Config, items: float) -> float:
        return items * self.idle_item_s / config.instance_count**2

    def _contention_s(self, config: Config) -> float:
        share = unit_share(config.cores_per_instance)
        return (config.instance_count - 1) * self.contention_s * math.sqrt(share)

    def breakdown(self, config: Config) -> Breakdown:
        """Where the time of one call goes, as declared; no part of it is measured."""
        count = config.micro_batch_count
        items, (h2d_s, compute_s, _) = config.batch_size / count, self.stage_times(config)
        host_s, busy_s = self.host_s(config), count * self._busy_s(config, items)
        launch_s = count * (self.launch_s + self._contention_s(config))
        # Where the device is full, instances wait for each other's work, which is no gap.
        waiting_s = compute_s - busy_s - launch_s - count * self._idle_s(config, items)
        busy_s += max(waiting_s, 0.0)
        copies = PACKED_COPIES if config.batched_h2d else self.input_count
        copies_s = self.copy_packed_s if config.batched_h2d else self.copy_separate_s
        own_s = max(items * self.work_item_s, self._traffic_s(items))
        by_memory = own_s > items * self.work_item_s / unit_share(config.cores_per_instance)
        return Breakdown(
            span_s=h2d_s + compute_s + host_s,
            call_count=1,
            busy_s=busy_s,
            h2d_s=count * (copies_s + items * self.copy_item_s),
            h2d_alone_s=h2d_s,
            h2d_count=count * copies,
            idle_s=compute_s - busy_s + host_s,
            gap_s=compute_s - busy_s,
            host_s=host_s,
            memory_share=1.0 if by_memory else 0.0,
            per_call_s=copies_s + launch_s + host_s + (count * self.traffic_s if by_memory else 0),
            copy_overhead_s=copies_s / copies,
            shared_s=host_s / config.instance_count + count * own_s + self.contention_s,
        )

    def latency_s(self, config: Config) -> float:
        """From the start of the copies until the result is there."""
        return sum(self.stage_times(config))

    def host_s(self, config: Config) -> float:
        """What the host adds to a call: its own work, and the wait while it serves the others."""
        own_s = self.host_packed_s if config.batched_h2d else self.host_separate_s
        return config.instance_count * own_s

    def throughput_items_per_s(self, config: Config) -> float:
        """Of all instances together, back to back."""
        items = config.instance_count * config.batch_size
        return items / (self.latency_s(config) + self.host_s(config))

    def memory_bytes(self, config: Config) -> int:
        """Device memory of one instance."""
        return self.base_bytes + self.item_bytes * config.batch_size // config.micro_batch_count


COST_MODELS: dict[str, CostModel] = {
    "recommender_a3": CostModel(
        description="a recommender with 28 inputs on an Atlas A3, after a vendor's tuning case",
        copy_separate_s=719e-6,
        copy_packed_s=40e-6,
        copy_item_s=0.07e-6,
        launch_s=513e-6,
        work_item_s=0.117e-6,
        idle_item_s=1.68e-6,
        contention_s=274e-6,
        host_separate_s=202e-6,
        host_packed_s=189e-6,
        load_s=2.0,
        base_bytes=2 * 2**30,
        item_bytes=900 * 2**10,
    ),
}


def unit_share(cores_per_instance: int | str) -> float:
    """Share of the device's matrix units that an instance may use.

    Args:
        cores_per_instance: "cube|vector", a count of cubes, or "all".
    Raises:
        UsageError: Not of that form, or more units than the device has.
    """
    if cores_per_instance == "all":
        return 1.0
    cube, bar, vector = str(cores_per_instance).partition("|")
    counts = [int(text) if text.isdecimal() else 0 for text in (cube, vector if bar else cube)]
    if not (1 <= counts[0] <= CUBE_COUNT and 1 <= counts[1] <= VECTOR_COUNT):
        raise UsageError(
            f'cores_per_instance={cores_per_instance!r}: expected "cube|vector" up to '
            f'"{CUBE_COUNT}|{VECTOR_COUNT}", a count up to {CUBE_COUNT}, or "all"'
        )
    return counts[0] / CUBE_COUNT


def declared_breakdown(spec: WorkloadSpec, config: Config) -> Breakdown:
    """Where the time of one call goes by the workload's cost model."""
    check(spec)
    return COST_MODELS[spec.model].breakdown(config)


def check(spec: WorkloadSpec) -> None:
    """Raise UsageError for an unknown cost model or option."""
    if spec.model not in COST_MODELS:
        nearest = difflib.get_close_matches(spec.model, COST_MODELS, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise UsageError(
            f"workload.simulated: no cost model {spec.model!r}; "
            f"known: {', '.join(COST_MODELS)}{hint}"
        )
    _read_options(spec)


def preload(spec: WorkloadSpec) -> tuple[str, ...]:
    """Nothing: it runs in this process."""
    return ()


def program(context: Context) -> Program:
    """An instance whose calls move the context's clock, with seeded noise.

    The host's share of a call counts as its latency here, as the caller has to wait for it; the
    latency that the source printed is the sum of the stage times.

    Raises:
        OutOfMemory: The instances together need more than the device's declared memory.
    """
    check(context.workload)
    model, config, clock = COST_MODELS[context.workload.model], context.config, context.clock
    assert isinstance(clock, VirtualClock), "simulated work runs on virtual time only"
    (noise, seed), disturbance = _read_options(context.workload)
    slowdown = _slowdown(context.workload, config.device_count)
    memory_bytes = model.memory_bytes(config)
    needed_bytes = config.instance_count * memory_bytes
    if needed_bytes > MEMORY_BYTES:
        raise OutOfMemory(
            f"{config.instance_count} instances x {format_size(memory_bytes)} need more than "
            f"the {format_size(MEMORY_BYTES)} of the simulated device",
            cost_s=model.load_s,
        )
    clock.advance(model.load_s)
    rng = np.random.default_rng((seed, context.seed, context.instance))
    waits_s = [0.0]
    serve = _serve(model, config, clock, noise, rng, slowdown)
    if disturbance is not None:
        serve = _disturbed(serve, disturbance, clock, context.began_s, waits_s)
    return Program(
        step=lambda call: serve(call, config.batch_size),
        step_items=serve,
        run_queue_wait_s=lambda: waits_s[0],
        memory_bytes=memory_bytes,
        notes=(f"simulated, not measured: {model.description}",),
    )


def _serve(
    model: CostModel,
    config: Config,
    clock: VirtualClock,
    noise: float,
    rng: np.random.Generator,
    slowdown: float,
) -> Callable[[int, int], StageTimes]:
    host_s = model.host_s(config)

    @functools.cache
    def stage_times(items: int) -> StageTimes:
        return model.stage_times(config.changed(batch_size=items))

    def serve(call: int, items: int) -> StageTimes:
        h2d_s, compute_s, d2h_s = stage_times(items)
        factor = slowdown * (math.exp(rng.normal(0.0, noise)) if noise else 1.0)
        if noise and rng.random() < STALL_SHARE:
            factor *= rng.uniform(*STALL_FACTOR)
        clock.advance(factor * (h2d_s + compute_s + d2h_s + host_s))
        return StageTimes(factor * h2d_s, factor * compute_s, factor * d2h_s)

    return serve


def _disturbed(
    serve: Callable[[int, int], StageTimes],
    disturbance: Disturbance,
    clock: VirtualClock,
    began_s: float,
    waits_s: list[float],
) -> Callable[[int, int], StageTimes]:
    """The same on a disturbed machine; what a neighbour takes is added to `waits_s`."""

    def disturbed(call: int, items: int) -> StageTimes:
        start_s = clock.now_s()
        now_s = began_s + start_s
        times = serve(call, items)
        took_s, stretch = clock.now_s() - start_s, disturbance.stretch(now_s)
        clock.advance(took_s * (stretch - 1.0))
        waits_s[0] += took_s * stretch * disturbance.share_lost(now_s)
        return StageTimes(*(stretch * seconds for seconds in times))

    return disturbed


def _slowdown(spec: WorkloadSpec, device_count: int) -> float:
    """How many times as long everything takes with so many devices at work."""
    given = spec.options.get(SCALING, {})
    if not isinstance(given, Mapping) or not given.keys() <= {"contention", "coherency"}:
        raise UsageError(f"workload.{SCALING}: {given!r} is not contention and coherency")
    contention, coherency = (float(given.get(k, 0.0)) for k in ("contention", "coherency"))
    further = device_count - 1
    return 1.0 + contention * further + coherency * device_count * further


def _read_options(spec: WorkloadSpec) -> tuple[tuple[float, int], Disturbance | None]:
    """Noise and its seed, and the declared disturbance."""
    drawn = {k: v for k, v in spec.options.items() if k not in (OPTION, SCALING)}
    _slowdown(spec, 1)
    return read_noise(drawn, DEFAULT_NOISE), Disturbance.of(spec.options)
