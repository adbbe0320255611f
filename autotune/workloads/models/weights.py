"""Random weights for large models in a fraction of the time that drawing each would take."""

from __future__ import annotations

import torch
from torch import nn

POOL_SIZE = 1_048_573  # prime, so that no two rows of a matrix are alike


def fill(module: nn.Module, std: float) -> None:
    """Give a module that was built without memory its memory and random weights.

    Weights are taken from one pool of uniform values, over and over; normalisations start as the
    identity, and biases at zero.

    Args:
        module: Built on the "meta" device; its buffers are left to the caller.
        std: Standard deviation of the weights.
    """
    module.to_empty(device="cpu")
    bound = std * 3**0.5
    pool = torch.empty(POOL_SIZE).uniform_(-bound, bound)
    start = 0
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                start = _tile(parameter.view(-1), pool, start)


def _tile(flat: torch.Tensor, pool: torch.Tensor, start: int) -> int:
    """Fill `flat` with the pool from `start` on, over and over; returns where it ended."""
    done = 0
    while done < len(flat):
        count = min(len(flat) - done, len(pool) - start)
        flat[done : done + count] = pool[start : start + count]
        done, start = done + count, (start + count) % len(pool)
    return start
