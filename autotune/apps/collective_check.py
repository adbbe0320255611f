"""Do several ranks find each other and work together: `autotune doctor --ranks N`."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from autotune.core.units import format_duration, format_size
from autotune.devices import collective_backend, find_device, framework_device
from autotune.devices.base import DeviceInfo
from autotune.devices.checks import Check, failed, passed
from autotune.devices.probe import Probed, probe

TARGET = "autotune.devices.collectives:try_out"
LOOPBACK = "127.0.0.1"
LIMIT_S = 60.0
MARGIN_S = 30.0  # for starting and importing, beyond what ranks wait for each other

ADVICE = (
    ("address already in use", "another program took the port in between: run it again"),
    ("refused", "the port is blocked, or rank 0 has ended: see its finding"),
    ("timed out", "a rank did not come: is a port blocked, does one wait for a device?"),
    ("timeout", "a rank did not come: is a port blocked, does one wait for a device?"),
    ("did not answer", "it hangs: a device that others hold, a network interface without a way, or "
     "another program that took the port"),
    ("unknown backend", "the device's package (torch_npu, …) is missing, or of another torch"),
    ("built in", "this torch is a build without that backend: install the one for the device"),
    ("no module named", "install the device's package in the version that matches torch"),
    ("hccl", "are /dev/davinci*, davinci_manager and hisi_hdc in the container, and all on one "
     "driver version? HCCL is not NCCL: see its log (ASCEND_GLOBAL_LOG_LEVEL=1)"),
    ("nccl", "see NCCL_DEBUG=INFO; two ranks cannot share a GPU"),
    ("backend", "this torch was built without that backend"),
)  # fmt: skip
"""Words of an error to what a user can do."""


def check_ranks(device: str, count: int) -> list[Check]:
    """Start ranks as a trial would, let them sum and pass on; what went wrong in words.

    Args:
        device: "cpu", "npu:0-3", "auto"; ranks take the devices from there on.
    Raises:
        UsageError, UnavailableError: There is no such device.
    """
    info = find_device(device)
    names = _names(info, count)
    if len(names) < count:
        return [
            failed(
                "ranks",
                f"{count} ranks need as many devices, and of {info.kind} there are {len(names)}",
                "fewer ranks, or more device nodes in the container (--device /dev/davinci1 …)",
            )
        ]
    backend = collective_backend(info.kind)
    with socket.create_server((LOOPBACK, 0)) as free:
        port = free.getsockname()[1]

    def run(rank: int) -> Probed:
        own = (backend, framework_device(names[rank]), LOOPBACK, str(port), str(rank), str(count))
        return probe(TARGET, *own, f"{LIMIT_S:g}", limit_s=LIMIT_S + MARGIN_S)

    with ThreadPoolExecutor(count) as pool:
        found = list(pool.map(run, range(count)))
    return [replace(check, device=info.kind) for check in judged(found, backend)]


def judged(found: Sequence[Probed], backend: str) -> Iterator[Check]:
    """Findings from what every rank answered."""
    lost = [(rank, one.failure) for rank, one in enumerate(found) if one.failure]
    if lost:
        for rank, failure in lost:
            yield failed(f"rank {rank}", failure, _advice(failure))
        return
    answers: list[dict[str, Any]] = [one.answer for one in found]
    count = len(answers)
    wrong = [rank for rank, answer in enumerate(answers) if answer["sum"] != count]
    if wrong:
        text = f"{count} ones added up to {answers[wrong[0]]['sum']:g} on rank {wrong[0]}"
        yield failed("sum over ranks", text, "the backend computes wrong: report it to its vendor")
        return
    versions = {answer["torch"] for answer in answers}
    if len(versions) > 1:
        text = f"the ranks have torch {', '.join(sorted(versions))}"
        yield failed("versions", text, "install the same on all")
    yield passed("ranks", f"{count} together through {backend}")
    for name, kind in (("all-reduce", "reduce"), ("to the next rank", "pass")):
        slowest_s = max(answer[f"{kind}_s"] for answer in answers)
        least = min(answer[f"{kind}_bytes_per_s"] for answer in answers)
        text = f"{format_duration(slowest_s)} a small one, {format_size(least)}/s in large ones"
        yield passed(name, text)


def _names(info: DeviceInfo, count: int) -> list[str]:
    if info.kind == "cpu":
        return [info.name] * count
    return [one.name for one in (info, *info.peers)][:count]


def _advice(failure: str) -> str:
    text = failure.lower()
    return next(
        (advice for sign, advice in ADVICE if sign in text), "see the ranks' other findings"
    )
