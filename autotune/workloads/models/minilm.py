"""MiniLM-L6-H384 (Wang et al. 2020, arXiv:2002.10957), an encoder for sentence embeddings."""

from __future__ import annotations

from torch import nn

from autotune.core.records import InputSpec
from autotune.workloads.models import bert_base
from autotune.workloads.models.bert import encoder

WIDTHS: dict[str, dict[str, int]] = {
    "full": {
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
    },
    "small": bert_base.WIDTHS["small"],
}


def build(size: str = "full", length: int | str = 128) -> tuple[nn.Module, tuple[InputSpec, ...]]:
    """The encoder and its inputs; "full" has 22,713,216 parameters."""
    return encoder(WIDTHS[size], length)
