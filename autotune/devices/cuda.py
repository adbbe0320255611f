"""NVIDIA GPUs through torch.cuda.

Instances get a part of the SMs through NVIDIA's multi-process service, where its daemon runs: each
process is told its share in percent before it starts. Nothing of this file has run on a GPU yet.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from autotune.core.errors import TrialCrashed
from autotune.core.records import Config
from autotune.devices.base import DeviceInfo, Seat
from autotune.devices.torch_accelerator import AcceleratorKind, TorchAccelerator, surveyed

NO_SPLIT = "it takes NVIDIA's multi-process service, and its daemon does not run here"
MPS_RULE = "cores_per_instance == 'all' or instance_mode == 'process'"
MPS_FOLDER = "tmp/nvidia-mps"  # the daemon's own default, relative to the root of the file system
MPS_SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
ROUNDED_UP = 0.9  # a larger share may be given as the whole
NO_BATCH_COPY = "torch copies one tensor at a time between host and GPU"


class CudaDevice(TorchAccelerator):
    """One instance on a GPU."""

    kind = "cuda"

    def __init__(self, index: int, seat: Seat) -> None:
        super().__init__(index, seat)
        asked, whole = seat.config.cores_per_instance, int(seat.traits.get("core_count", 0))
        if asked == "all":
            return
        seen = int(self.runtime.get_device_properties(index).multi_processor_count)
        if seen == whole and int(asked) < ROUNDED_UP * whole:
            raise TrialCrashed(
                f"asked for {asked} of {whole} SMs by {MPS_SHARE}, but the device reports all of "
                "them: the multi-process service does not serve this process"
            )
        self._facts["core split"] = f"{seen} SMs seen, asked for {asked} by {MPS_SHARE}"


class CudaKind(AcceleratorKind):
    """GPUs that torch sees."""

    device = CudaDevice
    install = "pip install torch, in its CUDA build"
    collectives = "nccl"
    node_pattern = "dev/nvidia[0-9]*"

    def _obstacle(self) -> str:
        try:
            build = version("torch").partition("+")[2]
        except PackageNotFoundError:
            build = ""
        if build == "cpu":
            return f"torch {version('torch')} is a build for the CPU ({self.install})"
        return super()._obstacle()

    def _split(self, device: Mapping[str, Any]) -> dict[str, Any]:
        count: int = device["sm_count"]
        has_mps = self._has_mps()
        return {
            "core_count": count,
            "facts": {"core_count": count},
            "core_ladder": (max(1, count // 4), max(1, count // 2), "all") if has_mps else ("all",),
            "splits": ("count",) if has_mps else (),
            "why_whole": "" if has_mps else NO_SPLIT,
            "rules": (MPS_RULE,) if has_mps else (),
        }

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


def survey() -> dict[str, Any]:
    """The GPUs that torch sees, as plain data; asked from a child."""
    import torch

    def own(properties: Any) -> dict[str, Any]:
        count = int(properties.multi_processor_count)
        return {
            "units": f"{count} SMs",
            "sm_count": count,
            "uuid": str(getattr(properties, "uuid", "")),
        }

    versions = {"torch": str(torch.__version__), "cuda": str(torch.version.cuda)}
    return surveyed(torch.cuda, own, versions=versions, batch_copy=NO_BATCH_COPY)
