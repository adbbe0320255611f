"""What an owner of an accelerator can try on it in a minute: runs in a child of its own.

Every check is bounded and tells its figure; one that fails does not keep the others from running.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from autotune.core.units import format_duration, format_size
from autotune.devices import open_device
from autotune.devices.checks import Check, failed, passed, skipped, warned
from autotune.devices.torch_accelerator import TorchAccelerator

SUM_ELEMENTS = 1_000_000
COPY_TENSORS, COPY_ELEMENTS, COPY_ROUNDS = 28, 1024, 30
BLOCK_BYTES = 256 * 2**20
MEMORY_TOLERANCE_BYTES = 64 * 2**20
MATRIX_SIZE = 1024
_BLOCKS = ("Block Num", "Block Dim")  # of kernel_details.csv, by version
_CORES = ("Accelerator Core", "Task Type")
_KINDS = {"AI_CORE": "cube", "MIX_AIC": "cube", "AI_VECTOR_CORE": "vector", "MIX_AIV": "vector"}
"""Which cores an operator of a kind counts its blocks on; others run elsewhere."""
ADVICE = "run it again with ASCEND_LAUNCH_BLOCKING=1 or CUDA_LAUNCH_BLOCKING=1 to see where"


def check(name: str) -> list[dict[str, Any]]:
    """Try a device; takes it for this process.

    Args:
        name: Such as "npu:0".
    Returns:
        `Check`s as plain data.
    """
    device = open_device(name.partition(":")[0], name)
    assert isinstance(device, TorchAccelerator)
    runtime = device.runtime
    tries: list[Callable[[Any, str], Check]] = [_sum, _copies, _memory, _profiled_cores]
    found = []
    for attempt in tries:
        label = attempt.__name__.strip("_").replace("_", " ")
        try:
            result = attempt(runtime, name)
        except Exception as error:  # whatever a driver raises is the finding
            text = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
            result = failed(label, text, ADVICE)
        found.append({**asdict(result), "device": name})
    return found


def _sum(runtime: Any, name: str) -> Check:
    import torch

    total = float(torch.ones(SUM_ELEMENTS, device=name).sum().cpu())
    if total != SUM_ELEMENTS:
        return failed(
            "sum", f"{SUM_ELEMENTS} ones add up to {total:g}", "the device computes wrong"
        )
    return passed("sum", f"{SUM_ELEMENTS} ones add up")


def _copies(runtime: Any, name: str) -> Check:
    """Many small tensors to the device one by one, and in one call."""
    import torch

    host = [torch.full((COPY_ELEMENTS,), i, dtype=torch.int64) for i in range(COPY_TENSORS)]
    host = [tensor.pin_memory() for tensor in host]
    device = [torch.empty(COPY_ELEMENTS, dtype=torch.int64, device=name) for _ in host]

    def one_by_one() -> None:
        for target, source in zip(device, host, strict=True):
            target.copy_(source, non_blocking=True)

    def batched() -> None:
        torch._foreach_copy_(device, host, non_blocking=True)

    times_s = {}
    for label, copy in (("one by one", one_by_one), ("batched", batched)):
        times_s[label] = _median_s(copy, runtime)
        if not all(torch.equal(d.cpu(), h) for d, h in zip(device, host, strict=True)):
            return failed("copies", f"{label}: other values arrived", "do not use this device")
        for tensor in device:
            tensor.zero_()
    shown = ", ".join(f"{label} {format_duration(s)}" for label, s in times_s.items())
    size = f"{COPY_TENSORS} tensors of {format_size(COPY_ELEMENTS * 8)}"
    return passed("copies", f"{size}: {shown}")


def _median_s(action: Callable[[], None], runtime: Any) -> float:
    action()
    times_s = []
    for _ in range(COPY_ROUNDS):
        runtime.synchronize()
        began_s = time.perf_counter()
        action()
        runtime.synchronize()  # copies return before they are done
        times_s.append(time.perf_counter() - began_s)
    return statistics.median(times_s)


def _memory(runtime: Any, name: str) -> Check:
    """What is taken comes back."""
    import torch

    runtime.synchronize()
    runtime.empty_cache()
    before, total = runtime.mem_get_info()
    block = torch.empty(min(BLOCK_BYTES, before // 2), dtype=torch.uint8, device=name)
    during, _ = runtime.mem_get_info()
    del block
    runtime.empty_cache()
    after, _ = runtime.mem_get_info()
    if before - after > MEMORY_TOLERANCE_BYTES:
        return failed(
            "memory",
            f"{format_size(before - after)} did not come back",
            "another process may have taken it; see the processes of the device",
        )
    took = format_size(before - during)
    return passed("memory", f"{format_size(before)} of {format_size(total)} free; {took} came back")


def _profiled_cores(runtime: Any, name: str) -> Check:
    """Whether a limit of cores is kept, by the profiler's number of blocks per operator."""
    kind = name.partition(":")[0]
    if not hasattr(runtime, "set_stream_limit"):
        return skipped("core limit", f"torch.{kind} has no limit of cores")
    import torch

    properties = runtime.get_device_properties(runtime.current_device())
    cube, vector = properties.cube_core_num // 2, properties.vector_core_num // 2
    if cube < 1 or vector < 1:
        return skipped("core limit", "the device has one core of a kind")
    stream = runtime.Stream()
    runtime.set_stream_limit(stream, cube_num=cube, vector_num=vector)
    matrix = torch.ones((MATRIX_SIZE, MATRIX_SIZE), device=name, dtype=torch.float16)
    with TemporaryDirectory() as folder:
        try:
            _profile(matrix, runtime, stream, folder)
            blocks = _blocks(Path(folder))
        except Exception as error:  # the profiler needs parts of CANN that may be missing
            words = str(error).strip().partition("\n")[0][:150]
            return skipped("core limit", f"the profiler cannot be used: {words}")
    if not blocks:
        return skipped("core limit", "the profiler told no number of blocks")
    most = ", ".join(f"{count} {kind}" for kind, count in sorted(blocks.items()))
    if blocks.get("cube", 0) > cube or blocks.get("vector", 0) > vector:
        return warned(
            "core limit",
            f"an operator ran on more cores than the limit of {cube}|{vector} (at most {most})",
            "operators that are not written in Ascend C do not obey; a core split may do nothing",
        )
    return passed("core limit", f"at most {most} blocks under a limit of {cube}|{vector}")


def _profile(matrix: Any, runtime: Any, stream: Any, folder: str) -> None:
    profiler: Any = importlib.import_module("torch_npu").profiler
    handler = profiler.tensorboard_trace_handler(folder)
    with profiler.profile(on_trace_ready=handler) as session, runtime.stream(stream):
        for _ in range(3):
            (matrix @ matrix).add_(matrix)
            session.step()
        runtime.synchronize()


def _blocks(folder: Path) -> dict[str, int]:
    """The most blocks of an operator, per kind of core that it counts them on."""
    import csv

    found: dict[str, int] = {}
    for file in folder.rglob("kernel_details.csv"):
        with file.open(newline="", encoding="utf-8", errors="replace") as stream:
            for row in csv.DictReader(stream):
                word = next((row[key] for key in _BLOCKS if row.get(key)), "").strip()
                core = next((row[key] for key in _CORES if row.get(key)), "").strip().upper()
                if word.isdecimal() and (kind := _KINDS.get(core)):
                    found[kind] = max(found.get(kind, 0), int(word))
    return found
