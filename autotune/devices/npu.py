"""Ascend NPUs through torch_npu.

Facts of torch_npu and CANN that this file rests on: a process may set its device's core limit
once, after the device and before any operator; a stream's limit can be set again; a limit of 0 is
not refused by the runtime; `_foreach_copy_` reaches the runtime's batch copy only on some chips.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from autotune.core.errors import TrialCrashed
from autotune.core.text import describe
from autotune.devices.base import Mark, Seat
from autotune.devices.splits import parse_split, split_ladder
from autotune.devices.torch_accelerator import (
    NATIVE,
    AcceleratorKind,
    TorchAccelerator,
    error_code,
    surveyed,
)

OUT_OF_MEMORY_CODES = (200000, 207001)  # ACL_ERROR_BAD_ALLOC, ACL_ERROR_RT_MEMORY_ALLOCATION
PROBE_TENSORS, PROBE_ELEMENTS = 8, 64

# Where op-plugin's `_foreach_copy_` may take the batch path, by torch_npu's numbers of chips:
# from 910B1 (220) to before 310B1 (240), and above 910_9391 (250).
_BATCH_CHIPS = ((220, 240), (251, 10_000))


class NpuDevice(TorchAccelerator):
    """One instance on its part of an NPU."""

    kind, package = "npu", "torch_npu"

    def __init__(self, index: int, seat: Seat) -> None:
        super().__init__(index, seat)
        # Before any operator. Limited streams need tensors in the common formats.
        self.runtime.config.allow_internal_format = False
        self._limit_cores(index)
        # Otherwise weights of convolutions may be moved into private formats.
        self.runtime.set_compile_mode(jit_compile=False)

    def _limit_cores(self, index: int) -> None:
        asked = self._seat.config.cores_per_instance
        if asked == "all":
            return
        cube, vector = parse_split(asked)
        npu = self.runtime
        if self._seat.shares_process:
            how = "stream limit"
            npu.set_stream_limit(self._stream, cube_num=cube, vector_num=vector)
            got = npu.get_stream_limit(self._stream)
        else:
            how = "device limit"
            npu.set_device_limit(index, cube_num=cube, vector_num=vector)
            got = npu.get_device_limit(index)
        effective = f"{got['cube_core_num']}|{got['vector_core_num']}"
        if effective != f"{cube}|{vector}":
            raise TrialCrashed(
                f"asked for a core split of {cube}|{vector} ({how}), but the device "
                f"reports {effective}"
            )
        self._facts["core split"] = f"{effective} by {how}, asked for {asked}"

    def is_out_of_memory(self, error: BaseException) -> bool:
        """As the error's own code has it: a stale message can make another error look like it."""
        code = error_code(error)
        return super().is_out_of_memory(error) if code is None else code in OUT_OF_MEMORY_CODES

    def profile(self, folder: Path) -> AbstractContextManager[Mark] | None:
        """By torch_npu's profiler, which writes its tables below the folder."""
        return self._recorded(folder)

    @contextlib.contextmanager
    def _recorded(self, folder: Path) -> Iterator[Mark]:
        profiler: Any = importlib.import_module("torch_npu").profiler
        record_function = importlib.import_module("torch").profiler.record_function
        handler = profiler.tensorboard_trace_handler(str(folder))
        with profiler.profile(on_trace_ready=handler):
            yield record_function
            self.synchronize()

    def explain(self, error: BaseException) -> str:
        """The call that failed and the runtime's last words, out of a page of advice."""
        return explained(error)


class NpuKind(AcceleratorKind):
    """NPUs that torch_npu sees."""

    device = NpuDevice
    install = "pip install torch_npu, in the version that matches torch and CANN"
    collectives = "hccl"
    node_pattern = "dev/davinci[0-9]*"

    def _split(self, device: Mapping[str, Any]) -> dict[str, Any]:
        cube, vector, why_whole = (device[k] for k in ("cube_count", "vector_count", "why_whole"))
        return {
            "core_count": cube,
            "facts": {"core_count": cube, "cube_count": cube, "vector_count": vector},
            "core_ladder": ("all",) if why_whole else split_ladder(cube, vector),
            "splits": () if why_whole else ("cube|vector",),
            "why_whole": why_whole,
        }


# --- looked at from a child --------------------------------------------------------------------


