"""The child's side of a trial: builds its instances, warms them up, measures on command.

A process holds one instance, or all of a group whose instances are threads, or one rank of a
pipeline.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from autotune.core.clock import Clock, MonotonicClock
from autotune.core.diagnosis import Inspection
from autotune.core.errors import AutotuneError, CompileError, OutOfMemory, TrialCrashed
from autotune.core.records import Answers, GroupSpec, InstanceFacts, Plan, Samples
from autotune.core.text import describe, keepable
from autotune.devices import framework_device, open_device
from autotune.devices.base import Device, Seat, Staging
from autotune.devices.cpu import is_out_of_memory
from autotune.measure.client_queue import (
    ClientState,
    SharedClients,
    local_state,
    shared_states,
)
from autotune.measure.engine import (
    Server,
    items_of_calls,
    merge,
    run_open_windows,
    run_windows,
    to_open_samples,
    to_samples,
    warm_up,
    warm_up_sizes,
)
from autotune.measure.engine import WarmUp as WarmUpResult
from autotune.measure.noise import read_run_queue_wait_s
from autotune.measure.request_queue import Cursor, SharedCursors
from autotune.trial import messages
from autotune.trial.answers import answer
from autotune.trial.channel import Channel, Closed
from autotune.trial.evaluation import evaluate
from autotune.trial.profile import call_for, inspect, record
from autotune.trial.program import runs_program, serve_program
from autotune.trial.ranks import RankProcess
from autotune.trial.server import runs_server, serve_server
from autotune.trial.step import Stepper, compose
from autotune.workloads import load_workload
from autotune.workloads.base import Context, Program
from autotune.workloads.data import MIN_RING, make_requests, ring_size
from autotune.workloads.lengths import staged, tokens_per_item
from autotune.workloads.probes import make_probes
from autotune.workloads.user_data import UserData

OOM_SCORE = "1000"  # the kernel takes a trial before it takes the tool
OPEN_SPIN_S = 60e-6  # short: an instance that waits for requests must not heat its core

_T = TypeVar("_T")


class Instance:
    """One model instance with its own inputs and cores.

    Args:
        index: Its number in the group.
        alone: True if it has the process to itself.
        notes: What it is to say of itself beside its own.
    """

    def __init__(
        self,
        spec: GroupSpec,
        device: Device,
        index: int,
        *,
        alone: bool,
        clock: Clock,
        notes: tuple[str, ...] = (),
    ) -> None:
        self._notes = notes
        self._spec, self._device, self._index = spec, device, index
        self._alone, self._clock = alone, clock
        self._warm = WarmUpResult(count=0, is_steady=True)
        self._calls_made = 0
        self._tokens_per_item = 0.0
        cores = spec.cores[index]
        device.bind(cores)
        began_s = clock.now_s()
        self._program = self._build()
        device.bind(cores)  # again: building may have changed threads and started new ones
        device.synchronize()
        self._load_s = clock.now_s() - began_s - self._program.compile_s
        self.answers, self._first_call_s = self._answer_probes()
        began_s = clock.now_s()
        self._step = self._compose()
        device.synchronize()
        self._load_s += clock.now_s() - began_s
        if self.answers is None:
            began_s = clock.now_s()
            self._step.step(0)
            self._first_call_s = clock.now_s() - began_s
        device.bind(cores)

    def _build(self) -> Program:
        spec = self._spec
        context = Context(
            config=spec.config,
            workload=spec.workload,
            devices=(spec.device_of(self._index),),
            framework_device=framework_device(spec.device_of(self._index)),
            clock=self._clock,
            instance=self._index,
            seed=spec.seed,
        )
        program = load_workload(spec.workload.kind)(context)
        assert isinstance(program, Program)
        return program

    def _answer_probes(self) -> tuple[Answers | None, float]:
        """Answers to the probe items, and how long the first call took; none of a whole step.

        Before the copies of the measured requests are set up, so that those for the probes are
        gone by then and count as memory nowhere.
        """
        if self._program.run is None:
            return None, 0.0
        config = self._spec.config
        probes = make_probes(self._program.inputs, config.batch_size, self._spec.seed)
        staging = staged(self._stage, self._program.inputs, probes.requests, config)
        return answer(self._program, staging, self._device, config, probes.items, self._clock)

    @property
    def _stage(self) -> Callable[..., Staging]:
        """The runtime's own copies, else the device's."""
        return self._program.stage or self._device.stage

    def _compose(self) -> Stepper:
        config = self._spec.config
        if self._program.step is not None:
            return compose(self._program, None, self._device, config, self._clock)
        inputs, size = self._program.inputs, config.batch_size
        ring = ring_size(inputs, size)
        self._tokens_per_item = tokens_per_item(inputs, size, ring, self._spec.seed)
        data = self._spec.workload.data
        own = UserData(data, inputs) if data is not None else None
        if data is not None and own is not None and data.timing:
            requests = own.requests(size, min(ring, max(MIN_RING, own.ring(size))))
        else:
            requests = make_requests(inputs, size, ring, self._spec.seed)
        staging = staged(self._stage, inputs, requests, config)
        return compose(self._program, staging, self._device, config, self._clock)

    def evaluate(self) -> dict[str, float]:
        """Run the user's own items."""
        spec = self._spec
        return evaluate(self._program, self._stage, self._device, spec.config, spec.workload)

    def inspect(self) -> Inspection:
        """What its model does, and its part of the device at best."""
        return inspect(
            self._program,
            self._step.staging,
            self._device,
            framework_device(self._spec.device_of(self._index)),
            self._step.step,
            micro_batches=self._spec.config.micro_batch_count,
            alone=self._alone,
        )

    def profile(self, request: messages.Profile) -> messages.Profiled:
        """Call for a while, the first instance of all under a profiler."""
        if self._index or not request.folder:
            call_for(self._step.step, request.calls, request.duration_s)
            return messages.Profiled()
        return record(
            self._program,
            self._step.staging,
            self._device,
            self._spec.config,
            self._clock,
            folder=Path(request.folder),
            calls=request.calls,
            duration_s=request.duration_s,
        )

    def warm_up(self, max_s: float, sizes: Sequence[int]) -> None:
        """Call with every size, then until steady."""
        warm_up_sizes(self._step.serve, self._clock, sizes, max_s=max_s)
        self._warm = warm_up(self._step.step, self._clock, max_s=max_s)
        self._calls_made += self._warm.count

    def measure(
        self, plan: Plan, base_s: float, state: Callable[[int], Cursor | ClientState]
    ) -> Samples:
        """Run the plan's windows."""
        self._device.reset_memory_peak()
        if plan.load.is_queued:
            return self._measure_queued(plan, base_s, state)
        config = self._spec.config
        windows, waits_s = run_windows(
            self._step.step,
            self._clock,
            plan,
            base_s=base_s,
            share=(self._index, config.total_instances),
            first_call=self._calls_made,
            run_queue_wait_s=self._run_queue_wait_s,
            serve=self._step.serve,
        )
        self._calls_made += sum(map(len, windows))
        items = items_of_calls(windows, plan, config.batch_size)
        return to_samples(windows, waits_s, items_per_call=items, facts=self._facts())

    def _measure_queued(
        self, plan: Plan, base_s: float, state: Callable[[int], Cursor | ClientState]
    ) -> Samples:
        server = Server(
            serve=self._step.serve,
            clock=MonotonicClock(spin_s=OPEN_SPIN_S),
            first_call=self._calls_made,
            run_queue_wait_s=self._run_queue_wait_s,
        )
        (windows,) = run_open_windows([server], self._spec.config, plan, base_s=base_s, state=state)
        self._calls_made += sum(len(window.served) for window in windows)
        return to_open_samples(windows, plan.load, self._facts())

    def _run_queue_wait_s(self) -> float:
        return read_run_queue_wait_s(whole_process=self._alone)

    def _facts(self) -> InstanceFacts:
        program = self._program
        counts_memory = self._alone or self._index == 0  # threads share one process
        return InstanceFacts(
            instance=self._index,
            cores=self._spec.cores[self._index],
            thread_count=program.thread_count or self._device.thread_count(),
            load_s=self._load_s,
            compile_s=program.compile_s,
            first_call_s=self._first_call_s,
            warmup_count=self._warm.count,
            warmup_steady=self._warm.is_steady,
            copies_per_call=self._step.copies_per_call,
            memory_peak_bytes=self._device.memory_peak_bytes() if counts_memory else None,
            precision=program.precision,
            versions={**program.versions, **self._spec.environment, **self._device.facts()},
            notes=(*self._notes, *program.notes, *self._step.notes),
            pads=self._step.pads,
            tokens_per_item=self._tokens_per_item or None,
        )


