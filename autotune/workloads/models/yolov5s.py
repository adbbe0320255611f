"""The YOLOv5s object detector, written from its published layer table; the decoding is included.

A CSP backbone with a pyramid pooling, a path aggregation neck and three detection scales.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from autotune.core.records import InputSpec

CLASSES = 80
STRIDES = (8, 16, 32)
ANCHORS = (  # pixels, width and height, three per stride
    ((10, 13), (16, 30), (33, 23)),
    ((30, 61), (62, 45), (59, 119)),
    ((116, 90), (156, 198), (373, 326)),
)
SIZES = {"full": (32, 640), "small": (4, 64)}
"""Channels of the first layer and side of the image."""


class Conv(nn.Sequential):  # type: ignore[misc]  # torch is not checked
    """Convolution, normalisation, SiLU."""

    def __init__(self, c_in: int, c_out: int, kernel: int = 1, stride: int = 1) -> None:
        padding = 2 if kernel == 6 else kernel // 2
        super().__init__(
            nn.Conv2d(c_in, c_out, kernel, stride, padding, bias=False),
            nn.BatchNorm2d(c_out, eps=1e-3),
            nn.SiLU(inplace=True),
        )


class Residual(nn.Module):  # type: ignore[misc]
    """Two convolutions, with what came in added where `adds`."""

    def __init__(self, width: int, adds: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(Conv(width, width), Conv(width, width, 3))
        self.adds = adds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.adds else self.body(x)


class Stage(nn.Module):  # type: ignore[misc]
    """Cross stage partial block: half the channels pass `depth` residuals, half none."""

    def __init__(self, c_in: int, c_out: int, depth: int, adds: bool = True) -> None:
        super().__init__()
        half = c_out // 2
        self.left, self.right = Conv(c_in, half), Conv(c_in, half)
        self.residuals = nn.Sequential(*(Residual(half, adds) for _ in range(depth)))
        self.join = Conv(c_out, c_out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.join(torch.cat([self.residuals(self.left(x)), self.right(x)], dim=1))


class Pooling(nn.Module):  # type: ignore[misc]
    """Spatial pyramid pooling: three max poolings in a row, all of them kept."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.reduce, self.join = Conv(width, width // 2), Conv(width * 2, width)
        self.pool = nn.MaxPool2d(5, stride=1, padding=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = [self.reduce(x)]
        for _ in range(3):
            kept.append(self.pool(kept[-1]))
        return self.join(torch.cat(kept, dim=1))


class Yolov5s(nn.Module):  # type: ignore[misc]
    """Takes images (batch, 3, side, side) in 0..1; gives (batch, boxes, 5 + classes)."""

    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        w1, w2, w3, w4, w5 = (width * 2**i for i in range(5))
        self.stem = nn.Sequential(Conv(3, w1, 6, 2), Conv(w1, w2, 3, 2), Stage(w2, w2, 1))
        self.to_8 = nn.Sequential(Conv(w2, w3, 3, 2), Stage(w3, w3, 2))
        self.to_16 = nn.Sequential(Conv(w3, w4, 3, 2), Stage(w4, w4, 3))
        self.to_32 = nn.Sequential(Conv(w4, w5, 3, 2), Stage(w5, w5, 1), Pooling(w5))
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.lateral_32, self.top_16 = Conv(w5, w4), Stage(w5, w4, 1, adds=False)
        self.lateral_16, self.top_8 = Conv(w4, w3), Stage(w4, w3, 1, adds=False)
        self.down_8, self.out_16 = Conv(w3, w3, 3, 2), Stage(w4, w4, 1, adds=False)
        self.down_16, self.out_32 = Conv(w4, w4, 3, 2), Stage(w5, w5, 1, adds=False)
        outputs = 3 * (5 + CLASSES)
        self.heads = nn.ModuleList(nn.Conv2d(w, outputs, 1) for w in (w3, w4, w5))
        for index, stride in enumerate(STRIDES):
            grid, anchors = _grid(side // stride, ANCHORS[index])
            self.register_buffer(f"grid_{stride}", grid, persistent=False)
            self.register_buffer(f"anchors_{stride}", anchors, persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Boxes of all scales: centre and size in pixels, objectness, class scores."""
        at_8 = self.to_8(self.stem(images))
        at_16 = self.to_16(at_8)
        lateral_32 = self.lateral_32(self.to_32(at_16))
        lateral_16 = self.lateral_16(self.top_16(torch.cat([self.up(lateral_32), at_16], dim=1)))
        out_8 = self.top_8(torch.cat([self.up(lateral_16), at_8], dim=1))
        out_16 = self.out_16(torch.cat([self.down_8(out_8), lateral_16], dim=1))
        out_32 = self.out_32(torch.cat([self.down_16(out_16), lateral_32], dim=1))
        scales = zip(STRIDES, self.heads, (out_8, out_16, out_32), strict=True)
        return torch.cat([self._decoded(head(x), stride) for stride, head, x in scales], dim=1)

    def _decoded(self, raw: torch.Tensor, stride: int) -> torch.Tensor:
        rows, columns = raw.shape[-2:]
        values = raw.view(-1, 3, 5 + CLASSES, rows, columns).permute(0, 1, 3, 4, 2).sigmoid()
        grid, anchors = self.get_buffer(f"grid_{stride}"), self.get_buffer(f"anchors_{stride}")
        centre = (values[..., 0:2] * 2 - 0.5 + grid) * stride
        size = (values[..., 2:4] * 2) ** 2 * anchors
        boxes = torch.cat([centre, size, values[..., 4:]], dim=-1)
        return boxes.reshape(-1, 3 * rows * columns, 5 + CLASSES)


def _grid(cells: int, anchors: tuple[tuple[int, int], ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Cell indices (1, 1, cells, cells, 2) as x and y, and anchors (1, 3, 1, 1, 2)."""
    y, x = torch.meshgrid(torch.arange(cells), torch.arange(cells), indexing="ij")
    grid = torch.stack([x, y], dim=-1).view(1, 1, cells, cells, 2).float()
    return grid, torch.tensor(anchors, dtype=torch.float32).view(1, 3, 1, 1, 2)


def build(size: str = "full") -> tuple[nn.Module, tuple[InputSpec, ...]]:
    """The detector and its input; "full" has 7,235,389 parameters and 80 classes."""
    width, side = SIZES[size]
    model = Yolov5s(width, side)
    for head, stride in zip(model.heads, STRIDES, strict=True):
        _start_rare(head, side // stride)
    return model, (InputSpec(name="images", shape=("batch", 3, side, side), low=0.0, high=1.0),)


def _start_rare(head: nn.Conv2d, cells: int) -> None:
    """Let random weights find about eight objects per image, not one in every cell."""
    with torch.no_grad():
        head.bias.view(3, -1)[:, 4] = math.log(8 / cells**2)