def survey() -> dict[str, Any]:
    """The NPUs that torch_npu sees and what they can do, as plain data."""
    import torch
    import torch_npu

    cann = _cann_version()

    def own(properties: Any) -> dict[str, Any]:
        cube, vector = int(properties.cube_core_num), int(properties.vector_core_num)
        return {
            "units": f"{cube} cube and {vector} vector cores, CANN {cann}",
            "cube_count": cube,
            "vector_count": vector,
            "why_whole": _why_whole(cube, vector),
        }

    versions = {
        "torch": str(torch.__version__),
        "torch_npu": str(torch_npu.__version__),
        "cann": cann,
    }
    found = surveyed(torch.npu, own, versions=versions)
    copied = _batch_copy() if found["devices"] else "there is no device"
    return {**found, "batch_copy": copied}


def _cann_version() -> str:
    try:
        from torch_npu.npu.utils import get_cann_version

        return str(get_cann_version()) or "unknown"
    except (ImportError, RuntimeError):
        return "unknown"


def _why_whole(cube: int, vector: int) -> str:
    """Why instances cannot be limited to a part of the cores, empty if they can."""
    import torch

    if cube < 2 or vector < 2:
        return f"it has {cube} cube and {vector} vector cores"
    wanted = {"cube_core_num": cube // 2, "vector_core_num": vector // 2}
    try:
        stream = torch.npu.Stream()
        torch.npu.set_stream_limit(stream, cube_num=cube // 2, vector_num=vector // 2)
        got = torch.npu.get_stream_limit(stream)
    except (AttributeError, RuntimeError) as error:
        return f"a core limit was refused: {_first_line(error)}"
    if got != wanted:
        return f"a core limit has no effect: {wanted} was set, {got} read back"
    return ""


def _batch_copy() -> str:
    """NATIVE if one `_foreach_copy_` from the host is one operation here, else why it is not."""
    import torch
    import torch_npu

    chip = int(torch_npu._C._npu_get_soc_version())
    if not any(first <= chip < end for first, end in _BATCH_CHIPS):
        return f"torch_npu does not use it on {torch.npu.get_device_name(0)}"
    for library, symbol in (
        ("libopapi.so", "aclnnForeachCopy"),
        ("libascendcl.so", "aclrtMemcpyBatchAsync"),
    ):
        try:
            getattr(ctypes.CDLL(library), symbol)
        except (OSError, AttributeError):
            return f"this CANN has no {symbol} in {library}"
    return _try_batch_copy(torch)


def _try_batch_copy(torch: Any) -> str:
    torch.npu.set_device(0)
    host = [
        torch.full((PROBE_ELEMENTS,), float(i)).pin_memory() for i in range(1, PROBE_TENSORS + 1)
    ]
    device = [torch.empty(PROBE_ELEMENTS, device="npu:0") for _ in host]
    try:
        torch._foreach_copy_(device, host, non_blocking=True)
        torch.npu.synchronize()
        arrived = [tensor.cpu() for tensor in device]
        # A failed launch is found by the next one, whatever was waited for in between.
        torch._foreach_copy_(device, host, non_blocking=True)
    except RuntimeError as error:
        return f"the runtime refused it: {explained(error) or _first_line(error)}"
    if not all(torch.equal(one, other) for one, other in zip(arrived, host, strict=True)):
        return "it did not copy what it was given"
    return NATIVE


_FAILED_CALL = re.compile(
    r"NPU function error: (?P<now>[\w:]+)|current working operator name is (?P<before>\w+)"
    r"|current (?P<copies>copy) params"
)
_MEANING = re.compile(r"^\[Error\]: *(.+)$", re.MULTILINE)  # of the code, in torch_npu's own words
_NO_OPERATOR = re.compile(r"Could not run '([^']+)' with arguments from the '([^']+)' backend")


def explained(error: BaseException) -> str:
    """What failed, and the runtime's own message, from torch_npu's text; empty if not its."""
    text = describe(error).strip()
    match = _FAILED_CALL.search(text)
    if match is None:
        missing = _NO_OPERATOR.search(text)
        return f"operator {missing[1]} does not run on {missing[2]} tensors" if missing else ""
    code, meaning = error_code(error), _MEANING.search(text)
    last = text.splitlines()[-1].strip()
    words = f"{meaning[1].strip().rstrip('.')}; {last}" if meaning else last
    what = f"{match['now'] or match['before'] or match['copies']} failed"
    number = f" with error {code}" if code else ", which was found later"
    return f"{what}{number}: {words}"


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:200]
