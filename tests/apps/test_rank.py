"""Ranks that somebody else starts, as torchrun does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from autotune.apps.rank import Place
from autotune.core.errors import UsageError

ONE = (
    "device=cpu", "params.micro_batch_count=4", "params.schedule=1F1B", "params.stage_split=3-5",
    "trial={iterations: 3}", "workload.options={layers: 6, width: 32, heads: 2, length: 8}",
)  # fmt: skip


def test_ranks_started_by_hand_find_each_other_and_the_first_one_reports():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [word for setting in ONE for word in ("--set", setting)]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "autotune", "rank", "--space", "pipeline.yaml", *words],
            env={**os.environ, **path, **shared, "RANK": str(number)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in (0, 1)
    ]
    printed = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    figures = json.loads(printed[0].splitlines()[-1])
    assert figures["throughput_items_per_s"] > 0 and figures["memory_peak_bytes"] > 0
    assert not printed[1].strip()


def test_without_torchruns_variables_it_says_how_it_is_started():
    with pytest.raises(UsageError, match="torchrun --nproc-per-node N -m autotune rank"):
        Place.of({"RANK": "0"})
