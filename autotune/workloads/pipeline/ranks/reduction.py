"""Gradients averaged over replicas, in buckets, perhaps while the pipeline still runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist


class Reduction:
    """The reductions of one rank's stages.

    Args:
        group: The ranks that hold the same stages, one per replica.
        bucket_bytes: Gradients are sent in pieces of about this size.
        overlaps: Send a stage's gradients as soon as it has run its last backward pass of the
            step, while other stages still run theirs; otherwise all at the end.
    """

    def __init__(self, group: Any, replicas: int, bucket_bytes: int, *, overlaps: bool) -> None:
        self._group, self._replicas = group, replicas
        self._bucket_bytes, self.overlaps = bucket_bytes, overlaps
        self._sent: list[tuple[Any, torch.Tensor, list[torch.Tensor]]] = []

    def send(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Start to sum gradients up."""

        for bucket in self._buckets([p.grad for p in parameters if p.grad is not None]):
            flat = torch.cat([grad.flatten() for grad in bucket])
            work = dist.all_reduce(flat, group=self._group, async_op=True)
            self._sent.append((work, flat, bucket))

    def finish(self) -> None:
        """Wait for what was sent; gradients are then the mean over the replicas."""
        for work, flat, bucket in self._sent:
            work.wait()
            flat /= self._replicas
            for grad, part in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
                grad.copy_(part.view_as(grad))
        self._sent.clear()

    def _buckets(self, grads: list[torch.Tensor]) -> list[list[torch.Tensor]]:
        buckets: list[list[torch.Tensor]] = []
        room = 0
        for grad in grads:
            if not buckets or grad.nbytes > room or grad.dtype != buckets[-1][0].dtype:
                buckets.append([])
                room = self._bucket_bytes
            buckets[-1].append(grad)
            room -= grad.nbytes
        return buckets
