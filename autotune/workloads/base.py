"""What a workload is: a function from a `Context` to a `Program`, or a finished measurement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from autotune.core.clock import Clock
from autotune.core.records import Config, InputSpec, StageTimes, WorkloadSpec
from autotune.devices.base import Staging

__all__ = ["Context", "Limits", "Program", "StageTimes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a model itself demands of a configuration.

    Attributes:
        rules: As a space file writes them.
        notes: Why, as sentences for the user.
    """

    rules: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a workload gets to build its program from.

    Attributes:
        devices: Names of this instance's devices: one; a pipeline has one per rank.
        framework_device: What the framework calls the first of them: "cpu", "cuda:0".
        clock: The instance's clock; a simulated workload moves it.
        instance: Index of this instance in its group.
        began_s: The study's virtual clock when the session was opened, 0 if time is real.
    """

    config: Config
    workload: WorkloadSpec
    devices: tuple[str, ...]
    framework_device: str
    clock: Clock
    instance: int = 0
    seed: int = 0
    began_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A model ready to run. The harness stages inputs, loops over micro-batches and times.

    Attributes:
        inputs: The model's inputs in the order in which `run` takes them.
        run: Takes one micro-batch's tensors; returns the outputs in any nesting.
        step: Instead of `run`, for programs that do a whole call themselves (a simulated
            model, a pipeline): takes the call's number.
        step_items: The same for some items of a batch: takes the call's number and the items.
            None: a call always runs the whole batch.
        takes_part_batches: False if `run` takes whole micro-batches only (a graph for one
            shape); a smaller batch is then padded.
        stage: Instead of the device's own copies, for runtimes with tensors of their own: takes
            inputs, requests and configuration; `run` then takes what this staging loads.
        wait: Waits for what `run` has only launched; called once at the end of a call.
        outputs: Arrays of what `run` returned, where that is something of the runtime's own.
        thread_count: Threads the runtime computes with; None: ask the device.
        precision: The precision that really runs.
        compile_s: Seconds of the building that were compilation.
        run_queue_wait_s: Seconds that a simulated program has waited for a core so far; None: ask
            the system.
        memory_bytes: Memory that a simulated program declares; None: ask the device.
        notes: What the user should know of how the model is run.
    """

    inputs: tuple[InputSpec, ...] = ()
    run: Callable[..., Any] | None = None
    step: Callable[[int], StageTimes] | None = None
    step_items: Callable[[int, int], StageTimes] | None = None
    takes_part_batches: bool = True
    stage: Callable[[Sequence[InputSpec], Sequence[Sequence[Any]], Config], Staging] | None = None
    wait: Callable[[], None] | None = None
    outputs: Callable[[Any], Sequence[npt.NDArray[Any]]] | None = None
    thread_count: int | None = None
    precision: str = "float32"
    compile_s: float = 0.0
    run_queue_wait_s: Callable[[], float] | None = None
    memory_bytes: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    close: Callable[[], None] = lambda: None
