"""Cambricon MLUs through torch_mlu, whose interface follows torch.cuda's.

Written from its published sources; nothing of it has ever run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.devices.base import Device, DeviceInfo, Seat
from autotune.devices.torch_accelerator import AcceleratorKind, TorchAccelerator, survey_memory

NO_SPLIT = "torch_mlu has no call that limits the cores of an instance"
NO_BATCH_COPY = "torch_mlu has no batch copy"


class MluKind(AcceleratorKind):
    """MLUs that torch_mlu sees."""

    kind = "mlu"
    package = "torch_mlu"
    install = "from the vendor, in the version that matches torch"
    node_pattern = "dev/cambricon_dev[0-9]*"
    survey = "autotune.devices.mlu:survey"

    def _info(self, index: int, device: Mapping[str, Any], survey: Mapping[str, Any]) -> DeviceInfo:
        count = device["cluster_count"]
        return DeviceInfo(
            **self._described(index, device, survey, f"{count} clusters"),
            core_count=count,
            facts={"core_count": count},
            splits=(),
            why_whole=NO_SPLIT,
        )

    def _open(self, index: int, seat: Seat) -> Device:
        return MluDevice(index, seat)


class MluDevice(TorchAccelerator):
    """One instance on an MLU."""

    def __init__(self, index: int, seat: Seat) -> None:
        import torch
        import torch_mlu  # noqa: F401 (it registers torch.mlu)

        super().__init__(torch.mlu, f"mlu:{index}", seat)

    def is_out_of_memory(self, error: BaseException) -> bool:
        """torch_mlu has an error class of its own."""
        own = getattr(self._runtime, "OutOfMemoryError", ())
        return isinstance(error, own) or super().is_out_of_memory(error)


def survey() -> dict[str, Any]:
    """The MLUs that torch_mlu sees, as plain data; asked from a child."""
    import torch
    import torch_mlu

    mlu = torch.mlu
    devices = [
        {
            "name": str(mlu.get_device_properties(index).name),
            "cluster_count": int(mlu.get_device_properties(index).cluster_count),
            **survey_memory(mlu, index),
        }
        for index in range(mlu.device_count())
    ]
    versions = {"torch": str(torch.__version__), "torch_mlu": str(torch_mlu.__version__)}
    return {"versions": versions, "devices": devices, "batch_copy": NO_BATCH_COPY}
