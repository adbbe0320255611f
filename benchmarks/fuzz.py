"""Hostile input for everything that reads: files, options, outputs of programs, stored records.

    python benchmarks/fuzz.py [--inputs 120000] [--seed 0] [--only NAME] [--keep DIR]

Seeds that are well-formed are damaged: bytes flipped, cut, doubled and moved, tokens put in, values
of JSON replaced by what does not belong there. Each reader may accept an input or refuse it by an
error that is documented; anything else is a finding, as is an input that takes more than 2 s of the
processor or grows the process by more than 256 MiB. Wanted: no finding.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import logging
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autotune.apps.buckets import Ask, buckets
from autotune.apps.history import FOLDER, LINES, read_history
from autotune.apps.library import _read_all
from autotune.apps.operands import read_operand
from autotune.apps.samples import load_samples
from autotune.apps.show import read_preferences
from autotune.apps.store import load_result, study_dir
from autotune.core.codec import from_json_dict, to_json_dict
from autotune.core.errors import AutotuneError, StorageError, UsageError, WrongOutput
from autotune.core.objective import METRICS
from autotune.core.outcomes import Outcome
from autotune.core.records import (
    Config,
    DataSpec,
    InputSpec,
    Measurement,
    RateFacts,
    TrialRecord,
    Verdict,
)
from autotune.core.text import clean, without_secrets
from autotune.core.units import parse_quantity
from autotune.devices import cnmon, npu_smi
from autotune.devices.splits import parse_split
from autotune.measure.arrivals import read_trace
from autotune.measure.profile_files import read_profile
from autotune.measure.summary import summarise
from autotune.search.storage import JOURNAL_NAME, check_url
from autotune.space.loader import load_space
from autotune.space.rules import Rule
from autotune.workloads.command_output import PARSERS, read_figures
from autotune.workloads.grid import read_grid
from autotune.workloads.http_client import read_event
from autotune.workloads.ir_file import read_ir
from autotune.workloads.onnx_file import read_onnx
from autotune.workloads.payloads import read_lines
from autotune.workloads.user_data import UserData
from autotune.workloads.user_data import check as check_data

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 2.0  # of the processor, per input
HANG_S = 10  # after which an input is broken off
GROWTH_BYTES = 256 * 2**20
SPARE_BYTES = 2 * 2**30  # of addresses, above what the process has at first
MAX_MESSAGE = 4000
MAX_INPUT_BYTES = 64 * 1024
MAX_FINDINGS = 20
Input = Any


@dataclass(frozen=True, kw_only=True)
class Target:
    """A reader.

    Attributes:
        read: Takes an input; `where` is a directory of its own.
        seeds: Well-formed inputs. `weight`: how many inputs it gets, relative to the others.
        errors: What it may raise.
        mutate: Damages a seed.
    """

    read: Callable[[Input, Path], object]
    seeds: Callable[[Path], Sequence[Input]]
    errors: tuple[type[Exception], ...]
    mutate: Callable[[Input, random.Random], Input]
    weight: int = 4


@dataclass(frozen=True, kw_only=True)
class Finding:
    """An input that was not dealt with as documented."""

    target: str
    what: str
    data: Input
    trace: str = ""


# --- damage ------------------------------------------------------------------------------------

TOKENS = [
    *(b"[ ] { } ' \" # &a *a <<: !!x ? | > : - % @ ~ \\ / , ; = < > ( ) ** not and or if".split()),
    *(b"0 -1 1e9 1e400 -0 .nan nan inf 9223372036854775808 1e-320 08 0x1f 1_000 true null".split()),
    *(b"20ms 4GiB 500/s 5% {batch_size} {port} {{x}} ${HOME} .. ../../x __class__ %s %n".split()),
    *(b"\n", b"\n  ", b"\t", b"\r\n", b"---\n", b"\x00", b"\xff\xfe", b"\xc3", b"\x85", b"\x1b[2J"),
    *("批".encode(), b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"A" * 3000, b"[" * 2000),
    *(b"9" * 400, b"<script>alert(1)</script>", b"${jndi:ldap://x}", b"'; drop table studies;--"),
]
JUNK: list[Any] = [
    *(None, True, False, 0, -1, 2**63, 2**70, 10**400, 1e308, -0.0, 5e-324, float("nan")),
    *(float("inf"), "", "x", "NaN", "\ud800", "\x00", "ok", "batch_size", "9" * 400),
    *([], {}, [[]], {"": None}, [None], {"a": {"b": []}}, [1, 2, 3], {"schema_version": 99}),
]


def bytes_damaged(data: bytes, rng: random.Random) -> bytes:
    """Some bytes replaced, taken out, doubled, moved, or a token put in their place."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        at = rng.randrange(len(found) + 1)
        span = rng.choice((0, 1, 2, 8, 40))
        kind = rng.randrange(6)
        if kind == 0:
            piece = rng.choice(TOKENS)
        elif kind == 1:
            piece = rng.randbytes(rng.randrange(5))
        elif kind == 2 and found:
            start = rng.randrange(len(found))
            piece = bytes(found[start : start + rng.randrange(1, 60)])
        elif kind == 3:
            piece = b""
        elif kind == 4 and at < len(found):
            piece = bytes([found[at] ^ (1 << rng.randrange(8))])
            span = 1
        else:
            piece = str(rng.choice((rng.randrange(-5, 5), rng.random() * 1e6, 2**31))).encode()
        found[at : at + span] = piece
        if rng.random() < 0.03:
            del found[rng.randrange(len(found) + 1) :]
    return bytes(found[:MAX_INPUT_BYTES])


