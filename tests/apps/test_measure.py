from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.apps.measure import measure
from autotune.apps.terminal import PlainView
from autotune.core.errors import OutOfMemory, UsageError
from autotune.core.outcomes import Outcome
from autotune.space.loader import load_space

SpaceFile = Callable[..., Path]
ONE = ["params.batch_size=8", "params.instance_count=2", "params.batched_h2d=true"]


def test_one_configuration_has_an_interval_over_fresh_sessions_and_a_verdict(
    space_file: SpaceFile,
) -> None:
    result = measure(load_space(space_file(), ONE))
    assert result.record.config.batch_size == 8
    assert result.record.verdict.outcome is Outcome.OK
    assert len(result.sessions) == 6
    measurement = result.record.measurement
    assert measurement is not None and measurement.throughput_ci95_items_per_s is not None
    low, high = measurement.throughput_ci95_items_per_s
    true = 8 * 1.8 / (0.0008 + 8 * 50e-6)
    assert low < true * 1.02 and high > true * 0.98
    rates = [s.throughput_items_per_s for s in result.sessions]
    assert len(set(rates)) == 6
    assert json.dumps(result.to_json(), allow_nan=False)


def test_it_says_only_what_applies(space_file: SpaceFile) -> None:
    said: list[str] = []
    measure(load_space(space_file(), ONE), view=PlainView(said.append), sessions=4)
    assert said[0].startswith("measuring")
    assert not any("study" in line or "trial" in line for line in said)
    assert any(line.split() == ["sessions", "4,", "5.00", "s", "each"] for line in said)


def test_an_open_parameter_has_the_baselines_value(space_file: SpaceFile) -> None:
    result = measure(load_space(space_file(), ["params.batch_size=4"]), sessions=2)
    assert result.record.config.as_dict()["instance_count"] == 1


def test_a_broken_limit_is_the_verdict(space_file: SpaceFile) -> None:
    result = measure(load_space(space_file(limit="0.5ms"), ONE), sessions=2)
    assert result.record.verdict.outcome is Outcome.OVER_LIMIT


def test_a_configuration_that_cannot_run_raises(space_file: SpaceFile) -> None:
    with pytest.raises(OutOfMemory):
        measure(load_space(space_file(), ["params.batch_size=64", "params.instance_count=2"]))


def test_a_configuration_outside_the_record_is_refused(space_file: SpaceFile) -> None:
    with pytest.raises(UsageError, match="77"):
        measure(load_space(space_file(), ["params.batch_size=77"]))
