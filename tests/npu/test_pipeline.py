"""A pipeline's space file on NPUs by its device alone, as far as the stub reaches.

Which rank gets which device can be seen; that they work together cannot, since the stub has no
HCCL: the trial ends there, and says at which rank.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CODE = """
import autotune
from autotune.apps.resolve import resolve
from autotune.core.errors import TrialError
from autotune.trial.group import group_spec
from autotune.trial.session import Launcher, open_session

space = autotune.load_space("pipeline.yaml", ["device=npu:0-3"])
print("not named", sorted({c.get("replicas", 1) for c in resolve(space).space.configs()}))
space = autotune.load_space("pipeline.yaml", ["device=npu:0-3", "params.replicas=[1, 2, 4]"])
found = resolve(space)
print("replicas", sorted({config.get("replicas", 1) for config in found.space.configs()}))
spec = group_spec(found.space.baseline.changed(replicas=2), found.space, found.info)
print("devices", *spec.devices)
try:
    with Launcher() as launcher, open_session(spec, launcher, timeout_s=60):
        print("joined")
except TrialError as error:
    print("ended", type(error).__name__, error)
"""


def test_ranks_take_a_device_each(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "STUB_CANN_DEVICES": "4"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert "not named [2]" in lines
    assert "replicas [1, 2]" in lines  # four of two stages would need eight devices
    assert "devices npu:0 npu:1 npu:2 npu:3" in lines
    assert any(line.startswith("ended Trial") and "rank " in line for line in lines), done.stdout
    assert "registered at" not in done.stdout  # one sentence, not torch's table of kernels
