"""Studies from the command line on the stub: all five dimensions, and what a declared cost does.

Timings of the stub say nothing about an NPU; only declared costs are asserted on.
"""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

QUICK = ("workload.options={size: small}", "limits.latency_p99=30s", "confirm=false")
DIMENSIONS = (
    "batch_size", "instance_count", "cores_per_instance", "batched_h2d", "micro_batch_count",
)  # fmt: skip


def autotune(*words: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return done.stdout


def run(folder: Path, *settings: str, **environment: str) -> list[dict[str, str]]:
    """A study over the shipped space file; its trials as rows."""
    sets = [word for setting in (*QUICK, *settings) for word in ("--set", setting)]
    where = ("--studies-dir", str(folder))
    words = ("run", "--space", "recommender_npu.yaml", "--device", "npu:0", "--json", *where)
    answer = json.loads(autotune(*words, *sets, **environment))
    assert answer["complete"] and answer["config"]
    return list(csv.DictReader(io.StringIO(autotune("show", "recommender_npu", "--csv", *where))))


def test_all_five_dimensions_are_searched(tmp_path: Path) -> None:
    rows = run(
        tmp_path, "budget.trials=8", "sampler=random", "trial.duration=0.2s",
        "params.batch_size=[8, 16]", "params.instance_count=[1, 2]",
        "params.cores_per_instance=auto", "params.micro_batch_count=[1, 2]",
    )  # fmt: skip
    assert len(rows) == 8
    assert {row["outcome"] for row in rows} <= {"ok", "undecided", "over_limit"}
    assert all(len({row[name] for row in rows}) > 1 for name in DIMENSIONS), rows
    report = (tmp_path / "recommender_npu/report.html").read_text()
    assert "8.5.0.stub" in report, "whoever reads it must see what it ran on"


def test_batched_copies_are_better_where_copies_cost_something(tmp_path: Path) -> None:
    def two_trials(name: str, latency_us: str) -> dict[str, dict[str, str]]:
        rows = run(
            tmp_path / name, "budget.trials=2", "sampler=grid", "trial.duration=1s",
            "params={batched_h2d: [false, true]}", "baseline={batch_size: 8}",
            STUB_CANN_COPY_LATENCY_US=latency_us, STUB_CANN_COPY_GB_PER_S="10",
        )  # fmt: skip
        return {row["batched_h2d"].lower(): row for row in rows}

    dear, free = two_trials("dear", "2000"), two_trials("free", "0")
    for trials in (dear, free):
        copies = {method: trials[method]["copies_per_call"] for method in trials}
        assert copies == {"false": "27", "true": "2"}
    assert saved_s(dear) > 25 * 0.002 > 2 * saved_s(free)
    assert rate(dear["true"]) > 1.5 * rate(dear["false"])


def saved_s(trials: dict[str, dict[str, str]]) -> float:
    return float(trials["false"]["h2d_mean_s"]) - float(trials["true"]["h2d_mean_s"])


def rate(row: dict[str, str]) -> float:
    return float(row["throughput_items_per_s"])


def test_a_study_goes_on_after_every_fault(tmp_path: Path) -> None:
    faults = ["none", "oom:1", "copy_error:60", "device_lost:60", "limit_readback"]
    rows = run(
        tmp_path, "budget.trials=10", "sampler=grid", "trial.duration=0.2s",
        "params={batch_size: [8, 16], cores_per_instance: 8|8, env.STUB_CANN_FAULT: "
        f"[{', '.join(faults)}]}}",
        "baseline={batch_size: 8, cores_per_instance: 8|8, env.STUB_CANN_FAULT: none}",
    )  # fmt: skip
    outcomes = {fault: {r["outcome"] for r in rows if fault in r.values()} for fault in faults}
    assert outcomes["none"] <= {"ok", "undecided"}
    assert outcomes["oom:1"] == {"oom"}
    for fault in ("copy_error:60", "device_lost:60", "limit_readback"):
        assert outcomes[fault] == {"crashed"}
    assert len(rows) == 10
