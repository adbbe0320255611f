"""Meters and the thread that reads them beside a trial."""

from __future__ import annotations

import os
import stat
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from autotune.devices import telemetry
from autotune.devices.readings import Reading, Watch, summed_up
from autotune.devices.telemetry import meter_of

LONG = f"9{os.getpid()}"  # seconds, by which a process of these tests is known
TABLE = """\
| NPU   Name      | Health | Power(W) Temp(C)   Hugepages-Usage(page)      |
| Chip  Phy-ID    | Bus-Id | AICore(%) Memory-Usage(MB) HBM-Usage(MB)      |
| 0     910B      | OK     | 100.5    40        0 / 0                      |
| 0     0         | 0:0    | 10       0 / 0     100 / 65536                |
| 1     910B      | OK     | 200.5    50        0 / 0                      |
| 0     1         | 0:1    | 20       0 / 0     200 / 65536                |
"""


def test_figures_over_several_readings() -> None:
    readings = [
        Reading(utilisation_ratio=0.5, power_w=10, temperature_c=30, frequency_hz=2e9),
        Reading(utilisation_ratio=0.7, power_w=20, temperature_c=35, frequency_hz=1e9),
        Reading(utilisation_ratio=0.6),
    ]
    assert summed_up(readings) == pytest.approx(
        {
            "utilisation_mean_ratio": 0.6,
            "power_mean_w": 15.0,
            "temperature_max_c": 35.0,
            "frequency_mean_hz": 1.5e9,
            "frequency_min_hz": 1e9,
            "readings": 3.0,
        }
    )
    assert summed_up([]) == {} and summed_up([Reading()]) == {}


def test_a_watch_reads_until_it_is_stopped_and_begins_anew() -> None:
    seen = threading.Event()
    values = iter(range(10_000))

    def meter() -> Reading:
        value = next(values)
        if value >= 3:
            seen.set()
        return Reading(power_w=float(value))

    watch = Watch(meter, interval_s=0.001)
    watch.start()
    assert seen.wait(10)
    first = watch.stop()
    assert first["readings"] >= 3 and watch.stop() == first
    watch.start()
    assert watch.stop()["power_mean_w"] > first["power_mean_w"]
    assert "telemetry" not in {thread.name for thread in threading.enumerate()}


def test_a_meter_that_fails_is_not_asked_again() -> None:
    calls = []

    def meter() -> Reading:
        calls.append(1)
        raise OSError("the driver is gone")

    watch = Watch(meter, interval_s=0.001)
    watch.start()
    assert watch.stop() == {} and len(calls) <= 1
    assert Watch(None).stop() == {}


def test_this_machines_processor_tells_of_itself() -> None:
    meter = meter_of("cpu", sorted(os.sched_getaffinity(0)))
    assert meter is not None
    reading = meter()
    assert reading.utilisation_ratio is not None and 0 <= reading.utilisation_ratio <= 1
    assert reading.memory_used_bytes and reading.memory_total_bytes
    assert meter_of("simulated") is None


def test_an_npu_is_found_by_its_physical_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_tool(tmp_path, monkeypatch, f"cat <<'EOF'\n{TABLE}EOF")
    meter = meter_of("npu:1")
    assert meter is not None
    reading = meter()
    assert (reading.power_w, reading.utilisation_ratio) == (200.5, 0.2)
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "1")  # the framework's first is the driver's 1
    shown = meter_of("npu:0")
    assert shown is not None and shown() == reading


def test_a_container_with_some_of_the_chips_counts_those(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shifted = TABLE.replace("| 0     1  ", "| 0     2  ").replace("| 0     0  ", "| 0     1  ")
    a_tool(tmp_path, monkeypatch, f"cat <<'EOF'\n{shifted}EOF")
    second = meter_of("npu:1")  # the framework's second is the driver's 2
    assert second is not None and second().power_w == 200.5


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        ("echo fine", "fine\n"),
        ("exit 3", None),
        ("printf '\\377\\376 \\344\\270\\255'", "\ufffd\ufffd \u4e2d"),
        (f"sleep {LONG} & echo fine", "fine\n"),  # what it leaves behind holds its output open
        (f"exec sleep {LONG}", None),
        ("while :; do echo without end; done", None),
        (f"trap '' TERM; sleep {LONG}", None),
    ],
    ids=["prints", "fails", "bytes", "leaves another", "hangs", "endless", "ignores SIGTERM"],
)
def test_a_tool_may_do_anything(
    script: str, printed: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_tool(tmp_path, monkeypatch, script)
    if printed is None:
        monkeypatch.setattr(telemetry, "TOOL_LIMIT_S", 0.5)
    assert telemetry.tool_output("npu-smi") == printed
    until_s = time.monotonic() + 10.0  # a killed process takes a moment to be gone
    while left := [
        p for p in psutil.process_iter(["cmdline"]) if LONG in (p.info["cmdline"] or ())
    ]:
        assert time.monotonic() < until_s, left


def a_tool(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """An npu-smi that does what the script says."""
    tool = folder / "npu-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_a_gpu_is_found_by_its_own_number(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class NVMLError(Exception):
        pass

    def no_power(handle: str) -> int:
        raise NVMLError

    library = SimpleNamespace(
        NVMLError=NVMLError, NVML_CLOCK_SM=1, NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: asked.append(str(index)) or "handle",
        nvmlDeviceGetHandleByUUID=lambda uuid: asked.append(uuid) or "handle",
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=50),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=1, total=2),
        nvmlDeviceGetPowerUsage=no_power,
        nvmlDeviceGetClockInfo=lambda handle, clock: 1980,
        nvmlDeviceGetTemperature=lambda handle, sensor: 40,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", library)
    meter = meter_of("cuda:0", traits={"uuid": "12-34"})
    assert meter is not None and asked == ["GPU-12-34"]
    assert meter() == Reading(
        utilisation_ratio=0.5, memory_used_bytes=1, memory_total_bytes=2, temperature_c=40,
        frequency_hz=1.98e9,
    )  # fmt: skip
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert meter_of("cuda:1") is not None and asked[1:] == ["5"]


def test_nothing_to_ask_means_no_meter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert meter_of("npu:0") is None
    assert meter_of("mlu:0") is None
