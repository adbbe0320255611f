"""Several processes that work together: how they find each other, and through which backend."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where ranks find each other: rank 0 listens there.

    Attributes:
        limit_s: The longest that one waits for another.
        listener: Rank 0's listening socket, as a file descriptor, where somebody has opened it
            beforehand so that no other program can take the port; -1: rank 0 opens it.
        has_agent: Who started the ranks (torchrun) listens there itself.
    """

    host: str
    port: int
    rank: int
    count: int
    limit_s: float
    listener: int = -1
    has_agent: bool = False


def join(meeting: Meeting, backend: str) -> None:
    """Join the other ranks; returns when all are there.

    Raises:
        RuntimeError: Some did not come in time, or the backend cannot be used.
    """
    import torch.distributed as dist

    timeout = timedelta(seconds=meeting.limit_s)
    is_first = meeting.rank == 0 and not meeting.has_agent
    given = {"master_listen_fd": meeting.listener} if is_first and meeting.listener >= 0 else {}
    store = dist.TCPStore(
        meeting.host,
        meeting.port,
        meeting.count,
        is_first,
        timeout=timeout,
        wait_for_workers=False,
        **given,
    )
    dist.init_process_group(
        backend, store=store, rank=meeting.rank, world_size=meeting.count, timeout=timeout
    )


def leave() -> None:
    """Leave the other ranks when all are ready to: threads of a backend may abort a process whose
    neighbour went while they listened to it.
    """
    import torch.distributed as dist

    dist.barrier()
    dist.destroy_process_group()


SMALL_ROUNDS, LARGE_ROUNDS = 30, 5
LARGE_BYTES = 16 * 2**20


def try_out(
    backend: str, device: str, host: str, port: str, rank: str, count: str, limit_s: str
) -> dict[str, Any]:
    """One rank of the check that `autotune doctor --ranks` makes; runs in a child of its own.

    Args:
        device: What the framework calls it.
    Returns:
        Plain data: whether sums are right, time of a small all-reduce and of a message to the
        next rank and back, bytes per second of large ones, versions.
    """
    import torch
    import torch.distributed as dist

    if device != "cpu":
        importlib.import_module({"npu": "torch_npu", "mlu": "torch_mlu"}.get(device[:3], "torch"))
        torch.get_device_module(device.partition(":")[0]).set_device(int(device.split(":")[1]))
    place = Meeting(
        host=host, port=int(port), rank=int(rank), count=int(count), limit_s=float(limit_s)
    )
    join(place, backend)
    one = torch.ones(1, device=device)
    dist.all_reduce(one)
    large = torch.ones(LARGE_BYTES // 4, device=device)
    found = {
        "sum": float(one.item()),
        "reduce_s": _median_s(lambda: dist.all_reduce(one), one, SMALL_ROUNDS),
        "reduce_bytes_per_s": LARGE_BYTES
        / _median_s(lambda: dist.all_reduce(large), large, LARGE_ROUNDS),
        "pass_s": _median_s(lambda: _pass_on(one, place), one, SMALL_ROUNDS),
        "pass_bytes_per_s": LARGE_BYTES
        / _median_s(lambda: _pass_on(large, place), large, LARGE_ROUNDS),
        "torch": str(torch.__version__),
    }
    dist.barrier()
    return found


def _pass_on(tensor: Any, place: Meeting) -> None:
    """Every rank sends to the next one and receives from the one before it."""
    import torch
    import torch.distributed as dist

    if place.count == 1:
        return
    received = torch.empty_like(tensor)
    ahead, behind = (place.rank + 1) % place.count, (place.rank - 1) % place.count
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, tensor, ahead), dist.P2POp(dist.irecv, received, behind)]
    )
    for work in works:
        work.wait()


def _median_s(action: Callable[[], Any], tensor: Any, rounds: int) -> float:
    """Median time of an action, the device's work included; the first one does not count."""
    times_s = []
    for _ in range(rounds + 1):
        began_s = time.perf_counter()
        action()
        tensor.flatten()[0].item()  # waits for the device
        times_s.append(time.perf_counter() - began_s)
    return statistics.median(times_s[1:])
