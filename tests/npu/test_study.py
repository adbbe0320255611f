"""Studies from the command line on the stub: all five dimensions, and what a declared cost does.

Timings of the stub say nothing about an NPU; only declared costs are asserted on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from autotune.core.records import Measurement, TrialRecord
from autotune.search.study import StoredStudy

LIMIT_S = 170.0
QUICK = ("workload.options={size: small}", "limits.latency_p99=30s", "confirm=false")
DIMENSIONS = (
    "batch_size", "instance_count", "cores_per_instance", "batched_h2d", "micro_batch_count",
)  # fmt: skip


def run(folder: Path, *settings: str, **environment: str) -> list[TrialRecord]:
    """A study over the shipped space file; its trials."""
    sets = [word for setting in (*QUICK, *settings) for word in ("--set", setting)]
    space = ("--space", "recommender_npu.yaml", "--device", "npu:0")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "autotune", "run", *space),
            *("--json", "--studies-dir", str(folder), *sets),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    answer = json.loads(done.stdout)
    assert answer["complete"] and answer["config"]
    study = StoredStudy.load("recommender_npu", folder / "recommender_npu", storage="journal")
    return list(study.records())


def test_all_five_dimensions_are_searched(tmp_path: Path) -> None:
    rows = run(
        tmp_path, "budget.trials=6", "sampler=random", "trial.duration=0.2s",
        "params.batch_size=[8, 16]", "params.instance_count=[1, 2]",
        "params.cores_per_instance=auto", "params.micro_batch_count=[1, 2]",
    )  # fmt: skip
    assert len(rows) == 6
    assert all(row.verdict.outcome.is_measured for row in rows)
    for name in DIMENSIONS:
        assert len({row.config.as_dict()[name] for row in rows}) > 1, f"{name} was not searched"
    report = (tmp_path / "recommender_npu/report.html").read_text()
    assert "8.5.0.stub" in report, "whoever reads it must see what it ran on"


def test_batched_copies_are_better_where_copies_cost_something(tmp_path: Path) -> None:
    def two_trials(name: str, latency_us: str) -> dict[bool, Measurement]:
        rows = run(
            tmp_path / name, "budget.trials=2", "sampler=grid", "trial.duration=0.5s",
            "params={batched_h2d: [false, true]}", "baseline={batch_size: 8}",
            STUB_CANN_COPY_LATENCY_US=latency_us, STUB_CANN_COPY_GB_PER_S="10",
        )  # fmt: skip
        return {row.config.batched_h2d: row.measurement for row in rows if row.measurement}

    dear, free = two_trials("dear", "30000"), two_trials("free", "0")
    for trials in (dear, free):
        assert {batched: m.copies_per_call for batched, m in trials.items()} == {False: 27, True: 2}
    assert saved_s(dear) > 25 * 0.03 > 4 * saved_s(free)
    fast, slow = dear[True].throughput_items_per_s, dear[False].throughput_items_per_s
    assert fast and slow and fast > 1.3 * slow


def saved_s(trials: dict[bool, Measurement]) -> float:
    """What batching takes off the copies of a call, by the device's own clock."""
    separate, batched = trials[False].h2d_mean_s, trials[True].h2d_mean_s
    assert separate and batched
    return separate - batched


def test_a_study_goes_on_after_every_fault(tmp_path: Path) -> None:
    faults = ["none", "oom:1", "device_lost:60"]
    rows = run(
        tmp_path, "budget.trials=6", "sampler=grid", "trial.duration=0.2s",
        "params={batch_size: [8, 16], cores_per_instance: 8|8, env.STUB_CANN_FAULT: "
        f"[{', '.join(faults)}]}}",
        "baseline={batch_size: 8, cores_per_instance: 8|8, env.STUB_CANN_FAULT: none}",
    )  # fmt: skip
    outcomes: dict[str, set[str]] = {}
    for row in rows:
        fault = str(row.config.get("env.STUB_CANN_FAULT", ""))
        outcomes.setdefault(fault, set()).add(str(row.verdict.outcome))
    assert outcomes["none"] <= {"ok", "undecided"}
    assert outcomes["oom:1"] == {"oom"}
    assert outcomes["device_lost:60"] == {"crashed"}
    assert len(rows) == 6
