"""`autotune doctor`: the devices of this machine, what is wrong with them, and versions."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from autotune.core.codec import to_json_dict
from autotune.devices import discover_all, npu_system
from autotune.devices.base import Discovery
from autotune.devices.checks import Check
from autotune.devices.telemetry import tool_output
from autotune.devices.topology import ROOT
from autotune.version import __version__

PACKAGES = ("optuna", "numpy", "scipy", "torch", "torch_npu", "transformers", "psycopg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found.

    Attributes:
        versions: Of this tool, Python and packages; None: not installed.
        checks: Findings on accelerators of which there is a sign here.
    """

    devices: tuple[Discovery, ...]
    versions: dict[str, str | None]
    system: str
    checks: tuple[Check, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As `doctor --json` prints it."""
        return {
            "schema": 1,
            "devices": [to_json_dict(found) for found in self.devices],
            "checks": [to_json_dict(check) for check in self.checks],
            "versions": self.versions,
            "system": self.system,
        }


def doctor() -> Diagnosis:
    """Look around; touches no device and imports no framework."""
    versions: dict[str, str | None] = {
        "autotune": __version__,
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
    }
    return Diagnosis(
        devices=discover_all(),
        versions=versions,
        system=platform.platform(),
        checks=tuple(_npu_checks()),
    )


def _npu_checks() -> list[Check]:
    """Nothing on a machine without any sign of an NPU."""
    is_there = any(ROOT.glob(npu_system.CARD_NODE)) or (ROOT / npu_system.ASCEND).is_dir()
    if not (is_there or "ASCEND_HOME_PATH" in os.environ or _version("torch_npu")):
        return []
    return [
        *npu_system.check_system(),
        npu_system.check_npu_smi(tool_output("npu-smi", "info")),
    ]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
