"""Small models for recorded grids, with random weights."""

from __future__ import annotations

import itertools

from torch import Tensor, nn


def conv() -> nn.Module:
    """A small convolutional classifier of 3 x 64 x 64 images."""
    widths = (3, 16, 32, 64)
    stages: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        stages += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Encoder(nn.Module):
    """A text encoder of the size of MiniLM-L6: 6 layers of width 384, mean of the tokens."""

    WIDTH, WORDS, LAYERS = 384, 8192, 6

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            self.WIDTH, nhead=12, dim_feedforward=4 * self.WIDTH, batch_first=True
        )
        self.words = nn.Embedding(self.WORDS, self.WIDTH)
        self.layers = nn.TransformerEncoder(layer, self.LAYERS)

    def forward(self, tokens: Tensor) -> Tensor:
        """One vector per sequence of tokens."""
        encoded: Tensor = self.layers(self.words(tokens))
        return encoded.mean(dim=1)


def encoder() -> nn.Module:
    """A text encoder, see `Encoder`."""
    return Encoder()