def text_damaged(text: str, rng: random.Random) -> str:
    """The same of text."""
    return bytes_damaged(text.encode("utf-8", "replace"), rng).decode("utf-8", "replace")


def json_damaged(data: Any, rng: random.Random) -> Any:
    """Values replaced by what does not belong there, keys renamed, added, or taken out."""
    found = json.loads(json.dumps(data))
    for _ in range(rng.choice((1, 1, 2, 4))):
        places = list(_places(found))
        if not places:
            return copy.deepcopy(rng.choice(JUNK))
        holder, key = rng.choice(places)
        kind = rng.randrange(5)
        if kind == 0 and isinstance(holder, dict):
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[rng.choice(("x", "", "batch_size", str(key).upper()))] = holder.pop(key)
        elif kind == 2 and isinstance(holder, dict):
            holder[rng.choice(("x", "metrics", "phase"))] = copy.deepcopy(rng.choice(JUNK))
        elif kind == 3 and isinstance(holder[key], (int, float)):
            holder[key] = rng.choice((-holder[key], str(holder[key]), None, 1e300))
        else:
            holder[key] = copy.deepcopy(rng.choice(JUNK))
    return found


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    keys = range(len(data)) if isinstance(data, list) else list(data)
    for key in keys if isinstance(data, (dict, list)) else ():
        yield data, key
        yield from _places(data[key]) if isinstance(data[key], (dict, list)) else ()


def json_text_damaged(data: Any, rng: random.Random) -> bytes:
    """JSON whose values, or whose text, are damaged."""
    if rng.random() < 0.6:
        # Surrogates cannot be written; a file would not have them.
        return json.dumps(json_damaged(data, rng)).encode("utf-8", "replace")
    return bytes_damaged(json.dumps(data).encode(), rng)


# --- readers -----------------------------------------------------------------------------------


def _of_file(name: str, read: Callable[[Path], object]) -> Callable[[Input, Path], object]:
    """A reader of a file of that name."""

    def at(data: Input, where: Path) -> object:
        path = where / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return read(path)

    return at


def _bytes_of(*patterns: str) -> Callable[[Path], Sequence[bytes]]:
    return lambda _: [
        path.read_bytes() for pattern in patterns for path in sorted(ROOT.glob(pattern))
    ]


