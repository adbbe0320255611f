"""The canary on the real machine, and a neighbour beside a real trial."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.core.records import (
    Config,
    GroupSpec,
    InputSpec,
    Plan,
    Samples,
    Window,
    WorkloadSpec,
)
from autotune.devices import device_kind, find_device
from autotune.measure.noise import trust_of
from autotune.trial.canary import MAX_CORES, HostCanary, open_canary
from autotune.trial.session import Launcher, open_session

MODELS = Path(__file__).with_name("models.py")
CORE = min(os.sched_getaffinity(0))


@pytest.fixture
def burner() -> Iterator[None]:
    """A process that computes on one core for as long as the test runs."""
    process = subprocess.Popen(
        [sys.executable, "-c", "while True: pass"],
        preexec_fn=lambda: os.sched_setaffinity(0, {CORE}),
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_readings_agree_and_leave_the_tool_where_it_was() -> None:
    before = os.sched_getaffinity(0)
    canary = HostCanary(sorted(before))
    readings = [canary.read() for _ in range(5)]
    assert os.sched_getaffinity(0) == before
    assert 0 < min(readings) <= max(readings) < 3 * min(readings)


def test_only_a_few_cores_of_many_are_looked_at() -> None:
    assert len(HostCanary(range(64))._cores) == MAX_CORES
    # Cores that are not there, or not allowed, cost nothing but the reading of another.
    assert HostCanary([100_000]).read() > 0


def test_time_that_is_not_real_has_no_canary() -> None:
    info = find_device("simulated")
    with Launcher() as launcher:
        workload = WorkloadSpec(kind="simulated", model="recommender_a3")
        assert open_canary(workload, info, launcher) is None


def test_waiting_for_a_core_is_not_slowness_of_the_machine(burner: None) -> None:
    """A neighbour on the same core takes half of it; the work itself costs about what it did."""
    info, kind = find_device("cpu"), device_kind("cpu")
    config = Config(cores_per_instance=1)
    spec = GroupSpec(
        config=config,
        workload=WorkloadSpec(
            kind="torch",
            model=f"{MODELS}:plain",
            inputs=(InputSpec(name="x", shape=("batch", 16)),),
        ),
        devices=("cpu",),
        cores=((CORE,),),
        environment=kind.environment(config, info),
    )
    plan = Plan(windows=(Window(duration_s=0.5),), deadline_s=30)
    with Launcher() as launcher, open_session(spec, launcher, timeout_s=60) as session:
        samples = session.measure(plan)
    assert isinstance(samples, Samples)
    trust = trust_of(samples)
    assert not trust.is_quiet and "another process took" in trust.line
