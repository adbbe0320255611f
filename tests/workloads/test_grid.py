from __future__ import annotations

from pathlib import Path

import pytest

from autotune.core.errors import UsageError
from autotune.core.outcomes import Outcome
from autotune.core.records import Config
from autotune.workloads.grid import read_grid

HEADER = (
    "batch_size,instance_count,cores_per_instance,batched_h2d,"
    "throughput_items_per_s,latency_p50_s,latency_p99_s,memory_peak_bytes,status,cost_s"
)
ROWS = (
    "1,1,all,false,604.9,0.0016,0.0018,1302000000,ok,2.55",
    "8,2,16|16,true,1200,,0.004,,ok,2.5",
    "16,2,4,true,,,,,oom,4.68",
)


def write(folder: Path, *lines: str, encoding: str = "utf-8") -> Path:
    path = folder / "grid.csv"
    path.write_text("\n".join(lines) + "\n", encoding=encoding)
    return path


def test_rows_and_parameters_are_read(tmp_path: Path) -> None:
    grid = read_grid(write(tmp_path, HEADER, *ROWS))
    assert grid.params == ("batch_size", "instance_count", "cores_per_instance", "batched_h2d")
    assert grid.choices("batch_size") == (1, 8, 16)
    assert grid.choices("cores_per_instance") == (4, "all", "16|16")
    assert grid.choices("batched_h2d") == (False, True)
    row = grid.lookup(
        Config(batch_size=8, instance_count=2, cores_per_instance="16|16", batched_h2d=True)
    )
    assert row.figures == {"throughput_items_per_s": 1200.0, "latency_p99_s": 0.004}
    assert (row.status, row.cost_s, row.line) == (Outcome.OK, 2.5, 3)


def test_a_failed_row_needs_no_figures(tmp_path: Path) -> None:
    grid = read_grid(write(tmp_path, HEADER, *ROWS))
    row = grid.lookup(
        Config(batch_size=16, instance_count=2, cores_per_instance=4, batched_h2d=True)
    )
    assert (row.status, row.figures) == (Outcome.OOM, {})


def test_any_parameter_may_be_a_column(tmp_path: Path) -> None:
    header = "batch_size,max_queue_delay,env.MODE,level,throughput_items_per_s,status"
    grid = read_grid(write(tmp_path, header, "1,2ms,1,1e1,5,ok", "1,0.5,2,fast,5,ok"))
    first, second = grid.rows
    assert dict(first.extra) == {"max_queue_delay": 0.002, "env.MODE": "1", "level": 10.0}
    assert dict(second.extra) == {"max_queue_delay": 0.5, "env.MODE": "2", "level": "fast"}


def test_byte_order_mark_line_ends_and_blank_lines_are_no_matter(tmp_path: Path) -> None:
    path = tmp_path / "grid.csv"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join([HEADER, "", *ROWS, "", ""]).encode())
    assert len(read_grid(path).rows) == 3


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    import os

    path = write(tmp_path, HEADER, *ROWS)
    assert len(read_grid(path).rows) == 3
    write(tmp_path, HEADER, ROWS[0])
    os.utime(path, ns=(1, 1))
    assert len(read_grid(path).rows) == 1


def test_a_configuration_without_a_row_is_named(tmp_path: Path) -> None:
    grid = read_grid(write(tmp_path, HEADER, *ROWS))
    with pytest.raises(UsageError, match=r"no row for batch_size=3, instance_count=1"):
        grid.lookup(Config(batch_size=3))


GOOD = ROWS[0].split(",")


def changed(column: str, value: str) -> str:
    cells = dict(zip(HEADER.split(","), GOOD, strict=True))
    return ",".join({**cells, column: value}.values())


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("batch_size", "0", "0 is below 1"),
        ("batch_size", "1.5", "'1.5' is not a whole number"),
        ("batch_size", "", "cannot be empty"),
        ("batch_size", "true", "not a whole number"),
        ("cores_per_instance", "-1", "-1 is below 1"),
        ("batched_h2d", "maybe", "neither true nor false"),
        ("throughput_items_per_s", "fast", "'fast' is not a number"),
        ("throughput_items_per_s", "-5", "not a finite number from 0 on"),
        ("throughput_items_per_s", "nan", "not a finite number"),
        ("throughput_items_per_s", "", "needs one above 0"),
        ("throughput_items_per_s", "0", "needs one above 0"),
        ("latency_p99_s", "inf", "not a finite number"),
        ("memory_peak_bytes", "1 GB", "not a number"),
        ("status", "fine", "'fine' is not one of ok, oom, timeout, compile_error, crashed"),
        ("status", "over_limit", "not one of"),
        ("cost_s", "-1", "not a finite number from 0 on"),
    ],
)
def test_a_bad_cell_is_found_by_line_and_column(
    tmp_path: Path, column: str, value: str, message: str
) -> None:
    path = write(tmp_path, HEADER, changed(column, value), ROWS[1])
    with pytest.raises(UsageError) as caught:
        read_grid(path)
    assert str(caught.value).startswith(f"{path}:2: column {column}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "is empty"),
        ([HEADER], "header but no rows"),
        ([HEADER, ROWS[0], "1,2"], r":3: 2 cells, but the header has 10"),
        ([HEADER, ROWS[0], ROWS[1], ROWS[0]], ":4: the same configuration as in line 2"),
        (["batch_size,status", "1,ok"], "needs the columns throughput_items_per_s and status"),
        (["batch_size,throughput_items_per_s,status,latency_p9_s", "1,1,ok,1"],
         "unknown column 'latency_p9_s'; did you mean 'latency_p99_s'"),
        (["throughput_items_per_s,status", "1,ok"], "must come first"),
        (["batch_size,batch_size,throughput_items_per_s,status", "1,1,1,ok"], "twice"),
        ([HEADER, '"1,2'], ":2: "),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_grid(write(tmp_path, *lines) if lines else _empty(tmp_path))


def _empty(folder: Path) -> Path:
    (folder / "grid.csv").write_text("")
    return folder / "grid.csv"


def test_a_file_in_another_encoding_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_grid(write(tmp_path, HEADER, changed("cores_per_instance", "批"), encoding="gbk"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*nosuch\.csv"):
        read_grid(tmp_path / "nosuch.csv")
