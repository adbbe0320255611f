"""The first calls of an instance: its answers to the probe items, copied and cut like any batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.core.clock import Clock
from autotune.core.errors import WrongOutput
from autotune.core.records import Answers, Config, Floats, Ints
from autotune.devices.base import Device, Staging
from autotune.workloads.base import Program
from autotune.workloads.outputs import TensorFigures, check_computed, figures_of
from autotune.workloads.probes import calls_for_all

PROBE_S = 0.1
"""Beyond the calls it takes to see every item, go on this long: one that answers from memory, by
the address of its input, is found at the third call."""


def answer(
    program: Program,
    staging: Staging,
    device: Device,
    config: Config,
    items: Ints,
    clock: Clock,
) -> tuple[Answers, float]:
    """Run a program on the probes.

    Args:
        staging: With the probes as its requests.
        items: Which item stands at each place of each call, shape (calls, batch).
    Returns:
        The answers, and how long the first call took, in seconds.
    Raises:
        WrongOutput: The number of output tensors changes from call to call.
    """
    began_s = clock.now_s()
    first_call_s = 0.0
    runs: list[tuple[TensorFigures, ...]] = []
    for call in range(len(items)):
        if call >= calls_for_all(config.batch_size) and clock.now_s() - began_s > PROBE_S:
            break
        runs += _call(program, staging, device, config, call)
        if call == 0:
            first_call_s = clock.now_s() - began_s
    if len({len(run) for run in runs}) > 1:
        raise WrongOutput("the number of output tensors changes from call to call")
    by_tensor = list(zip(*runs, strict=True))
    parts = [_joined([tensor.figures for tensor in tensors]) for tensors in by_tensor]
    places = len(runs) * (config.batch_size // config.micro_batch_count)
    kept = [part for part in parts if part is not None]
    answers = Answers(
        item=items.ravel()[:places],
        figures=np.hstack(kept) if kept else np.empty((places, 0)),
        widths=tuple(0 if part is None else part.shape[1] for part in parts),
        is_discrete=tuple(tensors[0].is_discrete for tensors in by_tensor),
        shapes=tuple(tensors[0].shape for tensors in by_tensor),
        run_items=config.batch_size // config.micro_batch_count,
        precision=program.precision,
    )
    return answers, first_call_s


def _call(
    program: Program, staging: Staging, device: Device, config: Config, call: int
) -> list[tuple[TensorFigures, ...]]:
    """One call, the figures of each of its micro-batches."""
    assert program.run is not None, "a program that does whole calls has no outputs to look at"
    size = config.batch_size // config.micro_batch_count
    runs = []
    for micro_batch in range(config.micro_batch_count):
        output = program.run(*staging.load(call, micro_batch))
        (program.wait or device.synchronize)()
        check_computed(output)
        if program.outputs is not None:
            output = program.outputs(output)
        runs.append(figures_of(output, size, program.inputs[0].batch_axis))
    return runs


def _joined(parts: Sequence[Floats | None]) -> Floats | None:
    """The figures of one tensor over all runs; None if it has none, or not always as many."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or len({part.shape[1] for part in known}) != 1:
        return None
    return np.concatenate(known)
