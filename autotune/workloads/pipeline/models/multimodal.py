"""A decoder over picture patches and words: the patches come first in the sequence."""

from __future__ import annotations

import torch
from torch import nn

from autotune.core.records import InputSpec
from autotune.workloads.pipeline.chain import Chain
from autotune.workloads.pipeline.models.transformer import of_blocks


class Join(nn.Module):  # type: ignore[misc]  # torch is not checked
    """Patches through a projection, words through a table, one behind the other."""

    def __init__(self, vocabulary: int, length: int, patches: int, pixels: int, width: int) -> None:
        super().__init__()
        self.look = nn.Linear(pixels, width)
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.02 * torch.randn(patches + length, width))

    def forward(self, picture: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([self.look(picture), self.words(ids)], dim=1)
        out: torch.Tensor = joined + self.places
        return out


def chain(
    *,
    seed: int,
    layers: int,
    width: int,
    heads: int,
    length: int,
    vocabulary: int,
    patches: int,
    patch: int,
) -> Chain:
    """The model; the loss is over patches and words alike."""
    pixels = 3 * patch * patch
    inputs = (
        InputSpec(name="picture", shape=("batch", patches, pixels)),
        InputSpec(name="ids", shape=("batch", length), dtype="int64", low=0, high=vocabulary),
    )
    return of_blocks(
        lambda: Join(vocabulary, length, patches, pixels, width),
        inputs,
        seed=seed, layers=layers, width=width, heads=heads, length=patches + length,
        vocabulary=vocabulary,
    )  # fmt: skip
