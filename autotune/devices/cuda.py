"""NVIDIA GPUs through torch.cuda."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from autotune.devices.base import Device, DeviceInfo, Seat
from autotune.devices.torch_accelerator import AcceleratorKind, TorchAccelerator, survey_memory

NO_SPLIT = "this version of autotune cannot give an instance a part of a GPU"
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
        count = device["sm_count"]
        return DeviceInfo(
            **self._described(index, device, survey, f"{count} SMs"),
            core_count=count,
            facts={"core_count": count},
            splits=(),
            why_whole=NO_SPLIT,
        )

    def _open(self, index: int, seat: Seat) -> Device:
        return CudaDevice(index, seat)


class CudaDevice(TorchAccelerator):
    """One instance on a GPU."""

    def __init__(self, index: int, seat: Seat) -> None:
        import torch

        super().__init__(torch.cuda, f"cuda:{index}", seat)


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
