"""BERT encoders (Devlin et al. 2018, arXiv:1810.04805) from transformers, with random weights."""

from __future__ import annotations

import torch
from torch import nn
from transformers.models.bert.configuration_bert import BertConfig
from transformers.models.bert.modeling_bert import BertModel

from autotune.core.records import InputSpec
from autotune.workloads.models.weights import fill

VOCABULARY = 30522
INIT_STD = 0.02  # as published


class Encoder(nn.Module):  # type: ignore[misc]  # torch is not checked
    """Takes ids, mask and segments of shape (batch, length)."""

    def __init__(self, widths: dict[str, int]) -> None:
        super().__init__()
        with torch.device("meta"):
            self.bert = BertModel(BertConfig(attn_implementation="sdpa", **widths))
        fill(self.bert, INIT_STD)
        for name, buffer in self.bert.named_buffers():
            if name.endswith("position_ids"):
                torch.arange(buffer.shape[-1], out=buffer.view(-1))
            else:
                buffer.zero_()

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The last hidden state (batch, length, width) and the pooled output (batch, width)."""
        output = self.bert(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        )
        return output.last_hidden_state, output.pooler_output


def encoder(widths: dict[str, int], length: int | str) -> tuple[nn.Module, tuple[InputSpec, ...]]:
    """An encoder and its three inputs.

    Args:
        widths: Keywords of the configuration.
        length: Tokens per item, or "length" where they are drawn.
    """
    # Masks are ones: where lengths are drawn, what is beyond an item's length becomes zero.
    ranges = {
        "input_ids": (1, widths.get("vocab_size", VOCABULARY)),
        "attention_mask": (1, 2),
        "token_type_ids": (0, 2),
    }
    inputs = tuple(
        InputSpec(name=name, shape=("batch", length), dtype="int64", low=low, high=high)
        for name, (low, high) in ranges.items()
    )
    return Encoder(widths), inputs
