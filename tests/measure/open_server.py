"""A server with declared call times on virtual clocks, for tests of the open loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autotune.core.clock import VirtualClock
from autotune.core.records import Config, InstanceFacts, Load, Plan, Samples, StageTimes, Window
from autotune.measure.client_queue import local_state
from autotune.measure.engine import Server, merge, run_open_windows, to_open_samples
from autotune.measure.load import Serve

CallTime = Callable[[int], float]
"""Seconds of a call with so many items."""


def serve_of(clock: VirtualClock, time_s: CallTime) -> Serve:
    """Calls that move a clock."""

    def serve(call: int, items: int) -> StageTimes:
        spent_s = time_s(items)
        clock.advance(spent_s)
        return StageTimes(0.0, spent_s, 0.0)

    return serve


def jittered(
    fixed_s: float, item_s: float, seed: int, jitter: float = 0.05, stragglers: float = 0.002
) -> CallTime:
    """Affine call times with lognormal jitter; a straggler takes three times as long."""
    rng = np.random.default_rng(seed)

    def time_s(items: int) -> float:
        factor = 3.0 if rng.random() < stragglers else 1.0
        return factor * (fixed_s + item_s * items) * float(np.exp(jitter * rng.standard_normal()))

    return time_s


def run_open(
    times: Sequence[CallTime],
    rate_per_s: float,
    *,
    duration_s: float = 10.0,
    max_batch: int = 16,
    max_delay_s: float = 0.0,
    seed: int = 0,
    load: Load | None = None,
    windows: int = 1,
) -> Samples:
    """Serve a Poisson load with one instance per call time."""
    config = Config(batch_size=max_batch).changed(max_queue_delay=max_delay_s)
    load = load or Load(kind="poisson", rate_per_s=rate_per_s)
    plan = Plan(windows=(Window(duration_s=duration_s),) * windows, load=load, arrival_seed=seed)
    clocks = [VirtualClock() for _ in times]
    servers = [
        Server(serve=serve_of(clock, time_s), clock=clock)
        for clock, time_s in zip(clocks, times, strict=True)
    ]
    states = [local_state(plan.load) for _ in plan.windows]
    served = run_open_windows(servers, config, plan, base_s=0.0, state=states.__getitem__)
    return merge(
        [
            to_open_samples(own, load, InstanceFacts(instance=index))
            for index, own in enumerate(served)
        ]
    )
