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
sys.path.insert(0, str(HERE))
from npu_groups import ANSWER  # noqa: E402 (found by the line above)

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


@pytest.fixture(scope="session")
def fork_server() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported torch_npu and done nothing with it."""
    with subprocess.Popen(
        [sys.executable, "-c", "import npu_groups; npu_groups.serve_forks()"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        yield server
        assert server.stdin is not None
        server.stdin.close()  # which ends it


@pytest.fixture
def on_stub(fork_server: subprocess.Popen[str]) -> Callable[..., Any]:
    """Run code on the stub in a process of its own, and return its `answer`."""

    def run(code: str, **environment: str) -> Any:
        assert fork_server.stdin is not None and fork_server.stdout is not None
        request = {"code": textwrap.dedent(code), "environment": environment}
        fork_server.stdin.write(json.dumps(request) + "\n")
        fork_server.stdin.flush()
        for line in fork_server.stdout:  # the runtime prints, too
            if line.startswith(ANSWER):
                reply = json.loads(line.removeprefix(ANSWER))
                assert "answer" in reply, reply["error"]
                return reply["answer"]
        raise AssertionError("the process that forks has ended")

    return run


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher() as own:
        yield own
