"""A session runs one configuration: open, measure as often as wanted, close.

`open_session` hides where it runs: in child processes forked from a warm zygote, or, for
simulated and recorded workloads, in this process on a virtual clock.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Protocol

import psutil

from autotune.core.clock import MonotonicClock
from autotune.core.diagnosis import Inspection
from autotune.core.errors import CompileError, TrialError, UsageError
from autotune.core.pipeline import Pass
from autotune.core.records import Answers, GroupSpec, Plan, Reported, Result, Samples
from autotune.devices import device_kind
from autotune.devices.readings import Watch
from autotune.devices.reserve import Reservation
from autotune.devices.telemetry import meter_of_all
from autotune.measure.client_queue import shared_states_file
from autotune.measure.engine import merge, sizes_of, warmup_cap_s
from autotune.measure.noise_scale import SquaredNorms
from autotune.measure.pipeline_guard import Difference, compare_passes
from autotune.trial import messages
from autotune.trial.ranks import LOOPBACK
from autotune.trial.server import stop_limit_s, within
from autotune.trial.supervisor import CLOSE_WAIT_S, Group
from autotune.trial.virtual import VirtualGroup
from autotune.trial.warm import Zygote
from autotune.workloads import WORKLOADS, preload_modules, prepare_workload
from autotune.workloads.pipeline.memory import check_memory, least_bytes

MAX_ZYGOTES = 4
START_LEAD_S = 0.02  # between the command to measure and the first window
OPEN_TIMEOUT_S = 60.0
SETTLE_LIMIT_S = 5.0  # for an earlier trial's memory on a device


class Launcher:
    """Owns the zygotes of a run, and its clock: real seconds plus those that were simulated.

    Args:
        reserved: Devices that are this run's already; it is closed with the launcher.
    Attributes:
        references: Of pipelines: what came of their models without one.
    """

    def __init__(self, reserved: Reservation | None = None) -> None:
        self._reserved = reserved or Reservation()
        self.references: dict[tuple[object, ...], Pass] = {}
        self._zygotes: OrderedDict[tuple[object, ...], Zygote] = OrderedDict()
        self._clock = MonotonicClock()
        self._began_s = self._clock.now_s()
        self._virtual_s = 0.0

    def now_s(self) -> float:
        """Seconds since the launcher was made, simulated ones included."""
        return self._clock.now_s() - self._began_s + self._virtual_s

    @property
    def virtual_s(self) -> float:
        """Seconds that were simulated so far."""
        return self._virtual_s

    def charge(self, virtual_s: float) -> None:
        """Count seconds that passed on a virtual clock."""
        self._virtual_s += virtual_s

    def zygote(self, spec: GroupSpec) -> Zygote:
        """The zygote for a group, started if there is none; the imports go on behind.

        The least recently used one is ended when there are too many.
        """
        environment, modules = _zygote_environment(spec), preload_modules(spec.workload)
        key = (tuple(sorted(environment.items())), modules, spec.preload)
        if key in self._zygotes and not self._zygotes[key].is_alive():
            self._zygotes.pop(key).close()
        if key not in self._zygotes:
            if len(self._zygotes) >= MAX_ZYGOTES:
                self._zygotes.popitem(last=False)[1].close()
            self._zygotes[key] = Zygote(environment, modules, spec.preload)
        self._zygotes.move_to_end(key)
        return self._zygotes[key]

    def prepare(self, spec: GroupSpec) -> None:
        """Start what `spec` will need, without waiting for it."""
        if WORKLOADS[spec.workload.kind].is_real:
            self.zygote(spec)

    @property
    def reserved(self) -> Reservation:
        """The devices that are this run's alone."""
        return self._reserved

    def reserve(self, spec: GroupSpec) -> None:
        """Have a group's accelerators for this run alone until `close`.

        A CPU's cores may be shared: what others do there shows in the run queue.

        Raises:
            UnavailableError: Another process measures on one of them.
        """
        names = [name for name in spec.devices if device_kind(name.partition(":")[0]).is_exclusive]
        if names:
            self._reserved.add(names)

    def close(self) -> None:
        """End all processes, give the devices back."""
        while self._zygotes:
            self._zygotes.popitem()[1].close()
        self._reserved.close()

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Session(Protocol):
    """One configuration, running.

    Attributes:
        is_virtual: True if it is simulated or recorded, so that its seconds are not real.
        answers: What each instance's model answered to the probe items; () if none is run.
    """

    is_virtual: bool
    answers: tuple[Answers, ...]

    def warm_up(self, plan: Plan) -> None:
        """Get ready for a plan; `measure` does it if it was not done."""
        ...

    def begin(self, plan: Plan) -> None:
        """Start the plan's windows without waiting for their end."""
        ...

    def result(self) -> Result:
        """Wait for what was begun.

        Raises:
            TrialError: The configuration failed; all its processes are gone.
        """
        ...

    def measure(self, plan: Plan) -> Result:
        """Warm up if need be, run the plan's windows, return what came of it."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Session: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def open_session(
    spec: GroupSpec, launcher: Launcher, *, timeout_s: float = OPEN_TIMEOUT_S
) -> Session:
    """Build the model in every instance and make the first calls.

    Args:
        timeout_s: Real seconds after which the opening is given up.
    Raises:
        TrialError: This configuration cannot be run; nothing is left of it.
        UsageError: The model itself cannot be built: a wrong factory, inputs not known.
        UnavailableError: A package or device is missing.
    """
    if WORKLOADS[spec.workload.kind].runs == "ranks":
        return RanksSession(spec, launcher, timeout_s)
    if WORKLOADS[spec.workload.kind].is_real:
        return ProcessSession(spec, launcher, timeout_s)
    return VirtualGroup(spec, launcher.charge, began_s=launcher.virtual_s)


class ProcessSession:
    """A session whose instances are child processes, or threads of one."""

    is_virtual = False
    noun = ""

    def __init__(self, spec: GroupSpec, launcher: Launcher, timeout_s: float) -> None:
        self._is_warm = False
        self._until_s = 0.0
        cores = sorted({core for own in spec.cores for core in own})
        devices = tuple(dict.fromkeys(spec.devices))
        self._watch = Watch(meter_of_all(devices, cores, spec.traits))
        self._config = spec.config
        # What takes once, and its start, are no part of this trial's time limit.
        spec = replace(spec, workload=prepare_workload(spec.workload, spec.seed))
        if WORKLOADS[spec.workload.kind].runs == "server":
            spec = within(spec, timeout_s)
        shares = _instances_of_processes(spec)
        launcher.reserve(spec)
        zygote = launcher.zygote(spec)
        zygote.wait_ready()
        self._until_s = time.monotonic() + timeout_s
        self._group = Group(zygote, len(shares), self.noun, close_wait_s=_close_wait_s(spec))
        kind = spec.devices[0].split(":")[0]
        notes = self._settled(spec, kind) if spec.traits else ()
        opened = self._open([messages.Open(spec, kind, share, notes) for share in shares])
        self.answers = tuple(answers for reply in opened for answers in reply.answers)

    def _open(self, requests: Sequence[messages.Open]) -> list[messages.Opened]:
        """Let every process build its part."""
        self._group.send(requests)
        return self._group.gather(messages.Opened, until_s=self._until_s)

    def _settled(self, spec: GroupSpec, kind: str) -> tuple[str, ...]:
        """Let the first process wait until the device has its memory back."""
        request = messages.Settle(spec, kind, limit_s=SETTLE_LIMIT_S)
        self._group.send([request], only=1)
        (reply,) = self._group.gather(messages.Settled, until_s=self._until_s, only=1)
        return (reply.note,) if reply.note else ()

    def warm_up(self, plan: Plan) -> None:
        request = messages.WarmUp(warmup_cap_s(plan), sizes_of(plan, self._config))
        self._group.send([request] * self._group.size)
        self._group.gather(messages.Warm, until_s=time.monotonic() + plan.deadline_s)
        self._is_warm = True

    def evaluate(self, limit_s: float) -> Mapping[str, float]:
        """How good the answers to the user's own items are, in figures by name.

        Raises:
            TrialError: It took longer than `limit_s`, or failed.
            UsageError: The items do not fit the model.
        """
        self._group.send([messages.Evaluate()], only=1)
        until_s = time.monotonic() + limit_s
        (reply,) = self._group.gather(messages.Evaluated, until_s=until_s, only=1)
        return reply.figures

    def inspect(self, limit_s: float) -> Inspection:
        """What the first instance's model does, and its part of the device at best.

        Raises:
            TrialError: It took longer than `limit_s`, or failed.
        """
        self._group.send([messages.Inspect()], only=1)
        until_s = time.monotonic() + limit_s
        (reply,) = self._group.gather(messages.Inspected, until_s=until_s, only=1)
        return reply.inspection

    def profile(
        self, folder: Path, *, calls: int, duration_s: float, limit_s: float
    ) -> messages.Profiled:
        """Let all instances call, the first under a profiler that leaves its files in `folder`.

        Args:
            calls: At most so many. `duration_s`: at most so long.
        Raises:
            TrialError: It took longer than `limit_s`, or failed.
        """
        request = messages.Profile(str(folder), calls, duration_s)
        self._group.send([request] * self._group.size)
        until_s = time.monotonic() + limit_s
        return self._group.gather(messages.Profiled, until_s=until_s)[0]

    def begin(self, plan: Plan) -> None:
        now_s = time.monotonic()
        self._until_s = now_s + plan.deadline_s
        if plan.kind == "time":  # some devices cannot be looked at while they are profiled
            self._watch.start()
        requests = [messages.Measure(plan, now_s + START_LEAD_S)] * self._group.size
        if not plan.load.is_queued or self._group.size == 1:
            self._group.send(requests)
            return
        fd = shared_states_file(plan.load, len(plan.windows))
        try:
            self._group.send(requests, [fd])
        finally:
            os.close(fd)  # the processes have it now, and it goes with them

    def result(self) -> Result:
        try:
            replies = self._group.gather(messages.Measured, until_s=self._until_s)
        finally:
            telemetry = self._watch.stop()
        results = [reply.result for reply in replies]
        if isinstance(results[0], Reported):
            return _with_telemetry(results[0], telemetry)
        samples = merge([result for result in results if isinstance(result, Samples)])
        return replace(samples, telemetry=telemetry)

    def measure(self, plan: Plan) -> Result:
        if not self._is_warm:
            self.warm_up(plan)
        self.begin(plan)
        return self.result()

    def close(self) -> None:
        self._group.close()

    def __enter__(self) -> ProcessSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watch.stop()
        if kind is None or issubclass(kind, TrialError):
            self._group.close()
        else:
            self._group.kill()  # interrupted: at once


class RanksSession(ProcessSession):
    """A session whose processes are the ranks of a pipeline, which run one model together.

    Its first step is held against the model without a pipeline, which rank 0 runs once per model
    and batch; the launcher keeps what came of it.
    """

    noun = "rank"

    def __init__(self, spec: GroupSpec, launcher: Launcher, timeout_s: float) -> None:
        self._spec, self._launcher = spec, launcher
        self._timeout_s = timeout_s
        self._difference = Difference()
        self._loss: float | None = None
        self._check_memory()
        super().__init__(spec, launcher, timeout_s)

    def _open(self, requests: Sequence[messages.Open]) -> list[messages.Opened]:
        key = _reference_key(self._spec)
        known = self._launcher.references.get(key)
        with contextlib.closing(socket.create_server((LOOPBACK, 0))) as listener:
            self.port = listener.getsockname()[1]
            meeting = messages.Meeting(LOOPBACK, self.port, self._timeout_s, known)
            met = [replace(request, meeting=meeting) for request in requests]
            # Every process has the socket then, and it is gone when they are.
            self._group.send(met, [listener.fileno()])
        opened = self._group.gather(messages.Opened, until_s=self._until_s)
        firsts = [reply.first for reply in opened if reply.first is not None]
        reference = opened[0].reference
        assert reference is not None and firsts, "ranks answer with their first step"
        self._launcher.references[key] = reference
        try:
            self._difference = compare_passes(firsts, reference, self._spec.workload.precision)
        except TrialError:
            self._group.kill()
            raise
        self._loss = firsts[0].loss
        return opened

    def _check_memory(self) -> None:
        """Refuse what surely does not fit, where the model's sizes are known.

        Raises:
            OutOfMemory: It does not fit. CompileError: The model cannot be split like that.
        """
        spec = self._spec
        known = self._launcher.references.get(_reference_key(spec))
        if known is None:
            return
        try:
            needed = least_bytes(spec.config, known, dict(spec.workload.options))
        except UsageError as error:  # of this configuration alone: its ranks would say the same
            raise CompileError(str(error)) from None
        on_host = len(set(spec.devices)) < len(spec.devices)
        free = spec.traits.get("memory_free_bytes")
        if on_host or free is None:
            everything = needed * (len(spec.devices) // len(needed))
            check_memory(everything, int(psutil.virtual_memory().available), together=True)
        else:
            check_memory(needed, int(free), together=False)

    def squared_norms(self, steps: int, limit_s: float) -> list[SquaredNorms]:
        """Squared norms of gradients of one step after the other, each on items of its own.

        Raises:
            TrialError: It took longer than `limit_s`, or failed.
        """
        self._group.send([messages.Norms(steps)] * self._group.size)
        until_s = time.monotonic() + limit_s
        taken = self._group.gather(messages.NormsTaken, until_s=until_s)
        return [SquaredNorms(*pair) for pair in taken[0].norms]

    def result(self) -> Result:
        """The steps, with what the comparison of the first one has shown."""
        samples = super().result()
        assert isinstance(samples, Samples)
        first, *others = samples.facts
        assert first.rank is not None
        compared = replace(
            first.rank,
            loss=self._loss,
            loss_difference=self._difference.loss,
            gradient_difference=self._difference.gradient,
        )
        return replace(samples, facts=(replace(first, rank=compared), *others))


def _reference_key(spec: GroupSpec) -> tuple[object, ...]:
    """What the model without a pipeline depends on."""
    model = (repr(spec.workload), repr(sorted(spec.config.environment().items())))
    return (*model, spec.config.get("global_batch_size", 1), spec.seed, spec.devices[0])


def _close_wait_s(spec: GroupSpec) -> float:
    """How long its processes may take to end by themselves."""
    is_server = WORKLOADS[spec.workload.kind].runs == "server"
    return stop_limit_s(spec) if is_server else CLOSE_WAIT_S


def _with_telemetry(report: Reported, telemetry: Mapping[str, float]) -> Reported:
    """A program's report with the power that it does not tell itself, where the device does."""
    power_w = telemetry.get("power_mean_w")
    if power_w is None or "power_w" in report.metrics:
        return report
    return replace(report, metrics={**report.metrics, "power_w": power_w})


def _zygote_environment(spec: GroupSpec) -> Mapping[str, str]:
    """Variables that are read on import; an outside program gets its own when it is started."""
    return {} if WORKLOADS[spec.workload.kind].is_outside else spec.environment


def _instances_of_processes(spec: GroupSpec) -> list[tuple[int, ...]]:
    if WORKLOADS[spec.workload.kind].is_outside:
        return [()]  # it sees to its instances itself
    if WORKLOADS[spec.workload.kind].runs == "ranks":
        return [(rank,) for rank in range(len(spec.devices))]
    instances = tuple(range(spec.config.total_instances))
    if spec.config.get("instance_mode", "process") == "thread":
        return [instances]
    return [(index,) for index in instances]
