"""The contract that every device keeps, for the NPU under several chips' names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.devices.base import DeviceInfo
from autotune.devices.npu import NpuKind
from autotune.devices.probe import probe
from autotune.space.loader import load_space

CONTRACT = Path(__file__).parents[1] / "contracts/test_device_contract.py"
CHIPS = {
    "Ascend910B2": "native",
    "Ascend310P3": "torch_npu does not use it on Ascend310P3",
    "Ascend910_9391": "torch_npu does not use it on Ascend910_9391",
}


@pytest.mark.parametrize("chip", CHIPS)
def test_the_npu_keeps_the_contract_of_devices(chip: str) -> None:
    is_first = chip == next(iter(CHIPS))
    kinds = ("npu", "cpu", "simulated") if is_first else ("npu",)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            str(CONTRACT),
            "-k",
            " or ".join(f"{kind}]" for kind in kinds),
        ],
        env={**os.environ, "STUB_CANN_SOC": chip, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert not [line for line in skipped if " npu:" in line], skipped
    counted = re.search(r"(\d+) passed", done.stdout)
    assert counted and int(counted[1]) >= (30 if is_first else 13), done.stdout


Run = Callable[..., Any]


def seen(on_stub: Run, **environment: str) -> list[DeviceInfo]:
    """The devices of a system, from a survey in a process of its own."""
    survey = on_stub("from autotune.devices import npu; answer = npu.survey()", **environment)
    kind = NpuKind()
    return [kind._info(index, device, survey) for index, device in enumerate(survey["devices"])]


@pytest.mark.parametrize("chip", CHIPS)
def test_what_a_chip_can_do_is_found(chip: str, on_stub: Run) -> None:
    (info,) = seen(on_stub, STUB_CANN_SOC=chip)
    assert chip in info.description and "8.5.0.stub" in info.description
    assert info.traits["batch_copy"] == CHIPS[chip]
    assert info.core_ladder == ("6|12", "8|8", "12|24", "16|16", "all")
    assert info.facts == {"core_count": 24, "cube_count": 24, "vector_count": 48}


def test_several_chips_of_another_size(on_stub: Run) -> None:
    found = seen(
        on_stub, STUB_CANN_DEVICES="3", STUB_CANN_CUBE="8", STUB_CANN_VECTOR="7",
        STUB_CANN_HBM_BYTES=str(2**28),
    )  # fmt: skip
    assert [info.name for info in found] == ["npu:0", "npu:1", "npu:2"]
    assert {info.memory_total_bytes for info in found} == {2**28}
    assert found[0].core_ladder == ("2|1", "2|2", "4|3", "5|5", "all")


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"STUB_CANN_SOC": "Ascend999X"}, "Unsupported soc version: Ascend999X"),
        ({"LD_LIBRARY_PATH": ""}, "libhccl.so: cannot open shared object file"),
        ({"STUB_CANN_DEVICES": "0"}, "torch_npu sees no device; there is no device node /dev/dav"),
    ],
)
def test_what_stands_in_the_way_is_said_in_one_line(
    setting: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fresh(monkeypatch, **setting)
    assert reason in found.why_not and "\n" not in found.why_not


def test_a_chip_without_core_limits_has_no_such_dimension(on_stub: Run) -> None:
    (info,) = seen(on_stub, STUB_CANN_FAULT="limit_readback")
    assert info.splits == () and info.core_ladder == ("all",)
    space = load_space("recommender_npu.yaml").on_device(
        info.facts, info.core_ladder, splits=info.splits, why_whole=info.why_whole
    )
    split = space.parameter("cores_per_instance")
    assert split is not None and split.choices == ("all",)
    (note,) = (note for note in space.notes if "cores_per_instance" in note)
    assert note.startswith("cores_per_instance is not searched: a core limit has no effect")


def test_a_refused_batch_copy_is_found(on_stub: Run) -> None:
    (info,) = seen(on_stub, STUB_CANN_FAULT="batch_unsupported")
    assert "207000" in info.traits["batch_copy"]


def fresh(monkeypatch: pytest.MonkeyPatch, **environment: str):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    probe.cache_clear()
    try:
        return NpuKind().discover()
    finally:
        probe.cache_clear()
