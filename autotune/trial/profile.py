"""One instance under a profiler: its model's work counted, its part of the device tried, its calls
recorded."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.core.clock import Clock
from autotune.core.diagnosis import Ceilings, Inspection, OpWork
from autotune.core.records import Config
from autotune.core.text import describe
from autotune.devices.base import Device, Mark, Pipeline, Staging
from autotune.devices.torch_profile import measure_ceilings
from autotune.measure.load import Step
from autotune.measure.trace_files import COPY_MARK, STEP_MARK
from autotune.trial.messages import Profiled
from autotune.trial.step import compose
from autotune.workloads.base import Program
from autotune.workloads.counting import count_work, doubled

log = logging.getLogger(__name__)

BUSY_S = 0.3  # of calls, to see how many cores they keep busy
MIN_CALLS = 3


def inspect(
    program: Program,
    staging: Staging | None,
    device: Device,
    framework_device: str,
    step: Step,
    *,
    micro_batches: int,
    alone: bool,
) -> Inspection:
    """Count and try what can be.

    Args:
        framework_device: What torch calls the device.
        alone: True if the instance has the process to itself.
    """
    busy_cores = _busy_cores(step) if alone else None
    tensors = staging.load(0, 0) if staging is not None else ()
    work = _counted(program, tensors)
    if not work:
        return Inspection(busy_cores=busy_cores)
    twice: tuple[OpWork, ...] = ()
    if program.takes_part_batches:
        with contextlib.suppress(RuntimeError):  # a model for one size, or no memory for two
            twice = _counted(program, doubled(tensors, program.inputs))
    ceilings: Ceilings | None = None
    try:
        ceilings = measure_ceilings(framework_device, program.precision, device.synchronize)
    except Exception as error:  # no memory for it, or a type that the device has no product for
        log.info("the device's ceilings cannot be measured: %s", error)
    return Inspection(
        ceilings=ceilings,
        input_bytes=micro_batches * sum(tensor.nbytes for tensor in tensors),
        work=work * micro_batches,
        doubled=twice * micro_batches,
        busy_cores=busy_cores,
    )


def _counted(program: Program, tensors: Sequence[Any]) -> tuple[OpWork, ...]:
    if program.run is None or program.stage is not None or program.compile_s:
        return ()  # not torch's own operators
    try:
        return count_work(program.run, tensors)
    except Exception as error:  # a model may refuse to be watched; its time is told all the same
        log.info("the model's work cannot be counted: %s", error)
        return ()


def _busy_cores(step: Step) -> float:
    began_s, cpu_s, call = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - began_s < BUSY_S or call < MIN_CALLS:
        step(call)
        call += 1
    return (time.process_time() - cpu_s) / (time.perf_counter() - began_s)


def record(
    program: Program,
    staging: Staging | None,
    device: Device,
    config: Config,
    clock: Clock,
    *,
    folder: Path,
    calls: int,
    duration_s: float,
) -> Profiled:
    """Call under the device's profiler; its files are in `folder` afterwards."""
    if program.run is None or staging is None:
        return Profiled()
    try:
        recording = device.profile(folder)
        if recording is None:
            return Profiled()
        with recording as mark:
            step = _marked(program, staging, device, config, clock, mark)
            step(0)  # what the profiler does at its first event belongs to no call
            made, call_s = call_for(step, calls, duration_s)
    except Exception as error:  # the calls ran before: it is the profiler that does not
        return Profiled(note=f"the profiler cannot be used: {describe(error)}")
    return Profiled(calls=made + 1, call_s=call_s)


def call_for(step: Step, calls: int, duration_s: float) -> tuple[int, float]:
    """So many calls, or so long; returns how many, and their mean time."""
    began_s, made = time.perf_counter(), 0
    while made < calls and (made < MIN_CALLS or time.perf_counter() - began_s < duration_s):
        made += 1
        step(made)
    return made, (time.perf_counter() - began_s) / max(made, 1)


def _marked(
    program: Program, staging: Staging, device: Device, config: Config, clock: Clock, mark: Mark
) -> Step:
    """The step, its copies and runs named in the recording."""
    if isinstance(staging, Pipeline):  # there the device itself tells copies from operators
        whole = compose(program, staging, device, config, clock).step

        def step(call: int) -> Any:
            with mark(f"{STEP_MARK}{call}"):
                return whole(call)

        return step
    runs = iter(range(1_000_000_000))
    run: Callable[..., Any] = program.run  # type: ignore[assignment]

    def marked_run(*tensors: Any) -> Any:
        with mark(f"{STEP_MARK}{next(runs)}"):
            return run(*tensors)

    marked_staging = _MarkedStaging(staging, mark)
    return compose(replace(program, run=marked_run), marked_staging, device, config, clock).step


class _MarkedStaging:
    def __init__(self, inner: Staging, mark: Mark) -> None:
        self._inner, self._mark = inner, mark
        self.copies_per_call, self.method = inner.copies_per_call, inner.method

    def load(self, call: int, micro_batch: int, items: int | None = None) -> Sequence[Any]:
        with self._mark(COPY_MARK):
            return self._inner.load(call, micro_batch, items)