def record() -> TrialRecord:
    """A record with everything in it."""
    measurement = Measurement(
        throughput_items_per_s=100.0,
        throughput_ci95_items_per_s=(90.0, 110.0),
        latency_p99_s=0.01,
        memory_peak_bytes=10**8,
        warnings=("w",),
        environment={"torch": "2"},
    )
    return TrialRecord(
        number=3,
        config=Config(batch_size=8, extra=(("runtime", "torch"),)),
        phase="search",
        verdict=Verdict(outcome=Outcome.OK, objectives={"throughput_items_per_s": 100.0}),
        measurements=(measurement,),
        rate=RateFacts(rate_per_s=1.0, limit_rate_per_s=2.0, sizes=(1.0,), medians_s=(0.1,)),
    )


GRID = (
    b"batch_size,instance_count,throughput_items_per_s,latency_p99_s,memory_peak_bytes,status,cost_s"
    b"\n1,1,950,0.0011,300000000,ok,2.0\n64,1,21000,0.0034,,ok,2.0\n4096,2,,,,oom,1.5\n"
)
KERNELS = (
    b"Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Block Num\n"
    b"1,MatMul_1,MatMul,AI_CORE,1700000000000000.5,12.5,20\n1,Add_2,Add,AI_VECTOR,1700000000000020"
    b".25,2.5,8\n2,memcpy,MEMCPY_HOST,N/A,170,3,1\n"
)
STEPS = b"Step,Type,Computing,Communication(Not Overlapped),Free\n1,,100.5,2,30\n2,stage,1,1,1\n"
TRACE = {
    "traceEvents": [
        {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "Ascend Hardware"}},
        {"ph": "X", "name": "MatMul", "cat": "kernel", "pid": 1, "ts": "17.5", "dur": 3.5},
        {"ph": "X", "name": "ProfilerStep#3", "pid": 1, "ts": 10, "dur": 90, "args": {}},
    ]
}
OUTPUTS = (
    'warming up\n{"throughput": 1950.5, "latency_p99_ms": 18.2, "results": {"p99": 3}}\n',
    "Throughput: 812.3 qps\nLatency: min = 1 ms, max = 2 ms, mean = 1.5 ms, median = 1.4 ms, "
    "percentile(99%) = 1.9 ms\nGPU Compute Time: mean = 1.2 ms\n",
    "Throughput: 95.2 infer/sec\nAvg latency: 1050 usec\np50 latency: 1000 usec\np99 latency: 9\n",
    "AvgRunTime = 3.25 ms\n",
    "[INFO] H2D_latency (ms): min = 1, mean = 1.5, percentile(99%) = 2\n[INFO] NPU_compute_time "
    "(ms): mean = 3, percentile(99%) = 4\n[INFO] D2H_latency (ms): mean = 1, percentile(99%) = 2\n"
    "[INFO] throughput 1000*batchsize.mean(8)/NPU_compute_time.mean(3): 2666.6\n",
)
METRIC_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    *({"parser": name} for name in PARSERS),
    {"metrics": {"throughput_items_per_s": {"key": "results.p99"}}},
    {"metrics": {"latency_p99_s": {"regex": r"p99 latency: ([\d.,]+)", "unit": "us"}}},
)
SMI = (
    "+----+\n| npu-smi 24.1 Version: 24.1 |\n| NPU   Name | Health | Power(W) Temp(C) Hugepages |\n"
    "| Chip | Bus-Id | AICore(%) Memory-Usage(MB) HBM-Usage(MB) |\n| 0 910B3 | OK | 91.5 40 0 / 0 |"
    "\n| 0 | 0000:C1:00.0 | 0 0 / 0 3161 / 65536 |\n",
    "NPU ID : 0\nChip Count : 1\nChip ID : 0\nUsage Rate(%) : 12\nTemperature (C) : 40\n",
    "NpuID(Idx)  ChipId(Idx) Pwr(W) Temp(C) AI Core(%)\n0 0 91.5 40 3\n",
)
CNMON = "Card 0\nUtilization :\n    MLU Average : 12 %\nPower :\n    Usage : 75 W\n"
RULES = (
    "instance_count * cores_per_instance <= core_count",
    "batch_size % micro_batch_count == 0 and (batch_size < 8 or not batched_h2d)",
    "schedule != 'x' and 2 ** 3 < batch_size // 2",
)
IR = (
    b'<net name="m" version="11"><layers><layer id="0" name="x" type="Parameter"><data shape="?,3" '
    b'element_type="f32"/><output><port id="0" names="x,y"><dim>-1</dim><dim>3</dim></port>'
    b'</output></layer><layer id="1" type="Const"/></layers><edges/></net>'
)


