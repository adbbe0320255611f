"""Whole studies of spaces in which there is little to find: each ends well and says what it saw."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.apps.run import run
from autotune.results.left_open import left_open
from autotune.results.study_result import StudyResult
from autotune.space.loader import load_space

BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
Rate = Callable[[int, int, int], float]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., StudyResult]:
    """Runs a study on a recorded grid of batches, instances and a variable, 3 % noise."""
    monkeypatch.chdir(tmp_path)

    def run_on(
        rate: Rate,
        *,
        batches: tuple[int, ...] = BATCHES,
        instances: tuple[int, ...] = (1, 2, 3),
        variables: tuple[int, ...] = (0, 1),
        limit: str = "",
        trials: int = 20,
    ) -> StudyResult:
        names = ["batch_size"]
        names += ["instance_count"] if len(instances) > 1 else []
        names += ["env.SPIN"] if len(variables) > 1 else []
        lines = [",".join([*names, "throughput_items_per_s,latency_p99_s,status,cost_s"])]
        for batch in batches:
            for count in instances:
                for spin in variables:
                    row = {"batch_size": batch, "instance_count": count, "env.SPIN": spin}
                    served = rate(batch, count, spin)
                    figures = f"{served},{1.2 * batch * count / served},ok,0.5"
                    lines.append(",".join([*(str(row[n]) for n in names), figures]))
        Path("grid.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        Path("edge.yaml").write_text(
            f"workload: {{replay: grid.csv}}\nbudget: {{trials: {trials}}}\n"
            + (f"limits: {{latency_p99: {limit}}}\n" if limit else ""),
            encoding="utf-8",
        )
        return run(load_space(Path("edge.yaml")))

    return run_on


def smooth(batch: int, instances: int, spin: int) -> float:
    """1 ms and 20 µs per item, instances help a little; `spin` does nothing."""
    return batch * instances**0.4 / (1e-3 + 2e-5 * batch)


def test_one_free_parameter(study: Callable[..., StudyResult]) -> None:
    def peaked(batch: int, instances: int, spin: int) -> float:
        return batch / (1e-3 + 2e-5 * batch * (1 + (batch / 60) ** 2))

    result = study(peaked, instances=(1,), variables=(0,), trials=10)
    assert result.status == "confirmed" and result.config is not None
    best = max(peaked(batch, 1, 0) for batch in BATCHES)
    assert peaked(result.config.batch_size, 1, 0) > 0.95 * best
    assert any(f"of {len(BATCHES)} configurations were not tried" in s for s in left_open(result))


def test_a_million_combinations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cores = [f'"{cube}|{cube}"' for cube in range(1, 25)]
    Path("huge.yaml").write_text(
        "workload: {simulated: recommender_a3}\n"
        "params:\n"
        "  batch_size: {low: 16, high: 4352, step: 16}\n"
        "  instance_count: {low: 1, high: 8, step: 1}\n"
        f"  cores_per_instance: [{', '.join(cores)}]\n"
        "  micro_batch_count: [1, 2, 4, 8, 16]\n"
        "  batched_h2d: [false, true]\n"
        "  env.A: [0, 1]\n"
        "budget: {trials: 20}\n"
        "confirm: false\n",
        encoding="utf-8",
    )
    space = load_space(Path("huge.yaml"))
    assert space.allowed_count(2_000_000) > 1_000_000
    result = run(space)
    assert result.trial_count == 20 and result.config is not None
    assert result.gain is not None and result.gain > 4
    assert "Most configurations were not tried" in " ".join(left_open(result))


def test_no_feasible_point(study: Callable[..., StudyResult]) -> None:
    result = study(smooth, limit="100us")
    assert result.status == "infeasible" and result.config is None
    assert result.trial_count == 20 and result.closest is not None
    reasons = " ".join(result.recommendation.reasons)
    assert "no tested configuration holds" in reasons
    assert "the closest, which does not meet it" in reasons


def test_every_point_equal(study: Callable[..., StudyResult]) -> None:
    result = study(lambda *_: 1000.0)
    assert result.config is not None
    if result.gain is not None:
        assert 0.9 < result.gain < 1.1  # nothing better than the baseline, and no claim of it
    said = " ".join(left_open(result))
    assert "are expected to be as good within 2 %" in said
    assert "batch_size" in said and "env.SPIN" in said and "not matter" in said


def test_a_parameter_that_does_nothing(study: Callable[..., StudyResult]) -> None:
    result = study(smooth, trials=30)
    assert result.status == "confirmed" and result.config is not None
    assert result.config.batch_size >= 384 and result.config.instance_count == 3
    assert any("env.SPIN does not matter" in s for s in left_open(result))
