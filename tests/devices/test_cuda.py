"""What can be said of CUDA without a GPU: the parent's side of a device that was found."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import autotune
from autotune.core.errors import TrialCrashed
from autotune.core.records import Config
from autotune.devices.base import DeviceInfo, Seat
from autotune.devices.cuda import CudaDevice, CudaKind, survey
from autotune.devices.torch_accelerator import NATIVE
from autotune.space.rules import Rule

GIB = 2**30
SURVEY = {
    "versions": {"torch": "2.13.0", "cuda": "13.0"},
    "batch_copy": "one at a time",
    "devices": [
        {
            "name": "GPU",
            "units": "132 SMs",
            "sm_count": 132,
            "uuid": "1-2",
            "memory_total_bytes": 80 * GIB,
            "memory_free_bytes": 79 * GIB,
        }
    ],
}


def test_what_torch_tells_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(multi_processor_count=132, uuid="1-2")
    torch_cuda = SimpleNamespace(
        device_count=lambda: 1,
        set_device=lambda index: None,
        mem_get_info=lambda: (79 * GIB, 80 * GIB),
        get_device_name=lambda index: "GPU",
        get_device_properties=lambda index: properties,
    )
    monkeypatch.setattr("torch.cuda", torch_cuda)
    monkeypatch.setattr("torch.version.cuda", "13.0")
    assert survey()["devices"] == SURVEY["devices"]


def test_what_is_asked_of_the_runtime_is_what_torch_has() -> None:
    sources = [
        (Path(autotune.__file__).parent / name).read_text()
        for name in (
            "devices/torch_accelerator.py", "devices/pipeline.py", "devices/torch_checks.py",
            "devices/cuda.py", "devices/mlu.py", "workloads/graph.py",
        )
    ]  # fmt: skip
    asked = {name for text in sources for name in re.findall(r"\bruntime\.(\w+)\(", text)}
    assert {"Stream", "Event", "mem_get_info", "set_stream", "graph"} <= asked
    of_npus = {"set_stream_limit", "set_device_limit"}
    assert not [name for name in asked - of_npus if not hasattr(torch.cuda, name)]


def found(root: Path) -> DeviceInfo:
    return CudaKind(root)._info(0, SURVEY["devices"][0], SURVEY)  # type: ignore[index]


@pytest.fixture
def with_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    control = tmp_path / "tmp/nvidia-mps/control"
    control.parent.mkdir(parents=True)
    control.touch()
    return tmp_path


def test_without_the_daemon_a_gpu_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    info = found(tmp_path)
    assert info.splits == () and info.core_ladder == ("all",)
    assert "multi-process service" in info.why_whole
    assert info.description == "GPU, 132 SMs, 80.0 GiB"
    assert info.traits["batch_copy"] != NATIVE


def test_with_the_daemon_processes_are_told_their_share(with_daemon: Path) -> None:
    info = found(with_daemon)
    assert info.core_ladder == (33, 66, "all") and info.splits == ("count",)
    kind = CudaKind(with_daemon)
    part = kind.environment(Config(cores_per_instance=33), info)
    assert part["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in kind.environment(Config(), info)


def test_a_share_that_has_no_effect_is_not_taken_for_one(
    with_daemon: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = SimpleNamespace(multi_processor_count=34)  # shares are rounded to pairs of SMs
    torch_cuda = SimpleNamespace(
        set_device=lambda index: None,
        current_stream=lambda: None,
        get_device_properties=lambda index: seen,
    )
    monkeypatch.setattr("torch.cuda", torch_cuda)
    seat = Seat(config=Config(cores_per_instance=33), traits=found(with_daemon).traits)
    assert CudaDevice(0, seat).facts()["core split"].startswith("34 SMs seen, asked for 33")
    seen.multi_processor_count = 132
    with pytest.raises(TrialCrashed, match=r"asked for 33 of 132 SMs .* reports all of them"):
        CudaDevice(0, seat)


def test_threads_cannot_have_a_share_each(with_daemon: Path) -> None:
    (text,) = found(with_daemon).rules
    rule, facts = Rule(text=text), {"core_count": 132}
    for mode, cores, holds in [
        ("process", 33, True), ("thread", 33, False), ("thread", "all", True),
    ]:  # fmt: skip
        values = {"cores_per_instance": cores, "instance_mode": mode}
        assert rule.holds(values, facts) is holds


def test_the_daemons_folder_may_be_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pipes").mkdir()
    (tmp_path / "pipes/control").touch()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "pipes"))
    assert found(Path("/")).splits == ("count",)
