"""One run on a machine with an accelerator: does this project's device layer hold there?

    python benchmarks/accelerator_check.py cuda:0 --out check.json     # or npu:0, mlu:0

Looks at the device, runs the contract that every device keeps, then a study over all dimensions
the device has for a recommender and for ResNet50, and writes what was seen. Takes at most five
minutes; whoever owns a card can run it and send the file back.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autotune.devices import find_device

ROOT = Path(__file__).resolve().parents[1]
CONTRACT = "tests/contracts/test_device_contract.py"
CONTRACT_S, STUDY_S, SPARE_S = 60, 100, 10
STUDIES: dict[str, tuple[str, ...]] = {
    "dlrm": ("limits.latency_p99=20ms", "params.batch_size={low: 64, high: 16384, log: true}"),
    "resnet50": ("limits.latency_p99=100ms", "params.batch_size={low: 1, high: 512, log: true}"),
}
SHORT = ("trial.duration=1s", "confirm.top=1", "confirm.duration=2s", "budget.trials=24")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("device", help="such as cuda:0")
    parser.add_argument("--out", type=Path, default=Path("accelerator_check.json"))
    arguments = parser.parse_args()
    info = find_device(arguments.device)
    report: dict[str, Any] = {
        "device": json.loads(json.dumps(asdict(info), default=str)),
        "contract": contract(info.kind),
        "studies": {},
    }
    for model, settings in STUDIES.items():
        report["studies"][model] = study(info.name, model, settings)
        arguments.out.write_text(json.dumps(report, indent=1))
    print(json.dumps(report, indent=1))
    answered = all("status" in answer for answer in report["studies"].values())
    return 0 if answered and report["contract"]["passed"] else 1


def contract(kind: str) -> dict[str, Any]:
    """The contract suite for one kind of device, in a process of its own."""
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", CONTRACT, "-k", kind]
    code, out, _ = run(command, CONTRACT_S)
    return {"passed": code == 0, "summary": out.strip().splitlines()[-1:]}


def study(device: str, model: str, settings: tuple[str, ...]) -> dict[str, Any]:
    """A study from the command line; its answer, or the end of what it printed."""
    sets = [
        word
        for setting in (f"workload.model={model}", *settings, *SHORT)
        for word in ("--set", setting)
    ]
    name = f"check-{model}-{time.time():.0f}"
    where = ["--device", device, "--study", name, "--time", f"{STUDY_S}s", "--json"]
    command = ["-m", "autotune", "run", "--space", "recommender_npu.yaml", *where, *sets]
    code, out, errors = run(command, STUDY_S + SPARE_S)
    try:
        answer: dict[str, Any] = json.loads(out)
    except ValueError:
        answer = {"exit_code": code, "errors": errors[-2000:]}
    return answer


def run(command: list[str], limit_s: float) -> tuple[int, str, str]:
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            env={**environment, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return 124, "", str(error)
    return done.returncode, done.stdout, done.stderr


if __name__ == "__main__":
    sys.exit(main())
