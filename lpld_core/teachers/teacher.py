"""A teacher: a frozen classifier that labels images."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from lpld_core.networks.models import Network, NetworkSource, network_source, seeded
from lpld_core.networks.weights import first_line, load_into, read_weights, weights_digest
from lpld_core.settings import DEFAULT_WEIGHTS, RANDOM_WEIGHTS
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.manifest import Teacher, require_normalisation

W = TypeVar("W")


@dataclass(frozen=True, kw_only=True)
class LoadedTeacher:
    """A teacher ready to label.

    model: maps normalised float32 [B, 3, H, W] to logits [B, classes]; in eval mode, without gradients.
    description: what pools record; mean and std are of pixels scaled to 0..1. input_size: (height, width).
    """

    model: nn.Module
    description: Teacher
    input_size: tuple[int, int]
    classes: int

    @property
    def mean(self) -> tuple[float, ...]:
        return self.description.mean or ()

    @property
    def std(self) -> tuple[float, ...]:
        return self.description.std or ()

    def require_classes(self, count: int, what: str, *, where: object = "") -> None:
        if count != self.classes:
            raise InvalidArgumentError(
                f"teacher and {what} differ in their number of classes",
                where=where,
                expected=f"{self.classes} (the teacher's)",
                got=count,
                hint="use a teacher trained on these classes",
            )

    def on(self, device: str | torch.device) -> LoadedTeacher:
        """Return this teacher if it is already on the device, else a copy on the device."""
        if next(self.model.parameters()).device == torch.device(device):
            return self
        return replace(self, model=copy.deepcopy(self.model).to(device))


def load_teacher(
    name: str,
    *,
    weights: str | Path = DEFAULT_WEIGHTS,
    classes: int | None = None,
    input_size: tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    device: str | torch.device = "cpu",
) -> LoadedTeacher:
    """Load, freeze and describe a teacher.

    name: network name (see models.py). weights: DEFAULT, random, or a weights file. classes: required class
    count; None: any. input_size (height, width), mean, std: override the values of the weights.
    """
    source = network_source(name)
    network = _with_weights(source, str(weights), classes)
    network = _expecting(network, input_size, mean, std)
    if network.input_size is None or network.mean is None or network.std is None:
        raise InvalidArgumentError(
            "the network does not declare its input size and normalisation",
            where=name,
            hint="give --size, --mean and --std, or set input_size, mean and std on the module that the "
            "factory returns",
        )
    model = network.module.to(device).to(memory_format=torch.channels_last)
    model.eval().requires_grad_(False)
    count = output_classes(model, network.input_size, name)
    if classes is not None and count != classes:
        raise _wrong_classes(name, classes, count)
    mean, std = tuple(map(float, network.mean)), tuple(map(float, network.std))
    description = Teacher(name=name, weights_digest=weights_digest(model), mean=mean, std=std)
    return LoadedTeacher(model=model, description=description, input_size=network.input_size, classes=count)


def _with_weights(source: NetworkSource, weights: str, classes: int | None) -> Network:
    if weights == DEFAULT_WEIGHTS:
        if source.pretrained is None:
            raise InvalidArgumentError(
                "this network has no published weights", where=source.name, hint="give a weights file"
            )
        return source.pretrained()
    if weights == RANDOM_WEIGHTS:
        with seeded(0):
            return source.build(classes)
    file = read_weights(weights)
    found = source.classes_of(file.tensors)
    if classes is not None and found is not None and found != classes:
        raise _wrong_classes(str(weights), classes, found)
    network = source.build(found if found is not None else classes)
    load_into(network.module, file)
    # Weights files of train_teacher.py and student.py record what the network expects.
    about: dict[str, Any] = file.about.get("preprocessing", {})
    return _expecting(network, about.get("input_size"), about.get("mean"), about.get("std"))


def _expecting(
    network: Network, size: Sequence[int] | None, mean: Sequence[float] | None, std: Sequence[float] | None
) -> Network:
    """Return the network with the given input size and normalisation. None: keep the value."""
    size = network.input_size if size is None else size
    mean, std = (network.mean if mean is None else mean), (network.std if std is None else std)
    if mean is not None and std is not None:
        require_normalisation(mean, std, where="teacher")
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise InvalidArgumentError("input size is wrong", where="teacher", expected="height, width", got=size)
    return replace(
        network,
        input_size=None if size is None else (int(size[0]), int(size[1])),
        mean=None if mean is None else tuple(mean),
        std=None if std is None else tuple(std),
    )


@torch.inference_mode()
def output_classes(model: nn.Module, size: tuple[int, int], name: str) -> int:
    """Return the number of logits for a blank image; refuse networks that are not classifiers."""
    device = next(model.parameters()).device
    try:
        logits = model(torch.zeros(1, 3, *size, device=device))
    except RuntimeError as error:
        raise InvalidArgumentError(
            f"the network refuses a {size[0]} x {size[1]} image: {first_line(error)}", where=name
        ) from None
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or logits.shape[0] != 1:
        got = list(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise InvalidArgumentError("not a classifier", where=name, expected="logits [B, C]", got=got)
    return int(logits.shape[1])


def _wrong_classes(where: str, expected: int, got: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        "teacher and image folder differ in their number of classes",
        where=where,
        expected=f"{expected} classes",
        got=got,
        hint="use a teacher trained on these classes",
    )


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A worker's device and torch threads. threads: None keeps the current number."""

    device: str = "cpu"
    threads: int | None = None

    def device_of(self, number: int) -> str:
        """Return the device of worker `number`. With ``cuda``, the workers use the GPUs in turn."""
        return f"cuda:{number % torch.cuda.device_count()}" if self.device == "cuda" else self.device

    def start(self, make: Callable[..., W], teacher: LoadedTeacher, number: int) -> W:
        """Set up a worker process: return make(teacher=...) with the teacher on its device."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        return make(teacher=teacher.on(self.device_of(number)))
