"""A small decoder: embedding, blocks with causal attention, a head over the vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from autotune.core.records import InputSpec
from autotune.workloads.pipeline.chain import TARGET, Chain, cross_entropy, seeded

if TYPE_CHECKING:
    from collections.abc import Sequence


class Embedding(nn.Module):  # type: ignore[misc]  # torch is not checked
    """Tokens and their places."""

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.tokens(ids) + self.places
        return out


class Block(nn.Module):  # type: ignore[misc]  # torch is not checked
    """Attention and a feed-forward part, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.between = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        mixed = self.mix(self.before(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = mixed.permute(2, 0, 3, 1, 4).unbind(0)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        grown: torch.Tensor = x + self.down(functional.gelu(self.up(self.between(x))))
        return grown


class Head(nn.Module):  # type: ignore[misc]  # torch is not checked
    """From a token's vector to one number per word."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words: torch.Tensor = self.out(self.norm(x))
        return words


def chain(*, seed: int, layers: int, width: int, heads: int, length: int, vocabulary: int) -> Chain:
    """The model as `layers` blocks between an embedding and a head."""
    return of_blocks(
        lambda: Embedding(vocabulary, length, width),
        (InputSpec(name="ids", shape=("batch", length), dtype="int64", low=0, high=vocabulary),),
        seed=seed, layers=layers, width=width, heads=heads, length=length, vocabulary=vocabulary,
    )  # fmt: skip


def of_blocks(
    first: type[nn.Module] | object,
    inputs: tuple[InputSpec, ...],
    *,
    seed: int,
    layers: int,
    width: int,
    heads: int,
    length: int,
    vocabulary: int,
) -> Chain:
    """Blocks behind a first layer of one's own.

    Args:
        first: Makes it.
        length: Tokens that the loss is over.
    """
    assert callable(first)

    def make(begin: int, end: int) -> Sequence[nn.Module]:
        made: list[nn.Module] = []
        for index in range(begin, end):
            seeded(seed, index)
            if index == 0:
                made.append(first())
            elif index <= layers:
                made.append(Block(width, heads))
            else:
                made.append(Head(width, vocabulary))
        return made

    target = InputSpec(name=TARGET, shape=("batch", length), dtype="int64", low=0, high=vocabulary)
    return Chain(count=layers + 2, make=make, inputs=(*inputs, target), loss=cross_entropy)
