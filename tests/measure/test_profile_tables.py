"""Tables as profilers write them: other spellings, units, languages, encodings, slices, devices."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from autotune.measure.breakdown import break_down
from autotune.measure.profile_files import read_profile

START_US = 1_736_413_971_558_972
# Three copies of 10 us, then two operators of 20 us with a gap of 30 us between: 100 us.
OPERATIONS = (
    (0.0, 10.0, "MEMCPY_ASYNC", "MEMCPY_HOST_TO_DEVICE"),
    (10.0, 10.0, "MEMCPY_ASYNC", "Memcpy H2D"),
    (20.0, 10.0, "SDMA", "aclrtMemcpyAsync HtoD"),
    (30.0, 20.0, "AI_CORE", "MatMulV2"),
    (50.0, 30.0, "EVENT_WAIT", "EVENT_WAIT"),
    (80.0, 20.0, "MIX_AIC", "Add"),
)


def table(header: str, *, start_factor: int = 1, factor: float = 1.0, part: slice = slice(None),
          delimiter: str = ",", point: str = ".") -> str:  # fmt: skip
    """A table with the columns name, type, core, start, duration, called as `header` has it."""
    lines = [header]
    for start, duration, core, name in OPERATIONS[part]:
        began = f"{(START_US + int(start)) * start_factor}.000"  # whole: a float cannot hold it
        cells = [f"{name}_1", name, core, began, f"{duration * factor:.6f}"]
        lines.append(delimiter.join(cell.replace(".", point) for cell in cells))
    return "\n".join(lines) + "\n"


def assert_found(path: Path, *, devices: int = 1) -> None:
    found = break_down(read_profile(path), call_count=devices)
    assert found.span_s == pytest.approx(devices * 100e-6, rel=1e-3)
    assert found.h2d_copies_per_call == 3
    assert found.share(found.h2d_s) == pytest.approx(0.3, abs=0.002)
    assert found.utilisation == pytest.approx(0.4, abs=0.002)
    assert found.idle_s == pytest.approx(devices * 30e-6, rel=1e-2)
    assert found.gap_count == devices


@pytest.mark.parametrize(
    "header",
    [
        "Name,Type,Accelerator Core,Start Time(us),Duration(us)",
        "Op Name,OP Type,Task Type,Task Start Time(us),Task Duration(us)",
        "Op Name,OP Type,Task Type,Task Start Time,Task Duration (us)",
        "OP NAME,op_type,task_type,task_start_time_us,task_duration_us",
        "kernel_name,Type,kernel_type,task_start(us),task_time(us)",
        "算子名称,算子类型,加速核,开始时间（us）,持续时间(μs)",
        "Name,Type,Accelerator Core,Start Time[us],Duration[µs]",
    ],
)
def test_columns_are_found_in_every_spelling(tmp_path: Path, header: str) -> None:
    (tmp_path / "op_summary_1.csv").write_text(table(header), encoding="utf-8-sig")
    assert_found(tmp_path)


@pytest.mark.parametrize("encoding", ["utf-16", "gb18030"])
def test_other_encodings(tmp_path: Path, encoding: str) -> None:
    text = table("名称,类型,任务类型,开始时间(us),耗时(us)")
    (tmp_path / "kernel_details.csv").write_bytes(text.encode(encoding))
    assert_found(tmp_path)


def test_units_of_the_header_count(tmp_path: Path) -> None:
    header = "Name,Type,Accelerator Core,Start Time(ns),Duration(ms)"
    (tmp_path / "kernels.csv").write_text(table(header, start_factor=1000, factor=1e-3))
    assert_found(tmp_path)


def test_a_table_with_semicolons_and_decimal_commas(tmp_path: Path) -> None:
    header = "Name;Type;Accelerator Core;Start Time(us);Duration(us)"
    (tmp_path / "kernels.csv").write_text(table(header, delimiter=";", point=","))
    assert_found(tmp_path)


def test_repeated_columns_and_headers(tmp_path: Path) -> None:
    plain = table("Name,Type,Accelerator Core,Start Time(us),Duration(us)").splitlines()
    lines = [f"{line},N/A,N/A" for line in plain[1:]]
    header = f"{plain[0]},Duration(us),Start Time(us)"
    text = "\n".join(["", header, *lines[:3], header, *lines[3:]])
    (tmp_path / "kernel_details.csv").write_text(text)
    assert_found(tmp_path)


def test_slices_are_one_table_and_another_export_is_not_added(tmp_path: Path) -> None:
    header = "Op Name,OP Type,Task Type,Task Start Time(us),Task Duration(us)"
    for number, part in enumerate((slice(0, 2), slice(2, 4), slice(4, 6))):
        file = tmp_path / f"op_summary_slice_{number}_20300101000{number}.csv"
        file.write_text(table(header, part=part))
    (tmp_path / "op_summary_zz_20300102000000.csv").write_text(table(header))
    assert_found(tmp_path)
    assert len(read_profile(tmp_path).files) == 3


def test_devices_count_one_after_the_other(tmp_path: Path) -> None:
    header, *lines = table("Name,Type,Accelerator Core,Start Time(us),Duration(us)").splitlines()
    rows = [f"{line},{device}" for line in lines for device in (0, 1)]
    (tmp_path / "op_summary.csv").write_text("\n".join([f"{header},Device_id", *rows]))
    assert_found(tmp_path, devices=2)


def test_a_packed_trace_with_begins_and_ends(tmp_path: Path) -> None:
    events = [{"ph": "M", "name": "process_name", "pid": 5, "args": {"name": "Ascend Hardware"}}]
    for start, duration, core, name in OPERATIONS:
        event = {"name": name, "pid": 5, "tid": 1, "args": {"Task Type": core}}
        events.append({**event, "ph": "B", "ts": START_US + start})
        events.append({**event, "ph": "E", "ts": START_US + start + duration})
    with gzip.open(tmp_path / "worker.pt.trace.json.gz", "wt") as stream:
        json.dump({"traceEvents": events}, stream)
    assert_found(tmp_path)


def test_a_file_that_is_broken_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"traceEvents": [')
    (tmp_path / "kernel_details.csv").write_text(
        table("Name,Type,Accelerator Core,Start Time(us),Duration(us)")
    )
    assert_found(tmp_path)
    (said,) = read_profile(tmp_path).unread
    assert "broken.json: not understood" in said


def test_copies_within_the_device_are_no_copies_to_it(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(
        json.dumps(
            [
                {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoD", "ts": 0, "dur": 5},
                {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "ts": 5, "dur": 5},
            ]
        )
    )
    assert break_down(read_profile(tmp_path)).h2d_count == 1


def test_a_column_may_tell_the_direction_of_copies(tmp_path: Path) -> None:
    ways = ("host to device", "HOST->DEVICE", "主机到设备", "device to host", "device_to_device")
    rows = [f"MEMCPY_ASYNC,{way},{10 * i},5" for i, way in enumerate(ways)]
    text = "\n".join(["Task Type,Direction,Start(us),Duration(us)", *rows])
    (tmp_path / "copies.csv").write_text(text, encoding="utf-8")
    found = break_down(read_profile(tmp_path))
    assert (found.h2d_count, found.d2h_count, found.kernel_count) == (3, 1, 1)


def test_calls_are_seen_in_bursts_of_copies(tmp_path: Path) -> None:
    header = "Name,Type,Accelerator Core,Start Time(us),Duration(us)"
    (tmp_path / "kernel_details.csv").write_text(table(header))
    assert break_down(read_profile(tmp_path)).call_count == 1
    single = table(header, part=slice(2, 6))  # one copy: any number of calls could be that
    (tmp_path / "kernel_details.csv").write_text(single)
    assert break_down(read_profile(tmp_path)).call_count is None


def test_pauses_of_the_host_are_told_from_launches(tmp_path: Path) -> None:
    """Within 100 us the device is idle for 60, in 20 of which an operator is being launched."""
    events = [
        {"ph": "X", "cat": "kernel", "name": "mm", "pid": 0, "tid": 7, "ts": 0, "dur": 20},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 60, "dur": 20},
        {"ph": "X", "cat": "kernel", "name": "mm", "pid": 0, "tid": 7, "ts": 80, "dur": 20},
    ]
    (tmp_path / "trace.json").write_text(json.dumps(events))
    found = break_down(read_profile(tmp_path))
    assert found.idle_s == pytest.approx(60e-6)
    assert found.host_s == pytest.approx(40e-6)
