"""`autotune doctor`: the devices of this machine, what is wrong with them, and versions."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from autotune.apps.collective_check import check_ranks
from autotune.apps.resolve import resolve
from autotune.core.codec import to_json_dict
from autotune.core.errors import AutotuneError, UnavailableError
from autotune.core.text import describe
from autotune.core.units import format_duration
from autotune.devices import discover_all, find_devices, npu_system
from autotune.devices.base import DeviceInfo, Discovery
from autotune.devices.checks import Check, failed, passed, skipped, warned
from autotune.devices.probe import probe
from autotune.devices.readings import summed_up
from autotune.devices.telemetry import meter_of, tool_output
from autotune.devices.topology import ROOT
from autotune.measure.summary import summarise
from autotune.space.loader import load_space
from autotune.trial.group import group_spec, trial_plan
from autotune.trial.session import Launcher, open_session
from autotune.version import __version__

ACCELERATORS = ("npu", "cuda", "mlu")
TELEMETRY = {"npu": "npu-smi", "cuda": "nvidia-ml-py", "mlu": "cnmon"}
"""What tells of a device."""
TRY_LIMIT_S = 180.0
PICTURES = 5
PACKAGES = (
    "optuna",
    "numpy",
    "scipy",
    "torch",
    "torch_npu",
    "transformers",
    "onnxruntime",
    "openvino",
    "mindspore",
    "aiohttp",
    "psycopg",
)


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

    @property
    def is_usable(self) -> bool:
        """False if a device that was to be tried is not there, or failed."""
        return not any(check.device and check.status == "failed" for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """As `doctor --json` prints it."""
        return {
            "schema": 1,
            "devices": [_plain(found) for found in self.devices],
            "checks": [to_json_dict(check) for check in self.checks],
            "versions": self.versions,
            "system": self.system,
        }


def _plain(found: Discovery) -> dict[str, Any]:
    """What was discovered; that devices have others beside them shows in the list itself."""
    return to_json_dict(
        replace(found, devices=tuple(replace(info, peers=()) for info in found.devices))
    )


def doctor(device: str = "", ranks: int = 0) -> Diagnosis:
    """Look around; without a device to try, none is touched for longer than to see it.

    A device that is not there is a finding like any other: what stands in its way may be another.

    Args:
        device: One to try as well, such as "npu:0", or several; "all": every usable one.
        ranks: Let so many ranks work together on the devices from that one on; 0: none.
    Raises:
        UsageError: No device can have this name.
    """
    try:
        tried = check_ranks(device or "auto", ranks) if ranks else _tried_all(device)
    except UnavailableError as error:
        missing = failed("device", str(error), "see the findings above")
        tried = [replace(missing, device=device or "auto")]
    versions: dict[str, str | None] = {
        "autotune": __version__,
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
    }
    return Diagnosis(
        devices=discover_all(),
        versions=versions,
        system=platform.platform(),
        checks=(*_npu_checks(asked=device.lower().startswith("npu")), *tried),
    )


def _tried_all(device: str) -> list[Check]:
    if device == "all":
        usable = [info for found in discover_all() for info in found.devices]
        infos = [info for info in usable if info.kind != "simulated"]
    else:
        wanted = find_devices(device) if device else ()
        infos = list(wanted if ":" in device else wanted[:1])
    return [check for info in infos for check in _tried(info)]


def _tried(info: DeviceInfo) -> list[Check]:
    """What a device does when it is used: small things in a child, then a model as in a trial."""
    checks: list[Check] = []
    if info.kind in ACCELERATORS:
        found = probe("autotune.devices.torch_checks:check", info.name, limit_s=TRY_LIMIT_S)
        checks = [Check(**entry) for entry in found.answer]
        if found.failure:
            checks = [failed("first steps", found.failure, "see the driver's log")]
        checks.append(_telemetry(info))
    return [replace(check, device=info.name) for check in (*checks, _picture(info.name))]


def _telemetry(info: DeviceInfo) -> Check:
    """What the device tells of itself; beside a trial a meter that fails is silent."""
    meter = meter_of(info.name, traits=info.traits)
    tool = TELEMETRY[info.kind]
    if meter is None:
        return warned("telemetry", f"{tool} is not there", "reports will have no such figures")
    try:
        figures = summed_up([meter()])
    except Exception as error:  # whatever a vendor's library or tool does
        text = f"{tool}: {describe(error).splitlines()[0][:200]}"
        return warned("telemetry", text, "reports will have no such figures")
    known = [f"{name} {value:.4g}" for name, value in figures.items() if name != "readings"]
    return passed("telemetry", f"{tool}: {', '.join(known) or 'no figure'}")


def _picture(name: str) -> Check:
    """One picture through ResNet50, in a session like every trial's."""
    overrides = (
        f"device={name}",
        "workload={model: resnet50}",
        "params={batch_size: 1}",
        "rules=[]",
        f"trial={{iterations: {PICTURES}, timeout: 2min}}",
    )
    try:
        resolved = resolve(load_space("offline.yaml", overrides))
        spec = group_spec(resolved.space.baseline, resolved.space, resolved.info)
        with Launcher() as launcher, open_session(spec, launcher) as session:
            measurement = summarise(session.measure(trial_plan(resolved.space)))
    except UnavailableError as error:
        return skipped("ResNet50", str(error))
    except AutotuneError as error:
        last = getattr(error, "log_tail", "").strip().splitlines()[-1:]
        return failed(
            "ResNet50", " ".join([str(error), *last])[:300], "see the first finding above"
        )
    mean_s = measurement.latency_mean_s or 0.0
    return passed("ResNet50", f"a picture in {format_duration(mean_s)}")


def _npu_checks(*, asked: bool) -> list[Check]:
    """Nothing on a machine without any sign of an NPU, unless one was asked for."""
    is_there = any(ROOT.glob(npu_system.CARD_NODE)) or (ROOT / npu_system.ASCEND).is_dir()
    if not (asked or is_there or "ASCEND_HOME_PATH" in os.environ or _version("torch_npu")):
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
