"""A teacher whose weights are always the same, and whose code the tests change."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

CHANGE = ""


def factory(num_classes: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return Changing(num_classes)


class Changing(nn.Module):
    """A small network that resizes its input. Its normalisation and size are attributes."""

    input_size = 24
    mean = (0.5, 0.5, 0.5)
    std = (0.25, 0.25, 0.25)

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, stride=2)
        self.deep = nn.Conv2d(16, 32, 3, stride=2)
        self.head = nn.Linear(32 * 4, classes)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return logits; CHANGE says what is done differently."""
        options: dict[str, Any] = {"mode": "bilinear", "align_corners": False}
        if CHANGE == "interpolation":
            options = {"mode": "nearest"}
        if CHANGE == "normalisation":
            pixels = pixels * 0.9 + 0.1
        pixels = functional.interpolate(pixels, size=(17, 17), **options)
        hidden = functional.relu(self.conv(pixels))
        hidden = self.deep(hidden)
        hidden = functional.relu(hidden) if CHANGE != "forward" else functional.gelu(hidden)
        logits: torch.Tensor = self.head(functional.adaptive_avg_pool2d(hidden, 2).flatten(1))
        return logits