class InstanceThreads:
    """The instances of one process; several are threads, each with its own for all its calls."""

    def __init__(self, request: messages.Open, clock: Clock) -> None:
        count = len(request.instances)
        self._executors = [
            concurrent.futures.ThreadPoolExecutor(max_workers=1) for _ in range(count)
        ] if count > 1 else []  # fmt: skip
        self._devices: list[Device] = []
        self._request, self._clock = request, clock
        self._instances: list[Instance] = []

    def open(self) -> None:
        """Build all instances and make their first calls.

        One after the other, each in its own thread: importing a user's file is not thread-safe.
        """
        for position, index in enumerate(self._request.instances):
            if self._executors:
                instance = self._executors[position].submit(self._open, index).result()
            else:
                instance = self._open(index)
            self._instances.append(instance)

    @property
    def answers(self) -> tuple[Answers, ...]:
        """What the models of the instances answered to the probes."""
        return tuple(i.answers for i in self._instances if i.answers is not None)

    def _open(self, index: int) -> Instance:
        spec, alone = self._request.spec, not self._executors
        seat = Seat(config=spec.config, shares_process=not alone, traits=spec.traits)
        device = open_device(self._request.device_kind, spec.device_of(index), seat)
        self._devices.append(device)
        notes = self._request.notes
        return Instance(spec, device, index, alone=alone, clock=self._clock, notes=notes)

    def warm_up(self, max_s: float, sizes: Sequence[int]) -> None:
        self._each(lambda instance: instance.warm_up(max_s, sizes), self._instances)

    def measure(
        self, plan: Plan, base_s: float, shared: SharedCursors | SharedClients | None
    ) -> Samples:
        """Run the plan's windows in all instances.

        Args:
            shared: Queues that other processes share; None: the group is in this process.
        """
        local = [local_state(plan.load) for _ in plan.windows]
        state = local.__getitem__ if shared is None else shared.state
        parts = self._each(lambda instance: instance.measure(plan, base_s, state), self._instances)
        return merge(parts)

    def evaluate(self) -> dict[str, float]:
        """How good the first instance's answers to the user's own items are."""
        figures: list[dict[str, float]] = self._each(Instance.evaluate, self._instances[:1])
        return figures[0]

    def look(
        self, request: messages.Inspect | messages.Profile
    ) -> messages.Inspected | messages.Profiled:
        """Inspect the first instance, or let all call with the first under a profiler."""
        if isinstance(request, messages.Inspect):
            found: list[Inspection] = self._each(Instance.inspect, self._instances[:1])
            return messages.Inspected(found[0])
        profile = request
        profiled: list[messages.Profiled] = self._each(
            lambda instance: instance.profile(profile), self._instances
        )
        return profiled[0]

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether the error says that memory ran out, as the devices know it.

        Before one is open, which may fail for want of memory, as the host knows it.
        """
        if not self._devices:
            return is_out_of_memory(error)
        return any(device.is_out_of_memory(error) for device in self._devices)

    def explain(self, error: BaseException) -> str:
        """The error in one sentence, as the devices know it; empty if they do not."""
        return next(filter(None, (device.explain(error) for device in self._devices)), "")

    def _each(self, action: Callable[[Any], _T], items: Sequence[Any]) -> list[_T]:
        if not self._executors:
            return [action(item) for item in items]
        futures = [e.submit(action, item) for e, item in zip(self._executors, items)]  # noqa: B905
        return [future.result() for future in futures]


def serve(channel: Channel) -> None:
    """Answer the tool until it says close or goes away; ends the process."""
    _offer_to_oom_killer()
    process: InstanceThreads | RankProcess | None = None
    try:
        while True:
            request = channel.receive()
            if isinstance(request, messages.Open) and runs_program(request):
                serve_program(channel, request.spec)
                break
            if isinstance(request, messages.Open) and runs_server(request):
                serve_server(channel, request.spec)
                break
            if isinstance(request, messages.Settle):
                channel.send(messages.Settled(_settle(request)))
            elif isinstance(request, messages.Open):
                process = _process(request, channel.take_fds())
                process.open()
                _settle_garbage()
                channel.send(_opened(process))
            elif isinstance(request, messages.Close) or process is None:
                break
            elif isinstance(request, messages.WarmUp):
                process.warm_up(request.max_s, request.sizes)
                channel.send(messages.Warm())
            elif isinstance(request, messages.Evaluate):
                channel.send(messages.Evaluated(process.evaluate()))
            elif isinstance(request, (messages.Inspect, messages.Profile)):
                assert isinstance(process, InstanceThreads), "ranks are not looked into"
                channel.send(process.look(request))
            elif isinstance(request, messages.Norms) and isinstance(process, RankProcess):
                channel.send(messages.NormsTaken(process.squared_norms(request.steps)))
            elif isinstance(request, messages.Measure):
                channel.send(messages.Measured(_measure(process, request, channel.take_fds())))
    except Closed:
        pass
    except BaseException as error:  # whatever a user's model raises, SystemExit included
        _report(channel, error, process)
    _flush()
    os._exit(0)


def _process(request: messages.Open, fds: Sequence[int]) -> InstanceThreads | RankProcess:
    if request.meeting is not None:
        return RankProcess(request, MonotonicClock(), fds[0])
    return InstanceThreads(request, MonotonicClock())


def _opened(process: InstanceThreads | RankProcess) -> messages.Opened:
    if isinstance(process, RankProcess):
        return messages.Opened(first=process.first, reference=process.reference)
    return messages.Opened(process.answers)


def _settle(request: messages.Settle) -> str:
    spec, notes = request.spec, []
    for name in spec.devices:
        device = open_device(request.device_kind, name, Seat(traits=spec.traits))
        notes.append(device.wait_for_memory(request.limit_s))
    return "; ".join(filter(None, notes))


def _measure(
    process: InstanceThreads | RankProcess, request: messages.Measure, fds: Sequence[int]
) -> Samples:
    shared = shared_states(fds[0], request.plan.load) if fds else None
    try:
        return process.measure(request.plan, request.base_s, shared)
    finally:
        if shared is not None:
            shared.close()


def _report(
    channel: Channel, error: BaseException, process: InstanceThreads | RankProcess | None
) -> None:
    with contextlib.suppress(Exception):  # its text may be anything, or fail by itself
        traceback.print_exception(error)
    reason = describe(error)
    if process is not None:
        reason = process.explain(error) or reason
    no_memory = process is not None and process.is_out_of_memory(error)
    # What a compiler or a capture ended in may be that: a smaller batch would do.
    if isinstance(error, AutotuneError) and not (no_memory and isinstance(error, CompileError)):
        failure = messages.Failed(type(error).__name__, keepable(str(error)))
    elif no_memory:
        failure = messages.Failed(OutOfMemory.__name__, reason)
    else:
        failure = messages.Failed(TrialCrashed.__name__, reason)
    _flush()
    with contextlib.suppress(Closed):
        channel.send(failure)


def _settle_garbage() -> None:
    # A full collection in the middle of a window takes up to 0.2 s with the frameworks loaded.
    gc.collect()
    gc.freeze()
    gc.disable()


def _offer_to_oom_killer() -> None:
    # A hardened container may forbid it; the trial runs all the same.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
