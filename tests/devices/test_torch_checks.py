"""What `autotune doctor --device` concludes, on a stand-in for a device's own profiler."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.devices import torch_checks

HEAD = "Device_id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us)"


def concluded(monkeypatch: pytest.MonkeyPatch, table: str) -> Any:
    """The finding on a chip of 24 cube and 48 vector cores, of which it sets half as a limit."""
    runtime = SimpleNamespace(
        set_stream_limit=lambda stream, **_: None,
        current_device=lambda: 0,
        get_device_properties=lambda _: SimpleNamespace(cube_core_num=24, vector_core_num=48),
        Stream=object,
    )

    def profile(matrix: Any, runtime: Any, stream: Any, folder: str) -> None:
        (Path(folder) / "kernel_details.csv").write_text(table)

    monkeypatch.setattr(torch_checks, "_profile", profile)
    return torch_checks._profiled_cores(runtime, "cpu")


@pytest.mark.parametrize(
    ("column", "matmul", "add", "status"),
    [
        ("Block Num", 12, 24, "ok"),
        ("Block Dim", 12, 24, "ok"),
        ("Block Num", 24, 24, "warning"),  # within the vector cores, but they are cube cores
        ("Block Num", 12, 48, "warning"),
        ("Blocks", 12, 48, "skipped"),
    ],
)
def test_a_limit_holds_if_it_does_for_both_kinds_of_cores(
    column: str, matmul: int, add: int, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        f"0,mm,MatMulV2,AI_CORE,1.0,2.0,0,{matmul}",
        f"0,add,Add,AI_VECTOR_CORE,3.0,1.0,0,{add}",
        "0,hcom,hcom_broadcast_,HCCL,4.0,1.0,0,N/A",
        "0,host,Unique,AI_CPU,4.0,1.0,0,96",
    ]
    found = concluded(monkeypatch, "\n".join([f"{HEAD},{column}", *rows, ""]))
    assert found.status == status, found
    if status != "skipped":
        assert f"{matmul} cube, {add} vector" in found.detail and "12|24" in found.detail
