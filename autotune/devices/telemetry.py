"""Meters: one function per kind of device that looks at it once, without touching it.

Each is None where the tool or library that tells is not there. What a device needs a process of
its own to tell (npu-smi, cnmon) is asked with a limit of time.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from autotune.devices.cnmon import parse as parse_cnmon
from autotune.devices.npu_smi import parse as parse_npu_smi
from autotune.devices.outside import ask
from autotune.devices.readings import Meter, Reading, together

VISIBLE = {
    "npu": "ASCEND_RT_VISIBLE_DEVICES",
    "cuda": "CUDA_VISIBLE_DEVICES",
    "mlu": "MLU_VISIBLE_DEVICES",
}
"""Variables that may show a framework only some of the devices."""

TOOL_LIMIT_S = 5.0
NO_TRAITS: Mapping[str, str] = MappingProxyType({})
_RAPL = "sys/class/powercap/intel-rapl:*/energy_uj"


def meter_of(
    name: str, cores: Sequence[int] = (), traits: Mapping[str, str] = NO_TRAITS
) -> Meter | None:
    """The meter of a device, None if nothing here tells of it.

    Args:
        name: As a space file has it: "cpu", "npu:0".
        cores: Host cores to look at, for a CPU; (): all.
        traits: The device's, see `DeviceInfo`.
    """
    kind, _, number = name.partition(":")
    index = int(number or 0)
    makers: dict[str, Callable[[], Meter | None]] = {
        "cpu": lambda: _cpu(cores),
        "npu": lambda: _npu(index),
        "cuda": lambda: _cuda(index, traits.get("uuid", "")),
        "mlu": lambda: _mlu(index),
    }
    return makers[kind]() if kind in makers else None


def physical_number(kind: str, index: int) -> int:
    """The number that the driver's tools have for what the framework calls `index`."""
    numbers = [word.strip() for word in os.environ.get(VISIBLE.get(kind, ""), "").split(",")]
    known = index < len(numbers) and numbers[index].isdecimal()
    return int(numbers[index]) if known else index


def meter_of_all(
    names: Sequence[str], cores: Sequence[int] = (), traits: Mapping[str, str] = NO_TRAITS
) -> Meter | None:
    """The meter of several devices together: powers and memories add up.

    None if nothing tells of one of them: the sum would be wrong.

    Args:
        traits: Those of the first.
    """
    known = [traits, *(NO_TRAITS for _ in names[1:])]
    meters = [meter_of(name, cores, told) for name, told in zip(names, known, strict=True)]
    if not meters or not all(meters):
        return None
    found = [meter for meter in meters if meter is not None]
    return found[0] if len(found) == 1 else lambda: together([meter() for meter in found])


# --- CPU ---------------------------------------------------------------------------------------


def _cpu(cores: Sequence[int]) -> Meter:
    import psutil

    psutil.cpu_percent(percpu=True)  # the first call only sets the start
    energy = _EnergyMeter(Path("/"))

    def read() -> Reading:
        shares = psutil.cpu_percent(percpu=True)
        own = [shares[core] for core in cores if core < len(shares)] or shares
        memory = psutil.virtual_memory()
        return Reading(
            utilisation_ratio=sum(own) / len(own) / 100,
            memory_used_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
            temperature_c=_hottest(psutil),
            power_w=energy.power_w(),
            frequency_hz=_frequency_hz(psutil),
        )

    return read


def _hottest(psutil: Any) -> float | None:
    with contextlib.suppress(Exception):  # absent on some systems, broken on others
        sensors = psutil.sensors_temperatures()
        known = [s.current for key in ("coretemp", "k10temp") for s in sensors.get(key, ())]
        return max(known) if known else None
    return None


def _frequency_hz(psutil: Any) -> float | None:
    with contextlib.suppress(Exception):
        frequency = psutil.cpu_freq()
        return frequency.current * 1e6 if frequency and frequency.current else None
    return None


class _EnergyMeter:
    """Power of all CPU packages from the energy counters of the kernel, where they are readable."""

    def __init__(self, root: Path) -> None:
        self._files = [file for file in root.glob(_RAPL) if ":" not in file.parent.name[11:]]
        self._last = self._read()

    def power_w(self) -> float | None:
        """Mean power since the last call; None if it cannot be told, or a counter wrapped."""
        before, self._last = self._last, self._read()
        if before is None or self._last is None:
            return None
        joules, seconds = self._last[0] - before[0], self._last[1] - before[1]
        return joules / seconds if joules >= 0 and seconds > 0 else None

    def _read(self) -> tuple[float, float] | None:
        with contextlib.suppress(OSError, ValueError):
            joules = sum(int(file.read_text()) for file in self._files) * 1e-6
            return (joules, time.monotonic()) if self._files else None
        return None


# --- Ascend NPU --------------------------------------------------------------------------------


def _npu(index: int) -> Meter | None:
    if shutil.which("npu-smi") is None:
        return None

    place = physical_number("npu", index)

    def read() -> Reading:
        chips = parse_npu_smi(_output("npu-smi", "info"))
        # The framework numbers what is there, in the order of the driver's ids: a container may
        # have only some of a machine's chips.
        ordered = sorted(chips, key=lambda chip: chip.physical_id or 0)
        return ordered[place if place < len(ordered) else index].reading

    return read


# --- CUDA --------------------------------------------------------------------------------------


def _cuda(index: int, uuid: str) -> Meter | None:
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
        # By its index it may be another one: the library knows neither CUDA_VISIBLE_DEVICES nor
        # torch's order.
        by_uuid = nvml.nvmlDeviceGetHandleByUUID
        by_index = nvml.nvmlDeviceGetHandleByIndex
        shown = physical_number("cuda", index)
        handle = by_uuid(f"GPU-{uuid}") if uuid else by_index(shown)
    except Exception:  # not installed, no driver, no such device: nothing can be told
        return None

    def ask(question: str, *args: Any) -> Any:
        with contextlib.suppress(nvml.NVMLError):  # a figure that this product does not have
            return getattr(nvml, question)(handle, *args)
        return None

    def read() -> Reading:
        use, memory = ask("nvmlDeviceGetUtilizationRates"), ask("nvmlDeviceGetMemoryInfo")
        power_mw = ask("nvmlDeviceGetPowerUsage")
        clock_mhz = ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM)
        return Reading(
            utilisation_ratio=None if use is None else use.gpu / 100,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            temperature_c=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            power_w=None if power_mw is None else power_mw / 1000,
            frequency_hz=None if clock_mhz is None else clock_mhz * 1e6,
        )

    return read


# --- Cambricon MLU -----------------------------------------------------------------------------


def _mlu(index: int) -> Meter | None:
    if shutil.which("cnmon") is None:
        return None

    card = str(physical_number("mlu", index))

    def read() -> Reading:
        return parse_cnmon(_output("cnmon", "info", "-c", card))

    return read


def tool_output(*words: str) -> str | None:
    """What a vendor's tool prints; None if it is not there, fails or takes too long."""
    try:
        return _output(*words)
    except (OSError, subprocess.SubprocessError):
        return None


def _output(*words: str) -> str:
    done = ask(words, limit_s=TOOL_LIMIT_S)
    done.check_returncode()
    return done.stdout.decode("utf-8", errors="replace")
