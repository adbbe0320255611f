"""A deep learning recommendation model: embeddings, pairwise interactions, two perceptrons.

Architecture: Naumov et al. 2019, arXiv:1906.00091. The 26 categorical features have the
cardinalities of the Criteo Kaggle display advertising data, capped so that the tables fit into
a small machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from autotune.core.records import InputSpec
from autotune.workloads.models.mlp import stack

DENSE_COUNT = 13
DISTINCT_ROWS = 4096
CARDINALITIES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Widths of one variant; `cap` is the most rows a table may have."""

    cap: int
    dim: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]


SIZES = {
    "full": Size(cap=100_000, dim=64, bottom=(512, 256), top=(512, 256)),
    "small": Size(cap=100, dim=8, bottom=(16,), top=(16,)),
}


class Dlrm(nn.Module):  # type: ignore[misc]  # torch is not checked
    """Takes 13 dense features and 26 separate id tensors, as a serving system hands them over."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        rows = [min(count, size.cap) for count in CARDINALITIES]
        self.tables = nn.ModuleList(_table(count, size.dim) for count in rows)
        self.bottom = stack((DENSE_COUNT, *size.bottom, size.dim))
        vector_count = len(rows) + 1
        pair_count = vector_count * (vector_count - 1) // 2
        self.top = stack((size.dim + pair_count, *size.top, 1))
        first, second = torch.tril_indices(vector_count, vector_count, offset=-1)
        self.register_buffer("pairs", first * vector_count + second, persistent=False)

    def forward(self, dense: torch.Tensor, *ids: torch.Tensor) -> torch.Tensor:
        """Click probability, shape (batch, 1)."""
        bottom = self.bottom(dense)
        looked_up = [table(feature) for table, feature in zip(self.tables, ids, strict=True)]
        vectors = torch.stack([bottom, *looked_up], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        interactions = products.index_select(1, self.get_buffer("pairs"))
        return torch.sigmoid(self.top(torch.cat([bottom, interactions], dim=1)))


def _table(rows: int, dim: int) -> nn.Embedding:
    """An embedding of random rows, which repeat: drawing each would be most of the load time."""
    bound = rows**-0.5
    drawn = torch.empty(min(rows, DISTINCT_ROWS), dim).uniform_(-bound, bound)
    weight = drawn.index_select(0, torch.arange(rows) % len(drawn))
    return nn.Embedding(rows, dim, _weight=weight)


def build(size: str = "full") -> tuple[nn.Module, tuple[InputSpec, ...]]:
    """The model and its 27 inputs; "full" has 54,294,273 parameters."""
    chosen = SIZES[size]
    dense = InputSpec(name="dense", shape=("batch", DENSE_COUNT))
    ids = tuple(
        InputSpec(
            name=f"id_{i}", shape=("batch",), dtype="int64", low=0, high=min(count, chosen.cap)
        )
        for i, count in enumerate(CARDINALITIES)
    )
    return Dlrm(chosen), (dense, *ids)
