"""Profiles in every table's shape, written with known figures, give those figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from autotune.core.errors import UsageError
from autotune.measure.breakdown import break_down
from autotune.measure.profile_files import read_profile

EPOCH_US = 1_736_413_971_558_972  # with a fraction behind it, more than a float can hold


class Op(NamedTuple):
    """An operation: microseconds from the start, how long, what."""

    start_us: float
    duration_us: float
    core: str
    name: str
    step: int = 0


def written_us(value: float) -> str:
    whole, fraction = divmod(round(value * 1000), 1000)
    return f"{EPOCH_US + whole}.{fraction:03d}"


def kernel_details(path: Path, ops: Sequence[Op]) -> Path:
    """torch_npu's: quoted starts with a tab behind."""
    head = (
        "Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Dim\n"
    )
    rows = (
        f'{o.step},{o.name}_1,{o.name},{o.core},"{written_us(o.start_us)}\t",{o.duration_us},0,8\n'
        for o in ops
    )
    file = path / "kernel_details.csv"
    file.write_text(head + "".join(rows))
    return file


def op_summary(path: Path, ops: Sequence[Op]) -> Path:
    """msprof's newer one, in a folder of its own."""
    head = "Device_id,Op Name,OP Type,Task Type,Task Start Time(us),Task Duration(us),Block Num\n"
    rows = (
        f"0,{o.name}_1,{o.name},{o.core},{written_us(o.start_us)},{o.duration_us},8\n" for o in ops
    )
    (path / "mindstudio_profiler_output").mkdir()
    file = path / "mindstudio_profiler_output" / "op_summary_20300101.csv"
    file.write_text(head + "".join(rows))
    return file


def trace(path: Path, ops: Sequence[Op]) -> Path:
    """torch.profiler's Chrome trace."""
    events = [
        {
            "ph": "X",
            "cat": "gpu_memcpy" if "emcpy" in o.name else "kernel",
            "name": o.name,
            "pid": 0,
            "tid": 7,
            "ts": written_us(o.start_us),
            "dur": o.duration_us,
        }
        for o in ops
    ]
    events += [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1,
         "ts": written_us(min(o.start_us for o in ops if o.step == step)), "dur": 1.0}
        for step in {o.step for o in ops}
    ]  # fmt: skip
    file = path / "trace_view.json"
    file.write_text(json.dumps({"traceEvents": events}))
    return file


WRITERS = [kernel_details, op_summary, trace]
Writer = Callable[[Path, Sequence[Op]], Path]


def calls(count: int, *, copies: int, copy_us: float, compute_us: float, gap_us: float) -> list[Op]:
    """Calls of some copies, then ten operators with gaps between them."""
    ops, now = [], 0.0
    for step in range(count):
        for _ in range(copies):
            ops.append(Op(now, copy_us / copies, "MEMCPY_ASYNC", "Memcpy HtoD", step))
            now += copy_us / copies
        for _ in range(10):
            ops.append(Op(now, compute_us / 10, "AI_CORE", "MatMul", step))
            now += compute_us / 10 + gap_us / 10
    return ops


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize(
    ("copies", "copy_us", "call_us", "share"),
    [(28, 740.0, 1383.0, 0.536), (2, 398.0, 3820.0, 0.104)],
)
def test_copies_before_each_call(
    tmp_path: Path, write: Writer, copies: int, copy_us: float, call_us: float, share: float
) -> None:
    ops = calls(50, copies=copies, copy_us=copy_us, compute_us=call_us - copy_us, gap_us=0.0)
    write(tmp_path, ops)
    found = break_down(read_profile(tmp_path), call_count=50)
    assert found.share(found.h2d_s) == pytest.approx(share, abs=0.002)
    assert found.h2d_copies_per_call == copies
    assert found.utilisation == pytest.approx(1 - share, abs=0.002)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize(("busy_us", "span_us"), [(1827.0, 17890.0), (4391.0, 6087.0)])
def test_gaps_are_counted_and_summed(
    tmp_path: Path, write: Writer, busy_us: float, span_us: float
) -> None:
    ops = calls(
        100, copies=0, copy_us=0, compute_us=busy_us / 100, gap_us=(span_us - busy_us) / 100
    )
    write(tmp_path, ops)
    found = break_down(read_profile(tmp_path))
    assert found.gap_count == 999
    assert found.utilisation == pytest.approx(busy_us / span_us, abs=0.002)
    assert found.gap_s == pytest.approx((span_us - busy_us) * 1e-6, rel=0.01)
    assert found.kernels[0].name.startswith("MatMul")


