"""ResNet50 (He et al. 2015, arXiv:1512.03385) from transformers, with random weights."""

from __future__ import annotations

from torch import nn
from transformers.models.resnet.configuration_resnet import ResNetConfig
from transformers.models.resnet.modeling_resnet import ResNetForImageClassification

from autotune.core.records import InputSpec

WIDTHS = {
    "full": {},
    "small": {"embedding_size": 8, "hidden_sizes": [16, 16], "depths": [1, 1]},
}
IMAGE_SIZE = {"full": 224, "small": 32}


def build(size: str = "full") -> tuple[nn.Module, tuple[InputSpec, ...]]:
    """The model and its input; "full" has 25,557,032 parameters and 1000 classes."""
    side = IMAGE_SIZE[size]
    model = ResNetForImageClassification(ResNetConfig(num_labels=1000, **WIDTHS[size]))
    return model, (InputSpec(name="pixel_values", shape=("batch", 3, side, side)),)
