"""The step that is timed: staging x micro-batches x run, the same for every workload."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.core.clock import Clock
from autotune.core.records import Config, StageTimes
from autotune.devices.base import Device, Part, Pipeline, Staging
from autotune.measure.load import Serve, Step
from autotune.workloads.base import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepper:
    """A composed step and what is known of it.

    Attributes:
        serve: The step for some items of a batch.
        pads: True if a call runs whole (micro-)batches however few items it is for.
        staging: Its copies; None for a program that does whole calls.
    """

    step: Step
    serve: Serve
    pads: bool
    staging: Staging | None = None

    @property
    def copies_per_call(self) -> int | None:
        return self.staging.copies_per_call if self.staging else None

    @property
    def notes(self) -> tuple[str, ...]:
        return (f"host-to-device copies: {self.staging.method}",) if self.staging else ()


def compose(
    program: Program, staging: Staging | None, device: Device, config: Config, clock: Clock
) -> Stepper:
    """Compose the step of one instance.

    Each micro-batch is copied, then run; the device is waited for once, at the end of the call.
    A device that copies and computes at the same time composes the call itself.
    """
    if program.step is not None:
        whole = program.step
        serve = program.step_items or (lambda call, items: whole(call))
        pads = program.step_items is None
        return Stepper(step=whole, serve=serve, pads=pads)
    assert staging is not None and program.run is not None, "a program has a step or a run"
    pads = not program.takes_part_batches
    step, serve = _staged(program, staging, device, config, clock)
    return Stepper(step=step, serve=serve, pads=pads, staging=staging)


def _overlapping(
    staging: Pipeline, run: Callable[..., Any], call: int, parts: Sequence[Part]
) -> StageTimes:
    return staging.run_call(call, parts, run)


def _staged(
    program: Program, staging: Staging, device: Device, config: Config, clock: Clock
) -> tuple[Step, Serve]:
    assert program.run is not None
    run, load, now_s = program.run, staging.load, clock.now_s
    synchronize = program.wait or device.synchronize
    micro_batches: list[Part] = [(number, None) for number in range(config.micro_batch_count)]
    size = config.batch_size // config.micro_batch_count

    def in_turn(call: int, parts: Sequence[Part]) -> StageTimes:
        began_s = now_s()
        copying_s = 0.0
        for micro_batch, items in parts:
            copy_began_s = now_s()
            tensors = load(call, micro_batch, items)
            copying_s += now_s() - copy_began_s
            run(*tensors)
        synchronize()  # launches return early: without it the clock would stop too soon
        return StageTimes(copying_s, now_s() - began_s - copying_s, 0.0)

    run_all = in_turn
    if isinstance(staging, Pipeline):
        run_all = functools.partial(_overlapping, staging, run)

    def step(call: int) -> StageTimes:
        return run_all(call, micro_batches)

    def serve(call: int, items: int) -> StageTimes:
        """Full micro-batches until the items are used up, the last one cut short."""
        whole, rest = divmod(items, size)
        parts: list[Part] = [(number, None) for number in range(whole)]
        if rest:
            parts.append((whole, rest if program.takes_part_batches else None))
        return run_all(call, parts)

    return step, serve
