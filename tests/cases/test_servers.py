"""A server of one's own under requests that arrive: killed in the middle, tuned to the end."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Place

EXAMPLE = Path(__file__).parents[2] / "examples" / "http_server"
SECRET = "hunter2hunter2"
SHORT = (
    *("--set", "load={poisson: {rate: 100/s}}", "--set", "goals=[latency_p50]"),
    *("--set", "params={workers: [1, 2], batch_size: [1, 8], delay_ms: [0]}"),
    *("--set", "limits={latency_p50: 5s}", "--set", "trial={duration: 0.3s, timeout: 30s}"),
    *("--set", "budget={trials: 4}", "--set", "confirm=false", "--set", "sampler=grid"),
)


@pytest.fixture
def example(place: Place) -> Place:
    for name in ("server.py", "server.yaml"):
        shutil.copy(EXAMPLE / name, place.path / name.replace("server.yaml", "t.yaml"))
    return place


def environment() -> dict[str, str]:
    """With the tests' own Python as `python`, and a secret that nothing may keep."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "SOME_TOKEN": SECRET}


def test_the_example_is_killed_in_the_middle_and_tuned_to_the_end(example: Place) -> None:
    tool = example.start("run", "--space", "t.yaml", *SHORT, env=environment())
    assert tool.stdout is not None
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s and "trial 0 (1 of 4)" not in tool.stdout.readline():
        pass
    tool.send_signal(signal.SIGKILL)
    tool.communicate()
    assert example.processes() == []  # the server went with the tool
    code, result = example.run(*SHORT, env=environment())
    assert code == 0 and result["complete"]
    done = [t for t in example.trials("http_server") if t["outcome"] == "ok"]
    assert {(t["workers"], t["batch_size"]) for t in done} == {
        (workers, size) for workers in "12" for size in "18"
    }
    assert result["config"]["workers"] in (1, 2)
    kept = [path for path in (example.path / "studies").rglob("*") if path.is_file()]
    assert kept and not any(SECRET.encode() in path.read_bytes() for path in kept)
    assert all(float(t["latency_p50_s"]) > 0 and t["failed_count"] == "0" for t in done)
    assert example.processes() == []
