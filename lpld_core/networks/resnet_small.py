"""ResNets for 32 to 64 px images: a 3x3 stem and no max-pool, of any width.

At depth 18, width 64 and stem stride 1 this is the network the Tiny-ImageNet experiments use, with
torchvision's parameter names, so their checkpoints load. Narrow and shallow ones train on a laptop:
depth 10, width 32 with a stride-2 stem has 1.2 million parameters.
"""

from __future__ import annotations

import torch
from torch import nn

from lpld_labels.errors import InvalidArgumentError

BLOCKS_PER_STAGE = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}


class SmallResNet(nn.Module):
    """Four stages of basic blocks after a 3x3 stem; float32 [B, 3, H, W] -> logits [B, classes].

    depth: 10, 18 or 34. width: channels of the first stage, doubled at each later one.
    stem_stride: 1 keeps every pixel (32 and 64 px); 2 halves the side and quarters the cost.
    channels: 3, or 1 for grey images: the network then sees the mean of the three colours, so that
    recovery cannot paint with colours that no image of the data has.
    """

    def __init__(
        self, *, classes: int, depth: int = 18, width: int = 64, stem_stride: int = 1, channels: int = 3
    ) -> None:
        super().__init__()
        if depth not in BLOCKS_PER_STAGE:
            raise InvalidArgumentError(
                "no small ResNet of this depth", expected=f"one of {sorted(BLOCKS_PER_STAGE)}", got=depth
            )
        if width < 1 or stem_stride not in (1, 2) or channels not in (1, 3):
            raise InvalidArgumentError(
                "small ResNet cannot be built",
                expected="width >= 1, stem_stride 1 or 2 and channels 1 or 3",
                got=f"width {width}, stem_stride {stem_stride}, channels {channels}",
            )
        self._grey = channels == 1
        self.conv1 = nn.Conv2d(channels, width, 3, stride=stem_stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        blocks = BLOCKS_PER_STAGE[depth]
        self.layer1 = _stage(width, width, blocks[0], stride=1)
        self.layer2 = _stage(width, 2 * width, blocks[1], stride=2)
        self.layer3 = _stage(2 * width, 4 * width, blocks[2], stride=2)
        self.layer4 = _stage(4 * width, 8 * width, blocks[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8 * width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits [B, classes] of normalised images [B, 3, H, W]."""
        seen = images.mean(dim=1, keepdim=True) if self._grey else images
        features = self.relu(self.bn1(self.conv1(seen)))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            features = stage(features)
        logits: torch.Tensor = self.fc(self.avgpool(features).flatten(1))
        return logits


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, planes: int, *, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != planes:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, planes, 1, stride, bias=False), nn.BatchNorm2d(planes)
            )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return [B, planes, H / stride, W / stride]."""
        shortcut = features if self.downsample is None else self.downsample(features)
        hidden = self.relu(self.bn1(self.conv1(features)))
        result: torch.Tensor = self.relu(self.bn2(self.conv2(hidden)) + shortcut)
        return result


def _stage(inputs: int, planes: int, blocks: int, *, stride: int) -> nn.Sequential:
    first = BasicBlock(inputs, planes, stride=stride)
    return nn.Sequential(first, *(BasicBlock(planes, planes) for _ in range(blocks - 1)))
