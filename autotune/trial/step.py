"""The step that is timed: staging x micro-batches x run, the same for every workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.core.clock import Clock
from autotune.core.records import Config, StageTimes
from autotune.devices.base import Device, Staging
from autotune.measure.load import Step
from autotune.workloads.base import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepper:
    """A composed step and what is known of it.

    Attributes:
        program, staging: What it is made of; no staging for a program that does whole calls.
    """

    step: Step
    program: Program
    staging: Staging | None = None

    @property
    def copies_per_call(self) -> int | None:
        return self.staging.copies_per_call if self.staging else None

    @property
    def notes(self) -> tuple[str, ...]:
        return (f"host-to-device copies: {self.staging.method}",) if self.staging else ()

    def first(self) -> Sequence[float]:
        """Make the first call; returns figures that stand for its output, () if there are none."""
        if self.staging is None or self.program.run is None:
            self.step(0)
            return ()
        output = self.program.run(*self.staging.load(0, 0))
        return self.program.summarise(output) if self.program.summarise else ()


def compose(
    program: Program, staging: Staging | None, device: Device, config: Config, clock: Clock
) -> Stepper:
    """Compose the step of one instance.

    Each micro-batch is copied, then run; the device is waited for once, at the end of the call.
    """
    if program.step is not None:
        return Stepper(step=program.step, program=program)
    assert staging is not None and program.run is not None, "a program has a step or a run"
    run, load, synchronize, now_s = program.run, staging.load, device.synchronize, clock.now_s
    micro_batches = range(config.micro_batch_count)

    def step(call: int) -> StageTimes:
        began_s = now_s()
        copying_s = 0.0
        for micro_batch in micro_batches:
            copy_began_s = now_s()
            tensors = load(call, micro_batch)
            copying_s += now_s() - copy_began_s
            run(*tensors)
        synchronize()  # launches return early: without it the clock would stop too soon
        return StageTimes(copying_s, now_s() - began_s - copying_s, 0.0)

    return Stepper(step=step, program=program, staging=staging)
