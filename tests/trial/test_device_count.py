"""Trials on several devices of one machine: simulated ones, and the processor playing two."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune.core.errors import UsageError
from autotune.core.records import (
    Config,
    InputSpec,
    Load,
    Plan,
    Samples,
    Window,
    WorkloadSpec,
)
from autotune.devices import find_device
from autotune.devices.readings import Reading, together
from autotune.devices.telemetry import meter_of_all
from autotune.measure.summary import summarise
from autotune.space.loader import load_text
from autotune.space.search_space import SearchSpace
from autotune.trial.group import group_spec
from autotune.trial.session import Launcher, open_session

SCALING = {"contention": 0.1, "coherency": 0.01}


def space(**workload: object) -> SearchSpace:
    found = load_text(
        "workload: {simulated: recommender_a3}\nparams: {device_count: [1, 2, 4]}\n", "fleet.yaml"
    )
    options = {"noise": 0.0, "scaling": SCALING, **workload}
    return replace(found, workload=replace(found.workload, options=options))


def rate(config: Config, load: Load | None = None) -> float:
    info = find_device("simulated")
    plan = Plan(windows=(Window(duration_s=1.0),), load=load or Load())
    with Launcher() as launcher, open_session(group_spec(config, space(), info), launcher) as run:
        found = summarise(run.measure(plan)).throughput_items_per_s
    assert found is not None
    return found


def test_simulated_devices_slow_each_other_as_declared() -> None:
    config = Config(batch_size=64, instance_count=2, batched_h2d=True)
    alone = rate(config)
    for count in (2, 3, 4):
        slowdown = 1 + 0.1 * (count - 1) + 0.01 * count * (count - 1)
        together_rate = rate(config.changed(device_count=count))
        assert together_rate == pytest.approx(count * alone / slowdown, rel=0.01)


def test_arrivals_are_shared_by_the_instances_of_all_devices() -> None:
    config = Config(batch_size=1, batched_h2d=True)
    load = Load(kind="poisson", rate_per_s=1.5 * rate(config))
    assert rate(config, load) < 0.75 * (load.rate_per_s or 0)
    assert rate(config.changed(device_count=2), load) > 0.97 * (load.rate_per_s or 0)


def test_instances_fill_one_device_after_the_other() -> None:
    config = Config(instance_count=3).changed(device_count=2)
    spec = group_spec(config, space(), find_device("simulated"))
    assert spec.devices == ("simulated", "simulated:1")
    assert len(spec.cores) == 6
    names = [spec.device_of(index) for index in range(6)]
    assert names == ["simulated"] * 3 + ["simulated:1"] * 3


def test_more_devices_than_there_are_are_left_out_or_refused() -> None:
    cpu = find_device("cpu")
    assert cpu.peers == ()
    found = space().on_device(cpu.facts, cpu.core_ladder, device_count=1)
    parameter = found.parameter("device_count")
    assert parameter is not None and parameter.choices == (1,)
    assert "device_count 4 left out: above the 1 here" in found.notes
    fixed = replace(space(), params=(replace(parameter, choices=(2, 4)),))
    with pytest.raises(UsageError, match=r"device_count: 2 is above the 1 here"):
        fixed.on_device(cpu.facts, cpu.core_ladder, device_count=1)
    with pytest.raises(UsageError, match="device_count=2, but of cpu there are 1 here"):
        group_spec(Config().changed(device_count=2), space(), cpu)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workload: {simulated: recommender_a3, scaling: {contention: 2}}", "contention"),
        ("workload: {simulated: recommender_a3, scaling: {sigma: 0.1}}", "unknown key 'sigma'"),
        ("workload: {model: mlp, scaling: {contention: 0.1}}", "belongs to simulated"),
        ("workload: {model: mlp}\nparams: {device_count: [0, 1]}", "device_count"),
    ],
)
def test_wrong_keys_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_text(f"{text}\n", "fleet.yaml")


def test_several_devices_read_as_one() -> None:
    one = Reading(power_w=100.0, temperature_c=50.0, utilisation_ratio=0.4, frequency_hz=2e9)
    other = replace(one, power_w=150.0, temperature_c=70.0, utilisation_ratio=0.6)
    both = together([one, other])
    assert (both.power_w, both.temperature_c, both.frequency_hz) == (250.0, 70.0, 2e9)
    assert both.utilisation_ratio == pytest.approx(0.5)
    assert together([one, replace(other, power_w=None)]).power_w is None
    assert meter_of_all(["simulated", "simulated:1"]) is None


def test_processes_of_two_devices_are_measured_together() -> None:
    """The processor stands for both: their instances run side by side in one group."""
    cpu = find_device("cpu")
    config = Config(batch_size=4, cores_per_instance=1).changed(device_count=2)
    model = f"{Path(__file__).with_name('models.py')}:plain"
    spec = WorkloadSpec(
        kind="torch", model=model, inputs=(InputSpec(name="x", shape=("batch", 16)),)
    )
    group = group_spec(config, replace(space(), workload=spec), replace(cpu, peers=(cpu,)))
    assert group.devices == ("cpu", "cpu")
    with Launcher() as launcher, open_session(group, launcher, timeout_s=30) as session:
        samples = session.measure(Plan(windows=(Window(duration_s=0.3),), deadline_s=30))
    assert isinstance(samples, Samples)
    assert np.unique(samples.instance).tolist() == [0, 1]
    assert len(samples.facts) == 2
