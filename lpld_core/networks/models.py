"""Networks by name, as given to ``--teacher`` and ``--student``. Pools record their teachers' names.

resnet18                                a torchvision classifier
timm:resnet50                           a timm model, if timm is installed
hf:microsoft/resnet-18                  a Hugging Face image classifier, by its id or directory
small-resnet10:width=32,stem_stride=2   a ResNet for small images (SmallResNet)
package.module:factory                  any callable that returns a torch.nn.Module
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lpld_core.networks.weights import first_line, weights_digest
from lpld_labels.errors import InvalidArgumentError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_SMALL = re.compile(r"small-resnet(\d+)(?::(.*))?")
_SMALL_OPTIONS = ("width", "stem_stride", "channels")
_SMALL_INPUT, _LARGE_INPUT = (64, 64), (224, 224)


@dataclass(frozen=True, kw_only=True, eq=False)
class Network:
    """A network and its expected input: height and width, and the mean and std of pixels scaled to 0..1.

    A field is None if a factory's network does not declare it.
    """

    module: nn.Module
    input_size: tuple[int, int] | None
    mean: tuple[float, ...] | None = IMAGENET_MEAN
    std: tuple[float, ...] | None = IMAGENET_STD


@dataclass(frozen=True)
class NetworkSource:
    """Builds a network with random or published weights. build: takes a class count or None (default)."""

    name: str
    build: Callable[[int | None], Network]
    pretrained: Callable[[], Network] | None = None

    def classes_of(self, tensors: dict[str, torch.Tensor]) -> int | None:
        """Return the class count of trained weights; None if no parameter's shape depends on it."""
        with torch.device("meta"):  # allocates nothing
            two = self.build(2).module.state_dict()
            three = self.build(3).module.state_dict()
        heads = [n for n, tensor in two.items() if tensor.shape != three[n].shape and n in tensors]
        return int(tensors[heads[-1]].shape[0]) if heads else None


def network_source(name: str) -> NetworkSource:
    """Return the source of the network with this name; refuse unknown names."""
    small = _SMALL.fullmatch(name)
    if small:
        return _small_source(name, int(small.group(1)), small.group(2) or "")
    if name.startswith("timm:"):
        return _timm_source(name)
    if name.startswith("hf:"):
        return _hugging_face_source(name)
    if ":" in name:
        return _factory_source(name)
    return _torchvision_source(name)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator inside the block; restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _small_source(name: str, depth: int, options: str) -> NetworkSource:
    settings: dict[str, int] = {}
    for part in filter(None, options.split(",")):
        key, _, value = part.partition("=")
        if key not in _SMALL_OPTIONS or not value.isdecimal():
            raise InvalidArgumentError(
                "invalid option in a network name",
                where=name,
                expected=" or ".join(f"{option}=NUMBER" for option in _SMALL_OPTIONS),
                got=part,
            )
        settings[key] = int(value)

    def build(classes: int | None) -> Network:
        if classes is None:
            raise InvalidArgumentError(
                "this network needs a number of classes or trained weights",
                where=name,
                hint="give a weights file, which determines the number of classes",
            )
        module = SmallResNet(classes=classes, depth=depth, **settings)
        return Network(module=module, input_size=_SMALL_INPUT)

    return NetworkSource(name, build)


def _torchvision_source(name: str) -> NetworkSource:
    torchvision: Any = importlib.import_module("torchvision")  # imported here because it is slow
    if name not in torchvision.models.list_models(module=torchvision.models):
        raise InvalidArgumentError(
            "unknown network",
            got=name,
            hint="give a torchvision name (resnet18), timm:NAME, hf:ID, small-resnet18 or module:factory",
        )

    def build(classes: int | None) -> Network:
        options: dict[str, Any] = {} if classes is None else {"num_classes": classes}
        module = torchvision.models.get_model(name, weights=None, **options)
        return Network(module=module, input_size=_LARGE_INPUT)

    def pretrained() -> Network:
        weights = torchvision.models.get_model_weights(name).DEFAULT
        with _download(name):
            module = torchvision.models.get_model(name, weights=weights)
        recipe = weights.transforms()
        side = int(recipe.crop_size[0])
        return Network(module=module, input_size=(side, side), mean=tuple(recipe.mean), std=tuple(recipe.std))

    return NetworkSource(name, build, pretrained)


def _timm_source(name: str) -> NetworkSource:
    try:
        timm: Any = importlib.import_module("timm")
    except ImportError:
        raise InvalidArgumentError("timm is not installed", where=name, hint="pip install timm") from None
    inner = name.removeprefix("timm:")
    if not timm.is_model(inner.partition(".")[0]):
        raise InvalidArgumentError("timm has no such model", got=inner, hint="see timm.list_models()")

    def network(module: nn.Module) -> Network:
        data = timm.data.resolve_model_data_config(module)
        _, height, width = data["input_size"]
        mean, std = tuple(data["mean"]), tuple(data["std"])
        return Network(module=module, input_size=(height, width), mean=mean, std=std)

    def build(classes: int | None) -> Network:
        options: dict[str, Any] = {} if classes is None else {"num_classes": classes}
        return network(timm.create_model(inner, pretrained=False, **options))

    def pretrained() -> Network:
        with _download(name):
            return network(timm.create_model(inner, pretrained=True))

    return NetworkSource(name, build, pretrained)