def test_many_gaps_of_a_fraction_of_a_microsecond(tmp_path: Path) -> None:
    count = 90_000
    starts = np.arange(count) * 0.9
    head = "Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us)\n"
    rows = [f"1,a,Add,AI_VECTOR_CORE,{written_us(s)},0.09\n" for s in starts.tolist()]
    (tmp_path / "kernel_details.csv").write_text(head + "".join(rows))
    found = break_down(read_profile(tmp_path))
    assert found.gap_count == count - 1
    assert found.utilisation == pytest.approx(0.1, abs=0.002)


def test_what_overlaps_counts_once(tmp_path: Path) -> None:
    ops = [
        Op(0, 100, "AI_CORE", "MatMul"),
        Op(50, 100, "AI_CORE", "MatMul"),  # on another stream
        Op(60, 20, "MEMCPY_ASYNC", "Memcpy HtoD"),  # hidden under it
        Op(150, 50, "MEMCPY_ASYNC", "Memcpy HtoD"),
        Op(200, 100, "HCCL", "hcom_allReduce"),
        Op(300, 100, "AI_CORE", "Add"),
        Op(400, 100, "MEMCPY_ASYNC", "Memcpy DtoH"),
    ]
    kernel_details(tmp_path, ops)
    found = break_down(read_profile(tmp_path))
    assert found.span_s == pytest.approx(500e-6)
    assert found.busy_s == pytest.approx(250e-6)
    assert (found.h2d_s, found.h2d_alone_s) == (pytest.approx(70e-6), pytest.approx(50e-6))
    assert found.communication_s == pytest.approx(100e-6)
    assert (found.d2h_s, found.d2h_count) == (pytest.approx(100e-6), 1)
    assert found.gap_count == 1 and found.gap_s == pytest.approx(150e-6)
    assert found.idle_s == pytest.approx(0.0, abs=1e-9)
    assert found.kernels[0].max_blocks == 8


def test_sums_of_steps_where_there_is_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "step_trace_time.csv").write_text(
        "Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free\n"
        "0,1,100,50,0,50,350\n0,2,100,50,0,50,350\n"
    )
    (tmp_path / "op_statistic_1.csv").write_text(
        "OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),Max Time(us),Ratio(%)\n"
        "MatMulV2,AI_CORE,4,150,1,2,3,75\nAdd,AI_VECTOR_CORE,4,50,1,2,3,25\n"
    )
    found = break_down(read_profile(tmp_path))
    assert (found.utilisation, found.call_count) == (pytest.approx(0.2), 2)
    assert found.share(found.communication_s) == pytest.approx(0.1)
    assert [(k.name, k.share) for k in found.kernels] == [("MatMulV2", 0.75), ("Add", 0.25)]
    assert found.gap_count is None


def test_copies_of_the_trace_complete_the_table_of_operators(tmp_path: Path) -> None:
    ops = calls(5, copies=3, copy_us=30, compute_us=70, gap_us=0)
    kernel_details(tmp_path, [op for op in ops if "emcpy" not in op.name])
    assert break_down(read_profile(tmp_path)).h2d_count == 0
    trace(tmp_path, ops)
    found = break_down(read_profile(tmp_path))
    assert (found.h2d_count, found.call_count) == (15, 5)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("notes.csv", "a,b\n1,2\n", "no profile in it"),
        ("trace.json", "{}", "no profile in it"),
        ("trace.json", '{"traceEvents": [', "not understood"),
        ("trace.json", '[{"ph": "X", "ts": 1e400, "dur": 1}]', "not understood"),
        ("trace.json", '[{"ph": "X", "dur": 1}]', "not understood"),
        ("trace.json", '[{"ph": "X", "ts": 1, "dur": null}]', "not understood"),
        ("trace.json", '[{"ph": "M", "name": "process_name", "args": 3}]', "not understood"),
        ("trace.json", '[{"ph": "X", "ts": 1e18, "dur": 1}]', "a start at"),
        ("kernel_details.csv", "Name,Start Time(us),Duration(us)\na,x,y\n", "not understood"),
        ("kernel_details.csv", "Name,Start Time(us),Duration(us)\na,1,-5\n", "not understood"),
    ],
)
def test_what_is_no_profile_is_said(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=words):
        read_profile(tmp_path)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_profile(tmp_path / "absent")
