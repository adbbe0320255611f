"""The exported torch_npu program, run on the stub."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "apps"))
from exporting import run_program, subject

from autotune.apps import export_programs

MODEL = """
import torch

def build():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
"""
SPACE = """
workload: {model: net.py:build, inputs: [{name: x, shape: [batch, 4]}]}
device: npu:0
"""


@pytest.mark.parametrize(
    "values",
    [
        {"instance_count": 2, "cores_per_instance": "8|16", "micro_batch_count": 4},
        {"instance_count": 2, "cores_per_instance": "8|16", "instance_mode": "thread"},
    ],
    ids=["processes", "threads"],
)
def test_it_answers_as_the_model_does_on_the_host(
    tmp_path: Path, values: dict[str, object]
) -> None:
    import torch

    (tmp_path / "net.py").write_text(MODEL)
    copies = {"note 1": "host-to-device copies: foreach (native batch copy)"}
    about = subject(tmp_path, SPACE, copies, batched_h2d=True, **values)
    (path,) = export_programs.torch_npu(about)
    x = np.linspace(-1, 1, 84, dtype=np.float32).reshape(21, 4)
    np.savez(tmp_path / "in.npz", x=x)
    files = ("--infer", str(tmp_path / "in.npz"), str(tmp_path / "out.npz"))
    assert run_program(path, *files, "--bench", "0.2")["throughput_items_per_s"] > 0
    torch.manual_seed(0)
    scope: dict[str, object] = {}
    exec(MODEL, scope)
    with torch.inference_mode():
        wanted = scope["build"]()(torch.as_tensor(x)).numpy()  # type: ignore[operator]
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_allclose(found["output_0"], wanted, rtol=1e-4, atol=1e-5)
