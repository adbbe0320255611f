"""BERT-base: 12 layers of width 768; 109,482,240 parameters."""

from __future__ import annotations

from torch import nn

from autotune.core.records import InputSpec
from autotune.workloads.models.bert import encoder

WIDTHS: dict[str, dict[str, int]] = {
    "full": {},
    "small": {
        "vocab_size": 100,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    },
}


def build(size: str = "full", length: int | str = 128) -> tuple[nn.Module, tuple[InputSpec, ...]]:
    """The encoder and its inputs: ids, mask, segments of `length` tokens."""
    return encoder(WIDTHS[size], length)
