"""Networks by name: what a person may write after ``--teacher`` and ``--student``.

    resnet18                                a torchvision classifier
    timm:resnet50                           a timm model, where timm is installed
    small-resnet10:width=32,stem_stride=2   a ResNet for small images (see resnet_small.py)
    package.module:factory                  any callable that returns a torch.nn.Module

A name is also what a pool records about its teacher, so it says nothing about this machine.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lpld_core.networks.resnet_small import SmallResNet
from lpld_core.networks.weights import first_line
from lpld_labels.errors import InvalidArgumentError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_SMALL = re.compile(r"small-resnet(\d+)(?::(.*))?")
_SMALL_OPTIONS = ("width", "stem_stride", "channels")
_SMALL_INPUT = 64
_LARGE_INPUT = 224


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """What a network expects: height and width in pixels, per-channel mean and std on 0..1 pixels."""

    input_size: tuple[int, int]
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network as built: the module and the preprocessing its makers name."""

    module: nn.Module
    preprocessing: Preprocessing


class NetworkSource:
    """Builds the network of one name, with random or its makers' own weights.

    build(classes): a freshly initialised network; None leaves the class count to the makers.
    pretrained(): the makers' own weights; None where there are none.
    """

    def __init__(
        self,
        name: str,
        build: Callable[[int | None], Network],
        pretrained: Callable[[], Network] | None = None,
    ) -> None:
        self.name = name
        self.build = build
        self.pretrained = pretrained

    def classes_of(self, tensors: dict[str, torch.Tensor]) -> int | None:
        """Return the class count that weights were trained for, or None where it cannot be told.

        The head is whatever changes shape with the class count; nothing is allocated to find it.
        """
        with torch.device("meta"):
            two = self.build(2).module.state_dict()
            three = self.build(3).module.state_dict()
        heads = [n for n, tensor in two.items() if tensor.shape != three[n].shape and n in tensors]
        return int(tensors[heads[-1]].shape[0]) if heads else None


def network_source(name: str) -> NetworkSource:
    """Return what builds the network of this name; unknown names are refused with examples."""
    small = _SMALL.fullmatch(name)
    if small:
        return _small_source(name, int(small.group(1)), small.group(2) or "")
    if name.startswith("timm:"):
        return _timm_source(name)
    if ":" in name:
        return _factory_source(name)
    return _torchvision_source(name)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Make what torch draws on the CPU inside the block follow from the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _small_source(name: str, depth: int, options: str) -> NetworkSource:
    settings: dict[str, int] = {}
    for part in filter(None, options.split(",")):
        key, _, value = part.partition("=")
        if key not in _SMALL_OPTIONS or not value.isdecimal():
            raise InvalidArgumentError(
                "network name is wrong",
                where=name,
                expected=" or ".join(f"{option}=NUMBER" for option in _SMALL_OPTIONS),
                got=part,
            )
        settings[key] = int(value)

    def build(classes: int | None) -> Network:
        if classes is None:
            raise InvalidArgumentError(
                "this network needs a class count or trained weights",
                where=name,
                hint="give a weights file; it says how many classes there are",
            )
        module = SmallResNet(classes=classes, depth=depth, **settings)
        return Network(module=module, preprocessing=Preprocessing(input_size=(_SMALL_INPUT, _SMALL_INPUT)))

    return NetworkSource(name, build)


def _torchvision_source(name: str) -> NetworkSource:
    # Imported here because it takes as long as torch itself.
    torchvision: Any = importlib.import_module("torchvision")
    if name not in torchvision.models.list_models(module=torchvision.models):
        raise InvalidArgumentError(
            "unknown network",
            got=name,
            hint="give a torchvision name (resnet18), timm:NAME, small-resnet18 or package.module:factory",
        )

    def build(classes: int | None) -> Network:
        options: dict[str, Any] = {} if classes is None else {"num_classes": classes}
        module = torchvision.models.get_model(name, weights=None, **options)
        return Network(module=module, preprocessing=Preprocessing(input_size=(_LARGE_INPUT, _LARGE_INPUT)))

    def pretrained() -> Network:
        weights = torchvision.models.get_model_weights(name).DEFAULT
        with _download(name):
            module = torchvision.models.get_model(name, weights=weights)
        recipe = weights.transforms()
        side = int(recipe.crop_size[0])
        preprocessing = Preprocessing(input_size=(side, side), mean=tuple(recipe.mean), std=tuple(recipe.std))
        return Network(module=module, preprocessing=preprocessing)

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
        settings = timm.data.resolve_model_data_config(module)
        _, height, width = settings["input_size"]
        preprocessing = Preprocessing(
            input_size=(height, width), mean=tuple(settings["mean"]), std=tuple(settings["std"])
        )
        return Network(module=module, preprocessing=preprocessing)

    def build(classes: int | None) -> Network:
        options: dict[str, Any] = {} if classes is None else {"num_classes": classes}
        return network(timm.create_model(inner, pretrained=False, **options))

    def pretrained() -> Network:
        with _download(name):
            return network(timm.create_model(inner, pretrained=True))

    return NetworkSource(name, build, pretrained)


def _factory_source(name: str) -> NetworkSource:
    module_name, _, attribute = name.partition(":")
    factory = _imported(name, module_name, attribute)
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
        return Network(module=module, preprocessing=Preprocessing(input_size=(_LARGE_INPUT, _LARGE_INPUT)))

    return NetworkSource(name, build, lambda: build(None))


def _imported(name: str, module_name: str, attribute: str) -> Callable[..., Any]:
    """Import the factory; modules of the working directory count, as with ``python -m``."""
    here = str(Path.cwd())
    path = list(sys.path)
    sys.path.append(here)
    try:
        factory: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            factory = getattr(factory, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgumentError(
            f"cannot import the network's factory: {error}",
            where=name,
            hint="write package.module:factory for a callable that can be imported from here",
        ) from None
    finally:
        sys.path[:] = path
    if not callable(factory):
        raise InvalidArgumentError("the network's factory is not callable", where=name)
    return factory  # type: ignore[no-any-return]  # callable() does not narrow Any


@contextmanager
def _download(name: str) -> Iterator[None]:
    """Turn the many ways a download can fail into one line."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidArgumentError(
            f"cannot get its makers' weights: {first_line(error)}",
            where=name,
            hint="give a weights file instead, or run once where there is a connection",
        ) from None
