"""What `diagnose` finds in simulated studies, and in a real process whose bottleneck is planted."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import autotune
from autotune.apps.diagnose import diagnose_space, diagnose_study, diagnosis_json
from autotune.apps.looking import Looker
from autotune.apps.resolve import resolve
from autotune.apps.store import load_result
from autotune.apps.view import View
from autotune.core.errors import UsageError
from autotune.space.loader import load_text
from autotune.trial.session import Launcher

MODELS = """
import torch

class Small(torch.nn.Module):
    def forward(self, x):
        for _ in range(150):
            x = x + 1.0
        return x

class Large(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(3)))

    def forward(self, x):
        return self.layers(x)
"""


def study(tmp_path: Path) -> Path:
    space = autotune.load_space("recommender_a3.yaml", ["confirm=false", "budget.trials=8"])
    autotune.run(space, studies_dir=tmp_path)
    return tmp_path / "recommender_a3"


def test_a_study_is_diagnosed_and_its_forecast_checked(tmp_path: Path) -> None:
    directory = study(tmp_path)
    known = load_result("recommender_a3", tmp_path).diagnoses  # without having been asked for
    assert known[0].source == "declared" and known[0].knob == "batched_h2d"
    found = diagnose_study("recommender_a3", studies_dir=tmp_path)
    baseline, best = found.found
    assert baseline.config is not None and baseline.config.batch_size == 128
    assert (baseline.part, baseline.knob, baseline.source) == ("h2d", "batched_h2d", "declared")
    made = baseline.forecast
    assert made is not None and made.holds and made.measured == pytest.approx(1.7, rel=0.1)
    kept = load_result("recommender_a3", tmp_path)
    assert [one.config for one in kept.diagnoses] == [baseline.config, best.config]
    assert kept.diagnoses[0] == baseline
    printed = found.to_json()
    assert printed["diagnoses"][0]["bottleneck"]["measured_gain"] == made.measured
    assert any(line.startswith("Checked: batched_h2d") for line in found.lines())
    recorded = replace(found, found=(replace(best, files=("profiles/1-2/trace.json",)),))
    assert f"recorded in {directory}/profiles/1-2/trace.json" in list(recorded.lines())
    # A damaged file of it hides nothing else of the study.
    (directory / "diagnosis.json").write_text('{"diagnoses": [{"part": 3}]}')
    assert load_result("recommender_a3", tmp_path).diagnoses == ()


def test_one_configuration_of_a_study(tmp_path: Path) -> None:
    directory = study(tmp_path)
    before = (directory / "diagnosis.json").read_bytes()
    name = "recommender_a3#batched_h2d=false,batch_size=128,instance_count=4,cores_per_instance=all"
    (found,) = diagnose_study(name, studies_dir=tmp_path, check=False).found
    assert found.config is not None and found.config.instance_count == 4
    assert found.efficiency is not None and 0.2 < found.efficiency < 1.0
    assert (directory / "diagnosis.json").read_bytes() == before  # that of the whole study


def test_the_command_reads_a_profile(tmp_path: Path) -> None:
    rows = [f"MEMCPY_ASYNC,Memcpy HtoD,{10 * i},10" for i in range(28)]
    rows += ["AI_CORE,MatMul,280,220"]
    text = "\n".join(["Task Type,Op Name,Task Start Time(us),Task Duration(us)", *rows])
    (tmp_path / "op_summary_1.csv").write_text(text)
    words = [sys.executable, "-m", "autotune", "diagnose", "--json"]
    asked = [*words, "--profile", str(tmp_path)]
    done = subprocess.run(asked, capture_output=True, check=True, timeout=60)
    found = json.loads(done.stdout)
    assert found["bottleneck"]["part"] == "h2d" and found["bottleneck"]["knob"] == "batched_h2d"
    assert found["breakdown"]["h2d_copies_per_call"] == 28
    assert found["breakdown"]["h2d_share"] == pytest.approx(0.56)
    refused = subprocess.run([*asked, "online"], capture_output=True, timeout=60)
    assert refused.returncode == 2 and b"one of them" in refused.stderr


def test_an_outside_program_cannot_be_looked_into(tmp_path: Path) -> None:
    space = load_text("workload: {command: [true]}\n", str(tmp_path / "space.yaml"))
    with pytest.raises(UsageError, match="not seen from here"):
        diagnose_space(space)


TURNS = 4
"""Recordings: calls with and without the profiler are compared, which a busy machine spoils."""


def test_what_is_planted_in_a_model_is_found(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    planted = {"Small": "gaps", "Large": "compute"}
    with Launcher() as launcher:
        for model, part in planted.items():
            width, batch = (512, 256) if model == "Large" else (4, 2)
            text = (
                f"workload: {{model: models.py:{model}, "
                f"inputs: [{{name: x, shape: [batch, {width}]}}]}}\n"
                f"params: {{batch_size: {batch}, cores_per_instance: 1}}\n"
            )
            resolved = resolve(load_text(text, str(tmp_path / "s.yaml")))
            looker = Looker(resolved=resolved, launcher=launcher, view=View(), window_s=0.2)
            for turn in range(TURNS):
                found = looker.diagnose(resolved.space.baseline, tmp_path / f"{model}{turn}")
                if found.part == part:
                    break
            assert (found.part, found.source) == (part, "profile")
            assert found.roofline is not None and found.breakdown.kernels
            assert json.dumps(diagnosis_json(found), allow_nan=False)
    assert found.roofline.bound == "compute"
    assert found.roofline.flops == pytest.approx(3 * 2 * 256 * 512 * 512)
