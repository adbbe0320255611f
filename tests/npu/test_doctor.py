"""`autotune doctor --device npu:0`, and the check that owners of cards run, on the stub."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

from autotune.apps.doctor import doctor

CHECK = Path(__file__).parents[2] / "benchmarks/accelerator_check.py"


def test_a_device_is_tried_from_a_sum_to_a_picture() -> None:
    checks = {check.name: check for check in doctor("npu:0").checks if check.device}
    found = {name: check.status for name, check in checks.items()}
    assert found == {
        "sum": "ok",
        "copies": "ok",
        "memory": "ok",
        "core limit": "skipped",  # the stub has no profiler
        "telemetry": "warning",  # nor npu-smi
        "ResNet50": "ok",
    }, checks
    assert checks["ResNet50"].detail.startswith("a picture in")


def test_owners_of_cards_send_back_figures_of_every_dimension(tmp_path: Path) -> None:
    check = runpy.run_path(str(CHECK))
    quick = (
        "workload.options={size: small}", "params.batch_size=[2, 4]",
        "params.instance_count=[1, 2]", "params.micro_batch_count=[1, 2]",
        "baseline={batch_size: 2}", "limits.latency_p99=30s", "trial.duration=0.1s",
        "budget.trials=6", "sampler=random", "confirm=false",
    )  # fmt: skip
    answer = check["study"]("npu:0", "resnet50", quick, 150.0)
    assert answer["status"] == "unconfirmed", answer
    assert set(answer["dimensions"]) == set(check["DIMENSIONS"])
    assert all(len(choices) > 1 for choices in answer["dimensions"].values()), answer
    report = {
        "device": {"name": "npu:0", "description": "a stub", "versions": {"cann": "8.5.0.stub"}},
        "multi_process_service": "",
        "doctor": {"checks": [{"name": "sum", "status": "ok", "detail": "adds up"}]},
        "contract": {"passed": True, "summary": ["36 passed"]},
        "studies": {"resnet50": answer, "dlrm": {"exit_code": 3, "errors": "no device"}},
    }
    page = check["page"](json.loads(json.dumps(report)))
    assert "| micro_batch_count | 1: " in page and "## dlrm: no answer" in page
