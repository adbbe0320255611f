"""The tool killed at random moments: nothing completed is lost, nothing is left running."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

MODEL = """
import torch

def build():
    return torch.nn.Linear(16, 16)
"""
SPACE = """
study: k
workload: {model: "model.py:build", inputs: [{name: x, shape: [batch, 16]}]}
device: cpu
params:
  batch_size: {low: 1, high: 64, step: 1}
  batched_h2d: [false, true]
budget: {trials: TRIALS}
trial: {iterations: 20}
sampler: random
confirm: false
storage: STORAGE
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "autotune", *arguments]


def completed(directory: Path) -> dict[int, dict[str, Any]]:
    """Trials that the storage calls done, by number."""
    shown = subprocess.run(
        command("show", "k", "--csv"), cwd=directory, capture_output=True, text=True, check=False
    )
    lines = shown.stdout.splitlines()
    if not lines:
        return {}
    header = lines[0].split(",")
    rows = [dict(zip(header, line.split(","), strict=False)) for line in lines[1:]]
    return {int(row["number"]): row for row in rows if row["outcome"] == "ok"}


def wait_gone(processes: list[psutil.Process]) -> list[psutil.Process]:
    """What is still alive five seconds later; zombies count as gone."""
    until_s = time.monotonic() + 5
    while time.monotonic() < until_s:
        alive = [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        if not alive:
            return []
        time.sleep(0.05)
    return alive


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("storage", "kills", "trials"),
    [("journal", 4, 12), ("sqlite:///k.db", 2, 8)],
    ids=["journal", "sqlite"],
)
def test_killed_at_random_moments_it_goes_on_and_loses_nothing(
    tmp_path: Path, storage: str, kills: int, trials: int
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    space = SPACE.replace("STORAGE", storage).replace("TRIALS", str(trials))
    (tmp_path / "k.yaml").write_text(space)
    moments = random.Random(7)
    seen: dict[int, dict[str, Any]] = {}
    for kill in range(kills):
        tool = subprocess.Popen(
            command("run", "--space", "k.yaml", "--json"),
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert tool.stderr is not None
        # Half of the moments lie in the start, half after the first trial of this run.
        if kill % 2:
            for line in tool.stderr:
                if line.startswith("trial "):
                    break
            time.sleep(moments.uniform(0.0, 0.5))
        else:
            time.sleep(moments.uniform(0.1, 3.0))
        ended = tool.poll()  # on a fast machine it may be done before it is killed
        assert ended in (None, 0)
        below = [] if ended == 0 else psutil.Process(tool.pid).children(recursive=True)
        tool.kill()
        tool.wait()
        tool.stderr.close()
        assert wait_gone(below) == []
        if kill % 2:
            now = completed(tmp_path)
            assert {n: now.get(n) for n in seen} == seen
            seen = now
    ended = subprocess.run(
        command("run", "--space", "k.yaml", "--json"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    assert result["complete"] is True
    assert result["trials"]["ok"] == trials
    now = completed(tmp_path)
    assert {n: now.get(n) for n in seen} == seen
    assert len({row["batch_size"] + row["batched_h2d"] for row in now.values()}) == trials
