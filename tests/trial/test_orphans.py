"""Nothing outlives the tool, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import autotune
from autotune.core.errors import TrialLost
from autotune.core.records import Plan, Window
from autotune.devices import find_device
from autotune.space.loader import load_space
from autotune.trial.group import group_spec
from autotune.trial.session import Launcher, open_session

SCRIPT = """
import sys
sys.path.insert(0, {here!r})
from test_session import Launcher, Plan, Window, open_session, spec
with Launcher() as launcher:
    with open_session(spec("sleeps_2_ms"), launcher) as session:
        session.warm_up(Plan(windows=(Window(duration_s=0.1),)))
        print("running", flush=True)
        session.measure(Plan(windows=(Window(duration_s=60.0),), deadline_s=90))
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_outlives_the_tool(end: signal.Signals) -> None:
    here = str(Path(__file__).parent)
    tool = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(here=here)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert tool.stdout is not None and tool.stdout.readline() == "running\n"
    below = psutil.Process(tool.pid).children(recursive=True)
    assert len(below) == 2  # the zygote and the instance
    os.kill(tool.pid, end)
    tool.wait(timeout=20)
    tool.stdout.close()
    until_s = time.monotonic() + 10
    while alive := [p for p in below if _is_alive(p)]:
        assert time.monotonic() < until_s, alive
        time.sleep(0.05)


LEAVES = """
study: leaves
workload:
  command: [sh, -c, "sleep 300 & echo $! > pid; wait; echo '{{\\"throughput\\": 1}}'"]
  metrics: {throughput_items_per_s: throughput}
device: simulated
params: {batch_size: [1]}
"""


def test_what_a_program_has_started_is_gone_although_the_warm_process_was_killed(
    tmp_path: Path,
) -> None:
    (tmp_path / "leaves.yaml").write_text(LEAVES)
    space, told = load_space(tmp_path / "leaves.yaml"), tmp_path / "pid"
    spec = group_spec(space.baseline, space, find_device("simulated"))
    with Launcher() as launcher, open_session(spec, launcher) as session:
        session.begin(Plan(windows=(Window(duration_s=0.1),), deadline_s=60))
        until_s = time.monotonic() + 60
        while not (told.is_file() and told.read_text().strip()):
            assert time.monotonic() < until_s
            time.sleep(0.05)
        left = psutil.Process(int(told.read_text()))
        launcher.zygote(spec)._process.kill()
        with pytest.raises(TrialLost):
            session.result()
        launcher.close()
    assert not _is_alive(left) or psutil.wait_procs([left], 30)[0]


SLOW = """
import os, pathlib, time
pathlib.Path("began").write_text(str(os.getpid()))
time.sleep(300)
"""


@pytest.mark.parametrize(
    "code",
    [
        "from autotune.trial.warm import Zygote; Zygote({}, ['slow_to_import']).wait_ready()",
        "from autotune.devices.probe import probe; probe('slow_to_import:nothing')",
    ],
)
def test_what_still_imports_when_the_tool_is_killed_is_gone_too(code: str, tmp_path: Path) -> None:
    (tmp_path / "slow_to_import.py").write_text(SLOW)
    path = os.pathsep.join([str(tmp_path), str(Path(autotune.__file__).parents[1])])
    tool = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}
    )
    began, until_s = tmp_path / "began", time.monotonic() + 60
    while not (began.is_file() and began.read_text()):
        assert tool.poll() is None and time.monotonic() < until_s
        time.sleep(0.05)
    importing = psutil.Process(int(began.read_text()))
    tool.kill()
    tool.wait()
    until_s = time.monotonic() + 60
    while _is_alive(importing):
        assert time.monotonic() < until_s
        time.sleep(0.05)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
