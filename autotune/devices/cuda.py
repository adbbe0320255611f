"""NVIDIA GPUs through torch.cuda.

Instances get a part of the SMs through NVIDIA's multi-process service, where its daemon runs: each
process is told its share in percent before it starts. Nothing of this file has run on a GPU yet.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from autotune.core.records import Config
from autotune.devices.base import Device, DeviceInfo, Seat
from autotune.devices.torch_accelerator import AcceleratorKind, TorchAccelerator, survey_memory

NO_SPLIT = "it takes NVIDIA's multi-process service, and its daemon does not run here"
MPS_RULE = "cores_per_instance == 'all' or instance_mode == 'process'"
MPS_FOLDER = "tmp/nvidia-mps"  # the daemon's own default, relative to the root of the file system
MPS_SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
NO_BATCH_COPY = "torch copies one tensor at a time between host and GPU"


class CudaKind(AcceleratorKind):
    """GPUs that torch sees."""

    kind = "cuda"
    package = "torch"
    install = "pip install torch, in its CUDA build"
    node_pattern = "dev/nvidia[0-9]*"
    survey = "autotune.devices.cuda:survey"

    def _obstacle(self) -> str:
        try:
            build = version("torch").partition("+")[2]
        except PackageNotFoundError:
            build = ""
        if build == "cpu":
            return f"torch {version('torch')} is a build for the CPU ({self.install})"
        return super()._obstacle()

    def _info(self, index: int, device: Mapping[str, Any], survey: Mapping[str, Any]) -> DeviceInfo:
        count, has_mps = device["sm_count"], self._has_mps()
        return DeviceInfo(
            **self._described(index, device, survey, f"{count} SMs"),
            core_count=count,
            facts={"core_count": count},
            core_ladder=(max(1, count // 4), max(1, count // 2), "all") if has_mps else ("all",),
            splits=("count",) if has_mps else (),
            why_whole="" if has_mps else NO_SPLIT,
            rules=(MPS_RULE,) if has_mps else (),
        )

    def _has_mps(self) -> bool:
        folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or MPS_FOLDER
        return (self._root / folder / "control").exists()

    def environment(self, config: Config, info: DeviceInfo) -> dict[str, str]:
        """That of the host side, and the share of the SMs."""
        variables = super().environment(config, info)
        if config.cores_per_instance == "all":
            return variables
        share = 100 * int(config.cores_per_instance) / info.core_count
        return {MPS_SHARE: f"{share:.4g}", **variables}

    def _open(self, index: int, seat: Seat) -> Device:
        return CudaDevice(index, seat)


class CudaDevice(TorchAccelerator):
    """One instance on a GPU."""

    def __init__(self, index: int, seat: Seat) -> None:
        import torch

        super().__init__(torch.cuda, f"cuda:{index}", seat)
        asked = seat.config.cores_per_instance
        if asked != "all":
            seen = torch.cuda.get_device_properties(index).multi_processor_count
            self._facts["core split"] = f"{seen} SMs seen, asked for {asked} by {MPS_SHARE}"


def survey() -> dict[str, Any]:
    """The GPUs that torch sees, as plain data; asked from a child."""
    import torch

    count = torch.cuda.device_count()
    devices = [
        {
            "name": torch.cuda.get_device_name(index),
            "sm_count": torch.cuda.get_device_properties(index).multi_processor_count,
            **survey_memory(torch.cuda, index),
        }
        for index in range(count)
    ]
    versions = {"torch": str(torch.__version__), "cuda": str(torch.version.cuda)}
    return {"versions": versions, "devices": devices, "batch_copy": NO_BATCH_COPY}
