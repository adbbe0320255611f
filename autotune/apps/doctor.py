"""`autotune doctor`: the devices of this machine, why others are not usable, and versions."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from autotune.core.codec import to_json_dict
from autotune.devices import discover_all
from autotune.devices.base import Discovery
from autotune.version import __version__

PACKAGES = ("optuna", "numpy", "scipy", "torch", "torch_npu", "transformers", "psycopg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found.

    Attributes:
        versions: Of this tool, Python and packages; None: not installed.
    """

    devices: tuple[Discovery, ...]
    versions: dict[str, str | None]
    system: str

    def to_json(self) -> dict[str, Any]:
        """As `doctor --json` prints it."""
        return {
            "schema": 1,
            "devices": [to_json_dict(found) for found in self.devices],
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
    return Diagnosis(devices=discover_all(), versions=versions, system=platform.platform())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
