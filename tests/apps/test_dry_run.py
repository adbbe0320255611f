from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.apps.doctor import doctor
from autotune.apps.dry_run import OPEN_S, PREPARE_S, dry_run
from autotune.core.errors import UsageError
from autotune.devices import device_kind, find_devices
from autotune.search.schedule import MIN_ROUNDS
from autotune.space.loader import load_space


def test_it_counts_and_estimates_and_leaves_nothing(
    space_file: Callable[..., Path], tmp_path: Path
) -> None:
    planned = dry_run(load_space(space_file(trials=500), ["rules=[batch_size <= 8]"]))
    assert (planned.combinations, planned.allowed, planned.trials) == (28, 16, 16)
    assert planned.seconds > 16 * 2
    assert not (tmp_path / "studies").exists()
    assert json.loads(json.dumps(planned.to_json(), allow_nan=False))["allowed"] == 16


def test_the_estimate_keeps_within_the_budget_of_time(space_file: Callable[..., Path]) -> None:
    cut = dry_run(load_space(space_file(), ["budget.time=10s"]))
    assert cut.seconds == 10 and cut.is_cut_short
    free = dry_run(load_space(space_file()))
    assert cut.full_s == free.full_s == free.seconds and not free.is_cut_short


def test_virtual_time_counts_what_was_recorded_and_says_so(space_file: Callable[..., Path]) -> None:
    space = load_space(space_file(trials=10), ["confirm=false", "trial.duration=1s"])
    planned = dry_run(space)
    assert planned.is_virtual
    assert planned.seconds == pytest.approx(10 * (1 + 0.5))


def test_a_real_study_counts_its_processes_and_the_rounds_of_the_proof(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("workload: {model: mlp}\ndevice: cpu\nparams: {batch_size: [1, 2]}\n")
    planned = dry_run(load_space(path, ["confirm.duration=10s", "trial.duration=1s"]))
    assert not planned.is_virtual
    searching_s = PREPARE_S + 2 * (1 + OPEN_S)
    assert planned.seconds == pytest.approx(searching_s + 5 * (10 + MIN_ROUNDS * OPEN_S))


def test_workers_share_the_trials_and_each_has_cores_of_its_own(
    space_file: Callable[..., Path], tmp_path: Path
) -> None:
    space = load_space(space_file(trials=9), ["confirm=false"])
    alone, shared = dry_run(space), dry_run(space, workers=2)
    assert (alone.trials, shared.trials) == (9, 9)
    assert shared.seconds == pytest.approx(alone.seconds * 5 / 9)
    path = tmp_path / "own.yaml"
    path.write_text("workload: {model: mlp}\ndevice: cpu\nparams: {batch_size: [1, 2]}\n")
    cores, before = find_devices("cpu")[0].core_count, os.sched_getaffinity(0)
    one_each = dry_run(load_space(path, ["rules=[core_count == 1]"]), workers=cores)
    assert one_each.allowed == 2
    assert os.sched_getaffinity(0) == before
    with pytest.raises(UsageError, match="each has cores of its own"):
        dry_run(load_space(path), workers=cores + 1)


def test_it_says_how_long_a_limit_takes_to_show(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("workload: {model: mlp}\ndevice: cpu\nparams: {batch_size: [1, 2]}\n")
    assert dry_run(load_space(path)).needs is None
    needs = dry_run(load_space(path, ["limits.latency_p99=20ms"])).needs
    assert needs is not None and needs.least_s is None
    assert needs.calls == 550  # .99 ** n <= .004: three looks at 1 % in all
    assert needs.most_s == pytest.approx(550 * 0.020)
    # A simulated call costs nothing to look at.
    path.write_text("workload: {simulated: recommender_a3}\nparams: {batch_size: [128, 256]}\n")
    planned = dry_run(load_space(path, ["limits.latency_p99=20ms"]))
    assert planned.needs is not None and planned.needs.least_s is not None
    assert 0 < planned.needs.least_s < planned.needs.most_s
    assert any("calls without a slow one" in note for note in planned.notes)
    assert json.loads(json.dumps(planned.to_json(), allow_nan=False))["limit_needs"]["calls"] == 550


def test_doctor_names_every_kind_with_its_devices_or_why_there_are_none() -> None:
    found = doctor()
    kinds = {discovery.kind: discovery for discovery in found.devices}
    assert {"cpu", "npu", "cuda"} <= set(kinds)
    assert kinds["cpu"].devices
    assert all(discovery.devices or discovery.why_not for discovery in found.devices)
    assert found.versions["optuna"]
    json.dumps(found.to_json(), allow_nan=False)


def test_doctor_looks_at_an_npu_system_only_where_there_is_a_sign_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not Path("/usr/local/Ascend").exists() and importlib.util.find_spec("torch_npu") is None:
        monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
        assert doctor().checks == ()
    monkeypatch.setenv("ASCEND_HOME_PATH", "/nowhere")
    (check,) = (check for check in doctor().checks if check.name == "environment")
    assert check.status == "failed" and "/nowhere" in check.detail


def test_doctor_tries_a_device_with_a_model_as_a_trial_would_run_it() -> None:
    (check,) = (check for check in doctor("cpu").checks if check.device == "cpu")
    assert (check.name, check.status) == ("ResNet50", "ok") and "a picture in" in check.detail


def test_doctor_cannot_try_what_is_not_there() -> None:
    with pytest.raises(UsageError, match="unknown device"):
        doctor("tpu")
    if not find_npus():
        found = doctor("npu:0")
        (missing,) = (check for check in found.checks if check.device)
        assert not found.is_usable and "npu:0 is not available" in missing.detail
        assert "device nodes" in {check.name for check in found.checks}, "what stands in its way"
    assert doctor().is_usable


def find_npus() -> bool:
    return bool(device_kind("npu").discover().devices)


def test_a_latency_limit_that_chooses_no_rate_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("workload: {model: mlp}\ndevice: cpu\nload: {poisson: {rate: max}}\n")
    limits = ["limits={latency_mean: 1ms, latency_p99: 5ms, memory_peak: 1GiB}"]
    (note,) = (n for n in dry_run(load_space(path, limits)).notes if n.startswith("the rate"))
    assert "keeps latency_p99" in note and "breaks latency_mean" in note
    assert not any(
        n.startswith("the rate")
        for n in dry_run(load_space(path, ["limits={latency_p99: 5ms, latency_p50: 1ms}"])).notes
    )


def test_arrivals_of_which_nothing_can_be_measured_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    (tmp_path / "trace.txt").write_text("1\n0\n")
    path.write_text("workload: {model: mlp}\ndevice: cpu\nload: {trace: trace.txt}\n")
    with pytest.raises(UsageError, match=r"trace.txt:2: 0 is before"):
        dry_run(load_space(path))
