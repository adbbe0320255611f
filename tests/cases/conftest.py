"""A working directory in which the command is run as a user runs it."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODELS = Path(__file__).with_name("models.py")
LIMIT_S = 120.0
# One short trial per configuration and no proof: what is tested here is not the figures.
SPACE = """\
study: {study}
workload: {{model: "{models}:{factory}", inputs: [{{name: x, shape: [batch, 16]}}]}}
device: cpu
trial: {{iterations: 20, timeout: 30s}}
sampler: grid
confirm: false
"""


class Place:
    """A directory of a user's own, and the command in it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write_space(self, factory: str, *lines: str, study: str = "t") -> None:
        """Write `t.yaml` for a model of `models.py`, with further lines."""
        head = SPACE.format(study=study, models=MODELS, factory=factory)
        self.write("t.yaml", head + "".join(f"{line}\n" for line in lines))

    def write_replay(self, rows: str, *lines: str) -> None:
        """Write `t.yaml` for a recorded grid over batch_size without noise."""
        header = "batch_size,throughput_items_per_s,latency_p99_s,status,cost_s\n"
        self.write("grid.csv", header + rows)
        self.write("t.yaml", "\n".join(["workload: {replay: grid.csv, noise: 0}", *lines, ""]))

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text, encoding="utf-8")

    def start(
        self,
        *args: str,
        env: Mapping[str, str] | None = None,
        first: Callable[[], None] | None = None,
    ) -> subprocess.Popen[str]:
        """Start a command; `first` is called in its process before it begins."""
        path = os.pathsep.join(filter(None, [(env or {}).get("PYTHONPATH"), str(ROOT)]))
        return subprocess.Popen(
            [sys.executable, "-m", "autotune", *args],
            cwd=self.path,
            env={**os.environ, **(env or {}), "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            preexec_fn=first,
        )

    def autotune(self, *args: str, **how: Any) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        process = self.start(*args, **how)
        try:
            output, errors = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()  # without effect on one that has ended
        assert "Traceback" not in errors, errors
        return subprocess.CompletedProcess(args, process.returncode, output, errors)

    def run(self, *args: str, **how: Any) -> tuple[int, dict[str, Any]]:
        """Run `t.yaml`; its exit code and result."""
        ended = self.autotune("run", "--space", "t.yaml", "--json", *args, **how)
        assert ended.stdout, ended.stderr
        return ended.returncode, json.loads(ended.stdout)

    def table(self, study: str = "t") -> str:
        """The study's trials, as `show --csv` prints them."""
        return self.autotune("show", study, "--csv").stdout

    def trials(self, study: str = "t") -> list[dict[str, str]]:
        """The rows of that table."""
        return list(csv.DictReader(self.table(study).splitlines()))

    def processes(self) -> list[str]:
        """What still runs in this directory, after two seconds in which to end."""
        for _ in range(40):
            found = list(filter(None, map(self._here, Path("/proc").glob("[0-9]*"))))
            if not found:
                return []
            time.sleep(0.05)
        return found

    def _here(self, process: Path) -> str:
        try:
            if "\nState:\tZ" in (process / "status").read_text():
                return ""
            if (process / "cwd").resolve() != self.path:
                return ""
            return (process / "cmdline").read_text().replace("\0", " ")
        except OSError:
            return ""


@pytest.fixture(scope="module")
def make_place(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Place]:
    return lambda: Place(tmp_path_factory.mktemp("place"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
