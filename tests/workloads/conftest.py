from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.core.clock import MonotonicClock
from autotune.core.records import Config, WorkloadSpec
from autotune.workloads import load_workload
from autotune.workloads.base import Context, Program

sys.path.insert(0, str(Path(__file__).parent))  # for onnx_models

BuildProgram = Callable[..., Program]


@pytest.fixture
def build_program() -> BuildProgram:
    """Build a torch workload's program in this process."""

    def build(model: str, config: Config | None = None, seed: int = 0, **spec: object) -> Program:
        context = Context(
            config=config or Config(),
            workload=WorkloadSpec(kind="torch", model=model, **spec),  # type: ignore[arg-type]
            devices=("cpu",),
            framework_device="cpu",
            clock=MonotonicClock(),
            seed=seed,
        )
        program = load_workload("torch")(context)
        assert isinstance(program, Program)
        return program

    return build


@pytest.fixture
def user_file(tmp_path: Path) -> Callable[[str], Path]:
    """Write a user's model file."""

    def write(code: str, name: str = "factories.py") -> Path:
        path = tmp_path / name
        path.write_text("import torch\nfrom torch import nn\n" + code, encoding="utf-8")
        return path

    return write
