"""Several processes that work together: how they find each other, and through which backend."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where ranks find each other: rank 0 listens there.

    Attributes:
        limit_s: The longest that one waits for another.
        listener: Rank 0's listening socket, as a file descriptor, where somebody has opened it
            beforehand so that no other program can take the port; -1: rank 0 opens it.
    """

    host: str
    port: int
    rank: int
    count: int
    limit_s: float
    listener: int = -1


def join(meeting: Meeting, backend: str) -> None:
    """Join the other ranks; returns when all are there.

    Raises:
        RuntimeError: Some did not come in time, or the backend cannot be used.
    """
    import torch.distributed as dist

    timeout = timedelta(seconds=meeting.limit_s)
    is_first = meeting.rank == 0
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
