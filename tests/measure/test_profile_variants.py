"""Profiles of several devices, processes and tools, whole and damaged, against what is in them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from autotune.core.diagnosis import Breakdown
from autotune.core.errors import UsageError
from autotune.measure.account import shares_of
from autotune.measure.breakdown import break_down
from autotune.measure.profile import kind_of
from autotune.measure.profile_files import read_profile

HEAD = "Op Name,OP Type,Task Type,Task Start Time(us),Task Duration(us)"
EPOCH_US = 1_736_413_971_558_972


def op_summary(*rows: tuple[float, float, str, str], delimiter: str = ",") -> str:
    lines = [HEAD.replace(",", delimiter)]
    lines += [
        delimiter.join((name, name, core, str(EPOCH_US + int(start)), str(us)))
        for start, us, core, name in rows
    ]
    return "\n".join(lines) + "\n"


def found_in(path: Path) -> Breakdown:
    return break_down(read_profile(path))


def kernel(start: float | str, us: float, device: int = 0, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": "mm", "pid": device, "tid": 7, "ts": start,
            "dur": us, **more}  # fmt: skip


@pytest.mark.parametrize(
    ("core", "words", "kind"),
    [
        ("PCIE_DMA_SQE", "MEMCPY_ASYNC host to device", "h2d"),
        ("PCIE_DMA_SQE", "MEMCPY_ASYNC device to host ex", "d2h"),
        ("SDMA_SQE", "Memcpy", "copy"),
        ("AI_VECTOR_CORE", "MemcpyLikeD2H", "compute"),  # what it computes, not what it is called
        ("STREAM_WAIT_EVENT", "STREAM_WAIT_EVENT", "wait"),
        ("MEM_WAIT_VALUE", "MEM_WAIT_VALUE_7", "wait"),
        ("WRITE_VALUE_SQE", "Write Value", "wait"),
        ("KERNEL_AIVEC", "层归一化", "compute"),
        ("", "hcom_allReduce__1", "communication"),
    ],
)
def test_what_a_task_is(core: str, words: str, kind: str) -> None:
    assert kind_of(words, core=core) == kind


def test_copies_are_taken_from_the_table_of_tasks(tmp_path: Path) -> None:
    (tmp_path / "op_summary_20300101000000.csv").write_text(
        op_summary((30, 70, "AI_CORE", "MatMul"))
    )
    (tmp_path / "task_time_20300101000000.csv").write_text(
        "Device_id,kernel_name,kernel_type,stream_id,task_id,task_time(us),task_start(us),task_stop(us)\n"
        f"0,N/A,MEMCPY_ASYNC,1,1,30,{EPOCH_US},{EPOCH_US + 30}\n"
        f"0,MatMul,KERNEL_AICORE,1,2,70,{EPOCH_US + 30},{EPOCH_US + 100}\n"
    )
    found = found_in(tmp_path)
    assert (found.h2d_count, found.kernel_count) == (1, 1)
    assert found.utilisation == pytest.approx(0.7)


def test_a_table_of_copies_alone_completes_that_of_operators(tmp_path: Path) -> None:
    (tmp_path / "a_copies.csv").write_text(op_summary((0, 30, "MEMCPY_ASYNC", "HtoD")))
    (tmp_path / "op_summary.csv").write_text(op_summary((40, 60, "AI_CORE", "MatMul")))
    found = found_in(tmp_path)
    assert found.share(found.h2d_s) == pytest.approx(0.3)
    assert (found.utilisation, found.idle_s) == (pytest.approx(0.6), pytest.approx(10e-6))


@pytest.mark.parametrize(
    "folder", ["PROF_00000{}_2030010100000{}_ABCDEFGH", "device_{}", "rank{}_4{}_ascend_pt"]
)
def test_folders_of_several_processes_count_together(tmp_path: Path, folder: str) -> None:
    for number, busy_us in enumerate((20, 80)):
        place = tmp_path / folder.format(number, number) / "out"
        place.mkdir(parents=True)
        rows = ((0, busy_us / 2, "AI_CORE", "A"), (100 - busy_us / 2, busy_us / 2, "AI_CORE", "A"))
        (place / "op_summary.csv").write_text(op_summary(*rows))
    found = found_in(tmp_path)
    assert found.utilisation == pytest.approx(0.5)
    assert found.gap_count == 2


def test_another_run_beside_it_is_left_out_and_said(tmp_path: Path) -> None:
    for name, busy_us in (("after", 20), ("before", 80)):
        (tmp_path / name).mkdir()
        rows = ((0, busy_us, "AI_CORE", "A"), (99, 1, "AI_CORE", "A"))
        (tmp_path / name / "op_summary.csv").write_text(op_summary(*rows))
    assert found_in(tmp_path).utilisation == pytest.approx(0.21)
    (said,) = read_profile(tmp_path).unread
    assert "before" in said and "left out" in said


def test_devices_of_one_trace_are_apart(tmp_path: Path) -> None:
    """Busy in turns, each half of the time: together they would look busy all along."""
    step = {"ph": "X", "name": "ProfilerStep#1", "pid": 99, "tid": 1, "ts": 0, "dur": 40}
    events = [step, kernel(0, 10), kernel(20, 10), kernel(10, 10, 1), kernel(30, 10, 1)]
    (tmp_path / "trace.json").write_text(json.dumps(events))
    found = found_in(tmp_path)
    assert found.utilisation == pytest.approx(0.5)
    assert (found.gap_count, found.call_count) == (2, 2)


def test_what_lies_at_zero_does_not_blur_times_since_1970(tmp_path: Path) -> None:
    events = [{"ph": "X", "name": "mark", "pid": 9, "tid": 1, "ts": "0", "dur": 1}]
    events += [kernel(f"{EPOCH_US + n}.{n % 2}00", 0.9) for n in range(100)]
    (tmp_path / "trace.json").write_text(json.dumps(events))
    assert found_in(tmp_path).gap_count == 50  # of .2 us; the other operators follow at once


def damaged(events: Sequence[dict[str, Any]], how: str) -> bytes:
    text = json.dumps(events)
    if how == "cut off":
        text = text[:-1] + ', {"ph": "X", "na'
    elif how == "not closed":
        text = text[:-1] + ","
    elif how == "odd events":
        text = json.dumps([{"ph": "X", "ts": 1, "dur": None}, {"ph": "E", "ts": 5}, *events, 7])
    elif how == "cut off, packed":
        return gzip.compress(text[:-1].encode())[:-9]
    return text.encode()


@pytest.mark.parametrize("how", ["cut off", "not closed", "odd events", "cut off, packed"])
def test_a_damaged_trace_is_read_as_far_as_it_goes(tmp_path: Path, how: str) -> None:
    events = [kernel(0, 30), kernel(70, 30), kernel(100, 0)]
    name = "trace.json.gz" if "packed" in how else "trace.json"
    (tmp_path / name).write_bytes(damaged(events, how))
    assert found_in(tmp_path).utilisation == pytest.approx(0.6)
    assert read_profile(tmp_path).unread


def test_begins_and_ends_in_any_order(tmp_path: Path) -> None:
    thread = {"cat": "kernel", "name": "mm", "pid": 0, "tid": 1}
    ends = [("E", "30"), ("B", "70.5"), ("E", "100"), ("B", "0")]
    events = [{**thread, "ph": phase, "ts": at} for phase, at in ends]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    assert found_in(tmp_path).utilisation == pytest.approx(0.595)


def test_copies_the_host_waits_in_count_where_the_device_shows_none(tmp_path: Path) -> None:
    host = {"ph": "X", "pid": 5, "tid": 1}
    events = [
        {"ph": "M", "name": "process_name", "pid": 5, "args": {"name": "CANN"}},
        {"ph": "M", "name": "process_name", "pid": 6, "args": {"name": "Ascend Hardware"}},
        {**host, "name": "AscendCL@aclrtMemcpy", "ts": 0, "dur": 20},
        {**host, "name": "Runtime@rtMemcpy", "ts": 1, "dur": 18},  # of the same copy
        {**host, "name": "AscendCL@aclrtMemcpyAsync", "ts": 20, "dur": 5},  # returns at once
        {"ph": "X", "pid": 6, "tid": 2, "name": "MatMul", "ts": 30, "dur": 70},
    ]
    (tmp_path / "msprof_1.json").write_text(json.dumps(events))
    found = found_in(tmp_path)
    assert (found.h2d_count, found.share(found.h2d_s)) == (1, pytest.approx(0.2))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("op_summary.csv.gz", op_summary((0, 30, "AI_CORE", "A"), (70, 30, "AI_CORE", "A"))),
        ("OP_SUMMARY.CSV", "# made by hand\n\n" + op_summary((0, 60, "AI_CORE", "A"),
                                                             (70, 0, "AI_CORE", "A"),
                                                             (100, 0, "AI_CORE", "A"))),
        ("bar.txt", op_summary((0, 30, "AI_CORE", "A"), (70, 30, "AI_CORE", "A"), delimiter="|")),
        ("odd.csv", HEAD + "\nA,A,AI_CORE,\"1,000\",60us\nA,A,AI_CORE,\"1,100\",\"0.000,0\"\n"
                    "A,A,AI_CORE,x,1\nA,A,AI"),
    ],
)  # fmt: skip
def test_tables_in_further_forms(tmp_path: Path, name: str, text: str) -> None:
    data = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert found_in(tmp_path).utilisation == pytest.approx(0.6)


def test_a_table_of_the_hosts_calls_is_no_profile_of_the_device(tmp_path: Path) -> None:
    (tmp_path / "acl.csv").write_text(
        "Name,Type,Start Time(us),Duration(us),Process ID,Thread ID\naclrtMemcpy,ACL,1,50,1,1\n"
    )
    (tmp_path / "op_summary.csv").write_text(op_summary((0, 60, "AI_CORE", "A")))
    assert found_in(tmp_path).kernels[0].name == "A"


@pytest.mark.parametrize(
    ("name", "words"),
    [("msprof_1.db", "export as text"), ("PROF_1/device_0/data/x.bin", "not been analysed yet")],
)
def test_forms_that_are_not_read_are_told_what_to_do(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UsageError, match=words):
        read_profile(tmp_path)


def test_communication_under_computing_costs_nothing(tmp_path: Path) -> None:
    rows = ((0, 60, "AI_CORE", "A"), (0, 50, "HCCL", "hcom_allReduce"), (60, 40, "MEMCPY", "HtoD"))
    (tmp_path / "op_summary.csv").write_text(op_summary(*rows))
    assert shares_of(found_in(tmp_path))["communication"] == 0.0
