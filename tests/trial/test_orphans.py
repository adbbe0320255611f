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


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
