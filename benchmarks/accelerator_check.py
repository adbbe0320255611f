"""One run on a machine with an accelerator: does this project's device layer hold there?

    python benchmarks/accelerator_check.py cuda:0 --out check.json     # or npu:0, mlu:0

Looks at the device, tries it as `autotune doctor` does, runs the contract that every device keeps,
then a study over all five dimensions for a recommender and for ResNet50. Writes what was seen as
JSON and, beside it, as a page of Markdown. Takes at most five minutes; whoever owns a card can run
it and send both files back. `cpu` rehearses it without a card.

On CUDA instances share the SMs through NVIDIA's multi-process service. Where its daemon does not
run, one is started for the time of the check and ended with it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autotune.core.errors import AutotuneError
from autotune.core.records import TrialRecord
from autotune.core.units import format_duration
from autotune.devices import find_device
from autotune.search.study import StoredStudy

ROOT = Path(__file__).resolve().parents[1]
CONTRACT = "tests/contracts/test_device_contract.py"
CONTRACT_S, DOCTOR_S, STUDY_S = 45.0, 45.0, 80.0
SPARE_S = 20.0  # for a study to start and to write its report
MPS_CONTROL_S = 5.0
MPS_CONTROL = "nvidia-cuda-mps-control"
DIMENSIONS = (
    "batch_size", "instance_count", "cores_per_instance", "batched_h2d", "micro_batch_count",
)  # fmt: skip
STUDIES: dict[str, tuple[str, ...]] = {
    "dlrm": ("limits.latency_p99=20ms", "params.batch_size={low: 64, high: 16384, log: true}"),
    "resnet50": ("limits.latency_p99=100ms", "params.batch_size={low: 1, high: 512, log: true}"),
}
SHORT = (
    "params.cores_per_instance=auto", "baseline={batch_size: 64}", "trial.duration=1s",
    "confirm={top: 1, duration: 2s}", "budget.trials=24",
)  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("device", help="such as cuda:0")
    parser.add_argument("--out", type=Path, default=Path("accelerator_check.json"))
    parser.add_argument("--study-time", type=float, default=STUDY_S, help="seconds for each study")
    parser.add_argument("--models", nargs="+", default=list(STUDIES), choices=list(STUDIES))
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    arguments = parser.parse_args(words)
    began_s = time.monotonic()
    try:
        with multi_process_service(arguments.device) as note:
            report = checked(arguments.device, note)
            name = report["device"]["name"]
            for model in arguments.models:
                answer = study(name, model, arguments.settings, arguments.study_time)
                report["studies"][model] = answer
                report["elapsed_s"] = time.monotonic() - began_s
                arguments.out.write_text(json.dumps(report, indent=1))
                arguments.out.with_suffix(".md").write_text(page(report))
    except AutotuneError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(page(report))
    answered = all("status" in answer for answer in report["studies"].values())
    return 0 if answered and report["contract"]["passed"] else 1


def checked(device: str, note: str) -> dict[str, Any]:
    """The device, its own tries and its contract; the studies are still to come."""
    info = find_device(device)
    code, out, errors = run(["-m", "autotune", "doctor", "--device", info.name, "--json"], DOCTOR_S)
    return {
        "device": json.loads(json.dumps(asdict(info), default=str)),
        "multi_process_service": note,
        "doctor": parsed(code, out, errors),
        "contract": contract(info.kind),
        "studies": {},
    }


def contract(kind: str) -> dict[str, Any]:
    """The contract suite for one kind of device, in a process of its own."""
    # Its name ends those of its tests; it may be a part of other words ("inputs").
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", CONTRACT, "-k", f"{kind}]"]
    code, out, _ = run(command, CONTRACT_S)
    return {"passed": code == 0, "summary": out.strip().splitlines()[-1:]}


def study(device: str, model: str, settings: Sequence[str], time_s: float) -> dict[str, Any]:
    """A study from the command line: its answer, and what each choice of each dimension gave.

    Where it gave no answer, the end of what it printed.
    """
    words = (f"workload.model={model}", *STUDIES[model], *SHORT, *settings)
    sets = [word for setting in words for word in ("--set", setting)]
    with tempfile.TemporaryDirectory() as folder:
        where = ["--device", device, "--study", model, "--time", f"{time_s:g}s", "--json"]
        where += ["--studies-dir", folder, "--space", "recommender_npu.yaml"]
        code, out, errors = run(["-m", "autotune", "run", *where, *sets], time_s + SPARE_S)
        answer = parsed(code, out, errors)
        if "status" in answer:
            records = StoredStudy.load(model, Path(folder) / model).records()
            answer["dimensions"] = by_dimension(records)
    return answer


def by_dimension(records: Sequence[TrialRecord]) -> dict[str, dict[str, float]]:
    """The highest throughput seen with each choice of each dimension, items/s; 0: it never ran."""
    best: dict[str, dict[str, float]] = {name: {} for name in DIMENSIONS}
    for record in records:
        figure = record.measurement.throughput_items_per_s if record.measurement else None
        for name in DIMENSIONS:
            choices, choice = best[name], str(record.config.as_dict()[name])
            choices[choice] = max(choices.get(choice, 0.0), figure or 0.0)
    return best


def page(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    device, seconds = report["device"], report.get("elapsed_s", 0.0)
    versions = ", ".join(f"{name} {number}" for name, number in device["versions"].items())
    lines = [
        f"# {device['name']}: {device['description']}",
        "",
        f"{versions or 'no versions'}. In all {format_duration(seconds)}.",
        f"Contract: {' '.join(report['contract']['summary'])}. {report['multi_process_service']}",
        "",
    ]
    for check in report["doctor"].get("checks", ()):
        lines.append(f"- {check['name']}: {check['status']}, {check['detail']}")
    for model, answer in report["studies"].items():
        lines += ["", f"## {model}: {answer.get('status', 'no answer')}", "", *_study_lines(answer)]
    return "\n".join([*lines, ""])


def _study_lines(answer: dict[str, Any]) -> Iterator[str]:
    if "dimensions" not in answer:
        yield from ("```", answer.get("errors", ""), "```")
        return
    found, base = answer.get("measurement") or {}, answer.get("baseline") or {}
    yield f"`{json.dumps(answer.get('config'))}`, P99 {found.get('latency_p99_s')} s."
    yield (
        f"Throughput {found.get('throughput_items_per_s')}, of the baseline "
        f"{base.get('throughput_items_per_s')} items/s; gain {answer.get('gain')}, 95 % interval "
        f"{answer.get('gain_ci95')}."
    )
    yield from ("", "| dimension | highest throughput with each choice, items/s |", "|---|---|")
    for name, choices in answer["dimensions"].items():
        shown = ", ".join(f"{choice}: {figure:.4g}" for choice, figure in choices.items())
        yield f"| {name} | {shown} |"


@contextlib.contextmanager
def multi_process_service(device: str) -> Iterator[str]:
    """NVIDIA's multi-process service for the time of the check; yields what is to be said of it."""
    if not device.startswith("cuda") or find_device(device).splits:
        yield ""
        return
    if shutil.which(MPS_CONTROL) is None:
        yield f"There is no {MPS_CONTROL}, so that the SMs were not split."
        return
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["CUDA_MPS_PIPE_DIRECTORY"] = os.environ["CUDA_MPS_LOG_DIRECTORY"] = folder
        try:
            failure = _control(["-d"], Path(folder) / "said")
            yield (
                f"{MPS_CONTROL} did not start: {failure}"
                if failure
                else "The SMs were split by a multi-process service that was started for this."
            )
        finally:
            _control([], Path(folder) / "said", "quit\n")
            os.environ.clear()
            os.environ.update(before)


def _control(words: list[str], said: Path, commands: str = "") -> str:
    """Run the service's control; what it said where it failed. A daemon may keep its output."""
    with said.open("w+b") as output:
        try:
            code = subprocess.run(
                [MPS_CONTROL, *words],
                input=commands.encode(),
                stdout=output,
                stderr=output,
                timeout=MPS_CONTROL_S,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return f"it took more than {MPS_CONTROL_S:g} s"
        output.seek(0)
        return (output.read(200).decode(errors="replace").strip() or f"status {code}") * bool(code)


def parsed(code: int, out: str, errors: str) -> dict[str, Any]:
    """A command's JSON, or how it ended."""
    try:
        answer: dict[str, Any] = json.loads(out)
    except ValueError:
        answer = {"exit_code": code, "errors": errors[-2000:]}
    return answer


def run(command: list[str], limit_s: float) -> tuple[int, str, str]:
    """Exit status, output and errors of a Python command; 124: it took longer than the limit."""
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