def _hugging_face_source(name: str) -> NetworkSource:
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError:
        raise InvalidArgumentError(
            "transformers is not installed", where=name, hint="pip install transformers"
        ) from None
    inner = name.removeprefix("hf:")

    def network(module: nn.Module) -> Network:
        with _download(name):
            recipe = transformers.AutoImageProcessor.from_pretrained(inner)
        size: dict[str, int] = dict(getattr(recipe, "crop_size", None) or recipe.size)
        side = size.get("shortest_edge", 0)
        return Network(
            module=_tensors_only(module),
            input_size=(size.get("height", side), size.get("width", side)),
            mean=tuple(recipe.image_mean),
            std=tuple(recipe.image_std),
        )

    def build(classes: int | None) -> Network:
        options: dict[str, Any] = {} if classes is None else {"num_labels": classes}
        with _download(name):
            config = transformers.AutoConfig.from_pretrained(inner, **options)
        return network(transformers.AutoModelForImageClassification.from_config(config))

    def pretrained() -> Network:
        with _download(name):
            return network(transformers.AutoModelForImageClassification.from_pretrained(inner))

    return NetworkSource(name, build, pretrained)


def _tensors_only(module: nn.Module) -> nn.Module:
    """Make a network return `output.logits` if its output has this attribute."""
    module.register_forward_hook(_logits_of)
    return module


def _logits_of(module: nn.Module, inputs: Any, output: Any) -> Any:
    return getattr(output, "logits", output)


def _factory_source(name: str) -> NetworkSource:
    factory = _imported(name)
    takes_classes = "num_classes" in inspect.signature(factory).parameters

    def build(classes: int | None) -> Network:
        module = factory(num_classes=classes) if takes_classes and classes is not None else factory()
        if not isinstance(module, nn.Module):
            raise InvalidArgumentError(
                "the factory did not return a network",
                where=name,
                expected="torch.nn.Module",
                got=type(module).__name__,
            )
        size = getattr(module, "input_size", None)
        return Network(
            module=_tensors_only(module),
            input_size=(size, size) if isinstance(size, int) else _declared(module, "input_size"),
            mean=_declared(module, "mean"),
            std=_declared(module, "std"),
        )

    def pretrained() -> Network:
        """Return the network with the weights that the factory loads; refuse weights that are random."""
        with seeded(0):
            first = weights_digest(build(None).module)
        with seeded(1):
            network = build(None)
        if weights_digest(network.module) != first:
            raise InvalidArgumentError(
                "the factory returns random weights, and no weights file is given",
                where=name,
                hint="give a weights file (--teacher-weights), or load the weights in the factory",
            )
        return network

    return NetworkSource(name, build, pretrained)


def _declared(module: nn.Module, name: str) -> tuple[Any, ...] | None:
    """Return a network's attribute as a tuple; None if it is not a tuple or list (e.g. a buffer)."""
    value = getattr(module, name, None)
    return tuple(value) if isinstance(value, tuple | list) else None


def _imported(name: str) -> Callable[..., Any]:
    """Import the factory. Like ``python -m``, also look in the working directory."""
    path = list(sys.path)
    sys.path.append(str(Path.cwd()))
    try:
        factory = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgumentError(
            f"cannot import the network's factory: {error}",
            where=name,
            hint="give package.module:factory, an importable callable",
        ) from None
    finally:
        sys.path[:] = path
    if not callable(factory):
        raise InvalidArgumentError("the network's factory is not callable", where=name)
    return factory  # type: ignore[no-any-return]  # callable() does not narrow Any


@contextmanager
def _download(name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidArgumentError(
            f"cannot download the published weights: {first_line(error)}",
            where=name,
            hint="give a weights file, or run once with an internet connection",
        ) from None


BLOCKS_PER_STAGE = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}


class SmallResNet(nn.Module):
    """A ResNet for 32 to 64 px images, with a 3x3 stem, no max-pool, and torchvision's parameter names.

    The default arguments are those of the Tiny-ImageNet experiments. width: channels of the first stage; each
    later stage doubles them. stem_stride: 2 divides the cost by 4. channels: 1 for grey images; the network
    then averages the colour channels, so that recovery cannot add colours.
    """

    def __init__(
        self, *, classes: int, depth: int = 18, width: int = 64, stem_stride: int = 1, channels: int = 3
    ) -> None:
        super().__init__()
        blocks = BLOCKS_PER_STAGE.get(depth)
        if blocks is None or width < 1 or stem_stride not in (1, 2) or channels not in (1, 3):
            raise InvalidArgumentError(
                "invalid options of a small ResNet",
                expected="depth 10, 18 or 34, width >= 1, stem_stride 1 or 2 and channels 1 or 3",
                got=f"depth {depth}, width {width}, stem_stride {stem_stride}, channels {channels}",
            )
        self._grey = channels == 1
        self.conv1 = nn.Conv2d(channels, width, 3, stride=stem_stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
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
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

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
