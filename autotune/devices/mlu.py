"""Cambricon MLUs through torch_mlu, whose interface follows torch.cuda's.

Written from its published sources; nothing of it has ever run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.devices.torch_accelerator import AcceleratorKind, TorchAccelerator, surveyed

NO_SPLIT = "torch_mlu has no call that limits the cores of an instance"
NO_BATCH_COPY = "torch_mlu has no batch copy"


class MluDevice(TorchAccelerator):
    """One instance on an MLU."""

    kind, package = "mlu", "torch_mlu"

    def is_out_of_memory(self, error: BaseException) -> bool:
        """torch_mlu has an error class of its own."""
        own = getattr(self.runtime, "OutOfMemoryError", ())
        return isinstance(error, own) or super().is_out_of_memory(error)


class MluKind(AcceleratorKind):
    """MLUs that torch_mlu sees."""

    device = MluDevice
    install = "from the vendor, in the version that matches torch"
    collectives = "cncl"
    node_pattern = "dev/cambricon_dev[0-9]*"

    def _split(self, device: Mapping[str, Any]) -> dict[str, Any]:
        count = device["cluster_count"]
        return {
            "core_count": count,
            "facts": {"core_count": count},
            "splits": (),
            "why_whole": NO_SPLIT,
        }


def survey() -> dict[str, Any]:
    """The MLUs that torch_mlu sees, as plain data; asked from a child."""
    import torch
    import torch_mlu

    def own(properties: Any) -> dict[str, Any]:
        count = int(properties.cluster_count)
        return {"units": f"{count} clusters", "cluster_count": count}

    versions = {"torch": str(torch.__version__), "torch_mlu": str(torch_mlu.__version__)}
    return surveyed(torch.mlu, own, versions=versions, batch_copy=NO_BATCH_COPY)
