"""Tests on the stub CANN runtime: `make test-npu` sets up what they need and runs them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.trial.session import Launcher

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # for npu_groups
READY = os.environ.get("STUB_CANN_MATH") == "1" and importlib.util.find_spec("torch_npu")


if READY:  # one device memory for all processes of these tests, this one included
    os.environ["STUB_CANN_STATE"] = tempfile.mkstemp(prefix="stub-cann-")[1]


def pytest_unconfigure() -> None:
    if READY:
        Path(os.environ["STUB_CANN_STATE"]).unlink(missing_ok=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if READY:
        return
    skip = pytest.mark.skip(reason="needs torch_npu on the stub CANN runtime: make test-npu")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(skip)


@pytest.fixture
def on_stub() -> Callable[..., Any]:
    """Run code in a fresh interpreter on the stub, and return its `answer`."""

    def run(code: str, **environment: str) -> Any:
        begin = "import torch, torch_npu\nfrom npu_groups import *\n"
        script = begin + textwrap.dedent(code) + "\nimport json; print('\\n' + json.dumps(answer))"
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher() as own:
        yield own
