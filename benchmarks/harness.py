"""What the harness costs: per call against a bare loop, and per trial beyond measuring.

    python benchmarks/harness.py [--model dlrm] [--batch 64] [--pairs 30] [--trials 15]

Both figures come from one run: bare and harness loops alternate (A B B A) inside one process,
and trials are whole sessions, forked, measured and closed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from autotune.core.clock import MonotonicClock
from autotune.core.records import Config, Floats, GroupSpec, Plan, Samples, Window, WorkloadSpec
from autotune.devices import device_kind, find_device, open_device
from autotune.measure.engine import warmup_cap_s
from autotune.measure.load import closed_loop
from autotune.trial.session import Launcher, open_session
from autotune.trial.step import compose
from autotune.workloads import load_workload
from autotune.workloads.base import Context
from autotune.workloads.data import make_requests

BLOCK_S = 0.1


def group_spec(model: str, config: Config) -> GroupSpec:
    """The group that runs a built-in model on the CPU."""
    info, kind = find_device("cpu"), device_kind("cpu")
    return GroupSpec(
        config=config,
        workload=WorkloadSpec(kind="torch", model=model),
        devices=("cpu",),
        cores=kind.assign_cores(config, info),
        environment=kind.environment(config, info),
    )


def loops(model: str, config: Config) -> tuple[Callable[[int], object], Callable[[int], object]]:
    """A bare and a harnessed loop over the same model; each takes a number of calls.

    The bare loop copies the inputs and runs the model, nothing else.
    """
    clock, device = MonotonicClock(), open_device("cpu", "cpu")
    spec = group_spec(model, config)
    device.bind(spec.cores[0])
    program = load_workload("torch")(
        Context(config=config, workload=spec.workload, devices=("cpu",), framework_device="cpu",
                clock=clock)
    )  # fmt: skip
    requests = make_requests(program.inputs, config.batch_size, 8, 0)
    staging = device.stage(program.inputs, requests, config)
    step = compose(program, staging, device, config, clock).step
    run, load = program.run, staging.load

    def bare(count: int) -> None:
        for call in range(count):
            run(*load(call, 0))

    def harness(count: int) -> object:
        return closed_loop(step, clock, iterations=count)

    return bare, harness


def spent_s(loop: Callable[[int], object], count: int) -> Floats:
    """Wall-clock and CPU seconds of `count` calls, shape (2,)."""
    began = np.array([time.perf_counter(), time.process_time()])
    loop(count)
    return np.array([time.perf_counter(), time.process_time()]) - began


def ratios_to_bare(model: str, batch: int, pairs: int) -> Floats:
    """Harness time over bare time of each A B B A block, shape (pairs, 2): wall clock, CPU."""
    bare, harness = loops(model, Config(batch_size=batch, cores_per_instance=1))
    bare(50)
    count = max(2, int(BLOCK_S / (spent_s(bare, 50)[0] / 50)))
    ratios = []
    for _ in range(pairs):
        a = spent_s(bare, count)
        b = spent_s(harness, count) + spent_s(harness, count)
        ratios.append(b / (a + spent_s(bare, count)))
    return np.array(ratios)


def trial_cost_s(model: str, batch: int, trials: int, instances: int) -> list[float]:
    """Seconds of a session beyond building the model, its first call, warm-up and window."""
    config = Config(batch_size=batch, cores_per_instance=1, instance_count=instances)
    plan = Plan(windows=(Window(duration_s=0.5),))
    costs = []
    with Launcher() as launcher:
        for _ in range(trials + 1):
            began_s = time.monotonic()
            with open_session(group_spec(model, config), launcher) as session:
                warm_began_s = time.monotonic()
                session.warm_up(plan)
                warm_s = time.monotonic() - warm_began_s
                samples = session.measure(plan)
            total_s = time.monotonic() - began_s
            assert isinstance(samples, Samples)
            built_s = max(f.load_s + f.first_call_s for f in samples.facts)
            measured_s = float(samples.end_s.max() - samples.start_s.min())
            costs.append(total_s - built_s - min(warm_s, warmup_cap_s(plan) + 1) - measured_s)
    return costs[1:]  # the first waits for the zygote's imports


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="dlrm")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--trials", type=int, default=15)
    arguments = parser.parse_args()
    for instances in (1, 2):
        costs = trial_cost_s(arguments.model, arguments.batch, arguments.trials, instances)
        print(
            f"trial beyond model, warm-up and window, {instances} instance(s), "
            f"{len(costs)} trials: median {statistics.median(costs):.3f} s, "
            f"max {max(costs):.3f} s"
        )
    # Last, because it binds this process to one core.
    ratios = ratios_to_bare(arguments.model, arguments.batch, arguments.pairs)
    print(
        f"harness / bare, {arguments.model} batch {arguments.batch}, {len(ratios)} A B B A pairs:"
    )
    for name, column in zip(("wall clock", "CPU time"), ratios.T, strict=True):
        half = 2.04 * column.std(ddof=1) / len(column) ** 0.5  # t, 95 %, 30 pairs
        median, mean = np.median(column), column.mean()
        print(f"  {name}: median {median:.4f}, mean {mean:.4f} ± {half:.4f}")


if __name__ == "__main__":
    main()