def _onnx(_: Path) -> Sequence[bytes]:
    """A graph with an input, an output and a weight, written by hand: no package is needed."""

    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    dims = field(1, field(2, b"batch")) + field(1, b"\x08\x10")
    tensor = field(1, b"\x08\x01" + field(2, dims))
    value = field(1, b"x") + field(2, tensor)
    weight = b"\x08\x04\x10\x01" + field(8, b"w") + field(13, field(1, b"k") + field(2, b"v"))
    graph = field(11, value) + field(12, field(1, b"y") + field(2, tensor)) + field(5, weight)
    return [b"\x08\x08" + field(7, graph)]


def _npz(_: Path) -> Sequence[bytes]:
    packed = io.BytesIO()
    arrays = {name: np.arange(6.0) for name in ("due_s", "start_s", "cpu_s")}
    arrays |= {name: np.zeros(6, np.int64) for name in ("instance", "switch_count", "fault_count")}
    arrays |= {"end_s": np.arange(6.0) + 0.5, "late_s": np.zeros(6)}
    arrays |= {"window": np.arange(6) // 3, "item_count": np.full(6, 1)}
    arrays |= {"first_request": np.arange(6) % 3}
    arrays |= {"arrivals_s": np.arange(9.0) / 2, "arrival_counts": np.array([4, 5])}
    np.savez(packed, allow_pickle=False, call_count=6, x=np.ones((6, 3), np.float32), **arrays)
    return [packed.getvalue()]


def npz_damaged(data: bytes, rng: random.Random) -> bytes:
    """Bytes of the file, or some of its arrays with other values, shapes or types."""
    if rng.random() < 0.3:
        return bytes_damaged(data, rng)
    with np.load(io.BytesIO(data)) as file:
        arrays = {name: file[name] for name in file}
    for name in rng.sample(sorted(arrays), rng.choice((1, 1, 2, 4))):
        array, kind = arrays[name], rng.randrange(6)
        if kind == 0:
            del arrays[name]
        elif kind == 1:
            arrays[name] = array[: rng.randrange(3)] if array.ndim else np.arange(3)
        elif kind == 2:
            arrays[name] = np.broadcast_to(array, (2, *array.shape))
        elif kind == 3:
            with np.errstate(all="ignore"):
                arrays[name] = array.astype(rng.choice(("U8", "?", "c16", "f2", "u1", "M8[s]")))
        elif kind == 4:
            arrays[name] = array * rng.choice((-1, 0, 10**6, -(10**12)))
        else:
            arrays[name] = np.full(array.shape, rng.choice((np.nan, np.inf, -np.inf, 2**62)))
    packed = io.BytesIO()
    np.savez(packed, allow_pickle=False, **arrays)
    return packed.getvalue()


def _read_calls(path: Path) -> object:
    """Read them, and derive what is derived of them."""
    samples = load_samples(path)
    try:
        return samples.request_latency_s(), summarise(samples)
    except WrongOutput:
        return None


def _read_data(path: Path) -> object:
    spec = DataSpec(file=str(path))
    check_data(spec, str(path.parent))
    data = UserData(spec, [InputSpec(name="x", shape=("batch", 3))])
    return data.requests(2, 2), data.expected


def _journals(where: Path) -> Sequence[bytes]:
    """The journal of a study that was run."""
    import autotune

    (where / "grid.csv").write_bytes(GRID)
    space = "workload: {replay: grid.csv}\nbudget: {trials: 2}\nconfirm: false\nwarm_start: false\n"
    (where / "s.yaml").write_text(space)
    autotune.run(load_space(where / "s.yaml"), studies_dir=where / "made")
    return [(where / "made" / "s" / JOURNAL_NAME).read_bytes()]


def journal_damaged(data: bytes, rng: random.Random) -> bytes:
    """Bytes of the file, or values within one of its lines."""
    if rng.random() < 0.3:
        return bytes_damaged(data, rng)
    lines = data.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    lines[at] = json.dumps(json_damaged(json.loads(lines[at]), rng)).encode() + b"\n"
    return b"".join(lines)


def _read_study(path: Path) -> object:
    result = load_result(path.parent.name, path.parent.parent)
    return [to_json_dict(kept) for kept in result.records]


def _read_name(name: str, where: Path) -> object:
    path = study_dir(where, name)
    assert path.parent == where and path.name not in ("", ".", ".."), f"{name!r} leads elsewhere"
    return path


def _read_url(url: str, _: Path) -> object:
    secret = url.replace("\n", " ")
    shown = without_secrets(f"storage postgresql://user:s3cr3t{secret}@host/db: refused")
    assert "s3cr3t" not in shown or any(c.isspace() or c in "'\"" for c in secret), shown
    return check_url(url)


def _operand(path: Path) -> object:
    return read_operand(str(path), path.parent)


def _history(path: Path) -> object:
    return read_history(path.parent.parent)


def _past(path: Path) -> object:
    return list(_read_all(path.parent))


def _spaces(_: Path) -> Sequence[bytes]:
    return _bytes_of("search_spaces/*.yaml", "examples/*/*.yaml", "tests/golden/space_v1.yaml")(_)


TARGETS: dict[str, Target] = {
    "space file": Target(
        read=_of_file("f.yaml", load_space), seeds=_spaces, errors=(UsageError,),
        mutate=bytes_damaged, weight=8,
    ),
    "option": Target(
        read=lambda text, _: load_space("offline", [text]),
        seeds=lambda _: ["params.batch_size=[1, 2]", "limits={latency_p99: 5ms}", "trial.seed=1",
                         "workload={server: {command: [env], request: {path: /x}}}"],
        errors=(UsageError,), mutate=text_damaged, weight=8,
    ),
    "rule": Target(
        read=lambda text, _: Rule(text=text).holds({"batch_size": 8}, {"core_count": 2}),
        seeds=lambda _: RULES, errors=(UsageError, ValueError, KeyError), mutate=text_damaged,
    ),
    "quantity": Target(
        read=lambda text, _: parse_quantity(text, "duration"),
        seeds=lambda _: ["20ms", "1.5 s", "4min", "1e-3us"], errors=(ValueError,),
        mutate=text_damaged,
    ),
    "split": Target(
        read=lambda text, _: parse_split(text), seeds=lambda _: ["8|16", "4"],
        errors=(UsageError, ValueError), mutate=text_damaged,
    ),
    "preference": Target(
        read=lambda text, _: read_preferences([text]),
        seeds=lambda _: [f"{name}<=10ms" for name in METRICS] + ["throughput>=5/s"],
        errors=(UsageError,), mutate=text_damaged,
    ),
    "replay grid": Target(
        read=_of_file("g.csv", read_grid), seeds=lambda _: [GRID], errors=(UsageError,),
        mutate=bytes_damaged, weight=8,
    ),
    "arrivals": Target(
        read=_of_file("t.txt", lambda path: read_trace(str(path))),
        seeds=lambda _: [b"# times\n0\n0.5\n1e0\n\n2.25\n"], errors=(UsageError,),
        mutate=bytes_damaged,
    ),
    "lengths": Target(
        read=_of_file("l.csv", lambda path: buckets(path, 4, Ask())),
        seeds=lambda _: [b"length,count\n5,10\n64,2\n128,1\n", b"5\n6\n7\n"],
        errors=(UsageError,), mutate=bytes_damaged,
    ),
    "profile table": Target(
        read=_of_file("kernel_details.csv", read_profile), seeds=lambda _: [KERNELS, STEPS],
        errors=(UsageError,), mutate=bytes_damaged, weight=8,
    ),
    "profile trace": Target(
        read=_of_file("trace_view.json", read_profile), seeds=lambda _: [TRACE],
        errors=(UsageError,), mutate=json_text_damaged, weight=8,
    ),
    "program output": Target(
        read=lambda text, _: [_figures(text, options) for options in METRIC_OPTIONS],
        seeds=lambda _: OUTPUTS, errors=(WrongOutput,), mutate=text_damaged, weight=8,
    ),
    "streamed event": Target(
        read=lambda data, _: read_event(data),
        seeds=lambda _: [{"choices": [{"delta": {"content": "a"}}], "usage": None},
                         {"choices": [{"text": "a"}], "usage": {"completion_tokens": 3}}],
        errors=(), mutate=json_text_damaged,
    ),
    "request lines": Target(
        read=_of_file("r.jsonl", lambda path: read_lines(str(path), "request.file")),
        seeds=lambda _: [b'{"x": 1}\n{"x": 2}\n'], errors=(UsageError,), mutate=bytes_damaged,
    ),
    "record": Target(
        read=lambda data, _: to_json_dict(from_json_dict(TrialRecord, data)),
        seeds=lambda _: [to_json_dict(record())], errors=(UsageError,), mutate=json_damaged,
        weight=10,
    ),
    "journal": Target(
        read=_of_file(f"studies/s/{JOURNAL_NAME}", _read_study), seeds=_journals,
        errors=(UsageError, StorageError), mutate=journal_damaged, weight=8,
    ),
    "samples": Target(
        read=_of_file("s.npz", _read_calls), seeds=_npz, errors=(StorageError,),
        mutate=npz_damaged,
    ),
    "own data": Target(
        read=_of_file("d.npz", _read_data), seeds=_npz, errors=(UsageError,), mutate=npz_damaged,
    ),
    "onnx": Target(
        read=_of_file("m.onnx", read_onnx), seeds=_onnx, errors=(UsageError,),
        mutate=bytes_damaged, weight=8,
    ),
    "openvino ir": Target(
        read=_of_file("m.xml", read_ir), seeds=lambda _: [IR], errors=(UsageError,),
        mutate=bytes_damaged,
    ),
    "npu-smi": Target(
        read=lambda text, _: npu_smi.parse(text), seeds=lambda _: SMI, errors=(ValueError,),
        mutate=text_damaged,
    ),
    "cnmon": Target(
        read=lambda text, _: cnmon.parse(text), seeds=lambda _: [CNMON], errors=(ValueError,),
        mutate=text_damaged,
    ),
    "result file": Target(
        read=_of_file("r.json", _operand),
        seeds=lambda _: [{"schema": 1, "study": "s", "config": {"batch_size": 8}, "verdict": {
            "outcome": "ok"}, "measurement": {"throughput_items_per_s": 5.0}, "conditions": {}}],
        errors=(AutotuneError,), mutate=json_text_damaged,
    ),
    "gate history": Target(
        read=_of_file(f"{FOLDER}/{LINES}", _history),
        seeds=lambda _: [{"at_s": 1.0, "a": "x", "b": "y", "status": "passed", "ratio": 1.0}],
        errors=(), mutate=json_text_damaged,
    ),
    "library": Target(
        read=_of_file("library/p.json", _past),
        seeds=lambda _: [json.loads((ROOT / "tests/golden/past_v1.json").read_text())],
        errors=(), mutate=json_text_damaged,
    ),
    "study name": Target(
        read=_read_name, seeds=lambda _: ["online", "../x", "a/b", ".hidden", "批大小"],
        errors=(UsageError,), mutate=text_damaged,
    ),
    "storage url": Target(
        read=_read_url, seeds=lambda _: ["sqlite:///a.db", "postgresql://u:p@h/d", "journal"],
        errors=(UsageError, StorageError), mutate=text_damaged,
    ),
    "printed text": Target(
        read=lambda text, _: _cleaned(text), seeds=lambda _: OUTPUTS, errors=(),
        mutate=text_damaged,
    ),
}  # fmt: skip


def _figures(text: str, options: dict[str, Any]) -> object:
    try:
        return read_figures(text, options, batch_size=8)
    except WrongOutput:
        return None


def _cleaned(text: str) -> None:
    assert not any(ord(c) < 32 and c not in "\n\t" for c in clean(text)), "a control character"


# --- running -----------------------------------------------------------------------------------


class _HangError(BaseException):
    """An input that takes too long."""


def _break_off(*_: object) -> None:
    raise _HangError


def fuzz(
    name: str, count: int, seed: int, where: Path
) -> Iterator[tuple[int, Finding | None, str]]:
    """Try so many inputs; yields each with what was found, and what it ended in."""
    target, rng = TARGETS[name], random.Random(f"{seed} {name}")
    where.mkdir(parents=True, exist_ok=True)
    seeds = list(target.seeds(where))
    for number in range(count):
        data = target.mutate(rng.choice(seeds), rng)
        yield number, *_tried(name, target, data, where)


def _tried(name: str, target: Target, data: Input, where: Path) -> tuple[Finding | None, str]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began_s, ended, what, trace = time.process_time(), "accepted", "", ""
    signal.setitimer(signal.ITIMER_PROF, HANG_S)
    try:
        target.read(data, where)
    except target.errors as error:
        ended = "refused"
        if isinstance(error, AutotuneError) and len(str(error)) > MAX_MESSAGE:
            what = f"a message of {len(str(error))} characters"
    except _HangError:
        what = f"broken off after {HANG_S} s"
    except Exception as error:
        what, trace = f"{type(error).__name__}: {str(error)[:200]}", traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    spent_s = time.process_time() - began_s
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    if not what and spent_s > LIMIT_S:
        what = f"took {spent_s:.1f} s"
    if not what and grown > GROWTH_BYTES:
        what = f"took {grown / 2**20:.0f} MiB"
    return (Finding(target=name, what=what, data=data, trace=trace) if what else None), ended


def limited() -> None:
    """Bound the memory of this process, and get ready to break off what hangs."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    signal.signal(signal.SIGPROF, _break_off)


def shares(total: int, names: Sequence[str]) -> dict[str, int]:
    """How many of all inputs each target gets."""
    weights = sum(TARGETS[name].weight for name in names)
    return {name: max(total * TARGETS[name].weight // weights, 1) for name in names}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=120_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=TARGETS)
    parser.add_argument("--keep", type=Path, help="a directory for inputs that are findings")
    asked = parser.parse_args()
    names = [asked.only] if asked.only else list(TARGETS)
    findings: list[Finding] = []
    tried = 0
    limited()
    logging.disable()  # some readers pass over what they cannot read, and say so
    with tempfile.TemporaryDirectory() as place:
        for name, count in shares(asked.inputs, names).items():
            ends: Counter[str] = Counter()
            began_s = time.process_time()
            for _, finding, ended in fuzz(name, count, asked.seed, Path(place) / name):
                ends[ended] += 1
                if finding is not None:
                    findings.append(finding)
                    ends["findings"] += 1
            tried += count
            spent_s = time.process_time() - began_s
            print(f"{name:16} {count:7} inputs  {spent_s:6.1f} s  {dict(ends)}", flush=True)
    print(f"{tried} inputs, {len(findings)} findings")
    for number, finding in enumerate(findings[:MAX_FINDINGS]):
        print(f"\n{finding.target}: {finding.what}\n{finding.data!r:.500}\n{finding.trace[-1500:]}")
        if asked.keep is not None:
            asked.keep.mkdir(parents=True, exist_ok=True)
            data = finding.data
            raw = data if isinstance(data, bytes) else repr(data).encode("utf-8", "replace")
            (asked.keep / f"{finding.target}-{number}".replace(" ", "_")).write_bytes(raw)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
