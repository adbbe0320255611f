"""Accelerators this version cannot drive yet: what is there, and why it cannot be used.

Nothing here is imported into this process: a vendor's package may end the interpreter, or take
the device, when it is imported. A short-lived child tries it instead.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.core.errors import UnavailableError
from autotune.core.records import Config
from autotune.devices.base import Device, DeviceInfo, Discovery
from autotune.devices.topology import ROOT

PROBE_LIMIT_S = 30.0
REASON_LIMIT = 300  # characters of a vendor's message that are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorKind:
    """A kind of accelerator that can be found but not used.

    Attributes:
        package: Python package its framework support comes in.
        install: How a user gets that package.
        node_pattern: Device nodes the driver makes, relative to the root of the file system.
        probe: Whether importing the package tells something; a plain torch tells nothing.
    """

    kind: str
    package: str
    install: str
    node_pattern: str
    probe: bool = True

    def discover(self, root: Path = ROOT) -> Discovery:
        """No device, and the first obstacle met on the way to one."""
        return Discovery(kind=self.kind, why_not=self._obstacle(root))

    def _obstacle(self, root: Path) -> str:
        if importlib.util.find_spec(self.package) is None:
            return f"the package {self.package} is not installed ({self.install})"
        failure = import_failure(self.package) if self.probe else None
        if failure is not None:
            return f"{self.package} is installed but cannot be imported: {failure}"
        if next(root.glob(self.node_pattern), None) is None:
            return f"there is no device node /{self.node_pattern.replace('[0-9]', '')}"
        return f"this version of autotune has no adapter for {self.kind} yet"

    def assign_cores(self, config: Config, info: DeviceInfo) -> tuple[tuple[int, ...], ...]:
        """Raise UnavailableError: there is no such device to assign cores for."""
        raise self._unavailable()

    def environment(self, config: Config, info: DeviceInfo) -> dict[str, str]:
        """Raise UnavailableError: there is no such device to set up."""
        raise self._unavailable()

    def framework_device(self, name: str) -> str:
        """Raise UnavailableError: no framework can be given this device."""
        raise self._unavailable()

    def open(self, name: str) -> Device:
        """Raise UnavailableError: there is no such device to open."""
        raise self._unavailable()

    def _unavailable(self) -> UnavailableError:
        return UnavailableError(f"device {self.kind} is not available: {self.discover().why_not}")


CudaKind = functools.partial(
    AcceleratorKind,
    kind="cuda",
    package="torch",
    install="pip install torch, in its CUDA build",
    node_pattern="dev/nvidia[0-9]*",
    probe=False,
)
NpuKind = functools.partial(
    AcceleratorKind,
    kind="npu",
    package="torch_npu",
    install="pip install torch_npu, in the version that matches torch and CANN",
    node_pattern="dev/davinci[0-9]*",
)
MluKind = functools.partial(
    AcceleratorKind,
    kind="mlu",
    package="torch_mlu",
    install="from the vendor, in the version that matches torch",
    node_pattern="dev/cambricon_dev[0-9]*",
)


@functools.cache
def import_failure(package: str, limit_s: float = PROBE_LIMIT_S) -> str | None:
    """Import a package in a child of its own, once per process.

    Returns:
        None if that works, else what went wrong in the package's own words.
    """
    child = subprocess.Popen(
        [sys.executable, "-c", f"import {package}"],
        env=_probe_environment(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _, printed = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return f"the import did not end within {limit_s:g} s"
    if child.returncode == 0:
        return None
    if child.returncode < 0:
        return f"the import ended by {signal.Signals(-child.returncode).name}"
    lines = printed.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:REASON_LIMIT] if lines else f"exit status {child.returncode}"


def _probe_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The child finds the same packages, and torch does not load the vendor's plug-in by itself."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**environment, "PYTHONPATH": path, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
