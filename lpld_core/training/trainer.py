"""The training loop's inside: a network, its optimizer and its schedule, one epoch at a time.

Everything random in an epoch follows from (seed, epoch) and everything else is in `state`, so a run
that stops after any step and goes on from its state ends with the same weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lpld_core.networks.models import seeded
from lpld_core.networks.weights import Tensors
from lpld_core.training.losses import LossOf
from lpld_core.training.schedules import rate_factor
from lpld_core.training.settings import TrainSettings
from lpld_core.training.weight_average import WeightAverage
from lpld_labels.errors import ComputationError, InvalidArgumentError
from lpld_labels.format.random_streams import Stream, keyed_generator
from lpld_labels.replay import normalise

VECTOR_CHANNELS = 16
_MODEL, _OPTIMIZER = "model.", "optimizer."
_RANDOM, _DEVICE_RANDOM = "random", "random.device"


@dataclass(frozen=True, kw_only=True)
class EpochSoFar:
    """What was done of an epoch: steps and images, the sum of their losses, and the seconds it took."""

    steps: int
    images: int
    loss_sum: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class EpochFacts:
    """Mean loss per image, last learning rate, and how much was done in how many seconds."""

    loss: float
    learning_rate: float
    steps: int
    images: int
    seconds: float


AfterStep = Callable[[EpochSoFar, float], None]
"""Called with what is done of the epoch and the learning rate of the last step."""


class Trainer:
    """Trains one network; the settings must say the normalisation of its pixels."""

    def __init__(self, model: nn.Module, settings: TrainSettings) -> None:
        if settings.mean is None or settings.std is None:
            raise InvalidArgumentError("training needs a normalisation", expected="mean and std")
        self._mean, self._std = settings.mean, settings.std
        self.settings = settings
        self.device = torch.device(settings.device)
        self._format = _memory_format(model, self.device)
        self.model = model.to(self.device).to(memory_format=self._format)
        self._optimizer = _optimizer(self.model, settings)
        self._average = None if settings.ema is None else WeightAverage(self.model, settings.ema)
        self._random: Tensors = {}

    @property
    def result(self) -> nn.Module:
        """What to evaluate and keep: the averaged network where there is one."""
        return self.model if self._average is None else self._average.model

    def run_epoch(
        self,
        epoch: int,
        batches: Iterable[tuple[torch.Tensor, LossOf]],
        *,
        steps: int,
        begin: EpochSoFar | None = None,
        after_step: AfterStep | None = None,
    ) -> EpochFacts:
        """Take one step per batch of (pixels [B, 3, H, W] with values 0..255, its loss).

        steps: how many batches the epoch has; the schedule needs to know in advance.
        begin: what was done of it before the state was saved that `load_state` was given; `batches` are
        the rest then. after_step: called with what is done so far and the learning rate.
        """
        before = begin or EpochSoFar(steps=0, images=0, loss_sum=0.0, seconds=0.0)
        start = time.perf_counter() - before.seconds
        self.model.train()
        total, images, rate = before.loss_sum, before.images, 0.0
        with seeded(int(keyed_generator(self.settings.seed, Stream.TRAINING, epoch).random() * 2**53)):
            if begin is not None:
                self._restore_random()
            for number, (pixels, loss_of) in enumerate(batches, before.steps):
                rate = self.settings.learning_rate * rate_factor(self.settings, epoch + number / steps)
                if len(pixels) > 1:  # BatchNorm cannot learn from a single view
                    total += float(self._step(pixels, loss_of, rate)) * len(pixels)
                    images += len(pixels)
                if after_step is not None:
                    seconds = time.perf_counter() - start
                    so_far = EpochSoFar(steps=number + 1, images=images, loss_sum=total, seconds=seconds)
                    after_step(so_far, rate)
        loss = total / max(images, 1)
        if not math.isfinite(loss):
            raise ComputationError(
                f"training diverged in epoch {epoch}: the loss is {loss}", hint="lower the learning rate"
            )
        return EpochFacts(
            loss=loss,
            learning_rate=rate,
            steps=steps,
            images=images,
            seconds=time.perf_counter() - start,
        )

    def _restore_random(self) -> None:
        """Go on drawing where `state_within` was taken."""
        torch.set_rng_state(self._random[_RANDOM])
        if _DEVICE_RANDOM in self._random:
            torch.cuda.set_rng_state(self._random[_DEVICE_RANDOM], self.device)

    def _step(self, pixels: torch.Tensor, loss_of: LossOf, rate: float) -> torch.Tensor:
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        inputs = normalise(pixels.to(self.device, non_blocking=True), self._mean, self._std)
        inputs = inputs.contiguous(memory_format=self._format)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.settings.amp):
            output = self.model(inputs)
        loss = loss_of(output.float())
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if self._average is not None:
            self._average.update(self.model)
        self._optimizer.step()
        return loss.detach().cpu()

    def state(self) -> Tensors:
        """Return all that the next epoch depends on: parameters, buffers, optimizer state, average."""
        tensors = {f"{_MODEL}{name}": value for name, value in self.model.state_dict().items()}
        for index, fields in self._optimizer.state_dict()["state"].items():
            for field, value in fields.items():
                if isinstance(value, torch.Tensor):
                    tensors[f"{_OPTIMIZER}{index}.{field}"] = value
        return tensors if self._average is None else {**tensors, **self._average.state()}

    def state_within(self) -> Tensors:
        """Return all that the next step depends on; call it from `after_step`."""
        tensors = {**self.state(), _RANDOM: torch.get_rng_state()}
        if self.device.type == "cuda":
            tensors[_DEVICE_RANDOM] = torch.cuda.get_rng_state(self.device)
        return tensors

    def load_state(self, tensors: Tensors) -> None:
        """Go on from what `state` or `state_within` returned, which may be saved with other tensors."""
        self._random = {name: tensors[name] for name in (_RANDOM, _DEVICE_RANDOM) if name in tensors}
        self.model.load_state_dict(
            {name.removeprefix(_MODEL): value for name, value in tensors.items() if name.startswith(_MODEL)}
        )
        state: dict[int, Tensors] = {}
        for name, value in tensors.items():
            if name.startswith(_OPTIMIZER):
                index, field = name.removeprefix(_OPTIMIZER).split(".")
                state.setdefault(int(index), {})[field] = value
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state, "param_groups": groups})
        if self._average is not None:
            self._average.load_state(tensors)


def _memory_format(model: nn.Module, device: torch.device) -> torch.memory_format:
    """Return channels-last, which is faster, unless training this network that way is unsafe.

    For a strided 1x1 convolution with fewer input channels than a vector register holds, oneDNN's
    channels-last weight gradient writes past its workspace (uxlfoundation/oneDNN#6035): 8 channels
    with AVX2, 16 with AVX-512. Seen as heap corruption with networks of width 2 to 7.
    """
    narrow = any(
        isinstance(module, nn.Conv2d)
        and max(module.kernel_size) == 1
        and max(module.stride) > 1
        and module.in_channels < VECTOR_CHANNELS
        for module in model.modules()
    )
    return torch.contiguous_format if narrow and device.type == "cpu" else torch.channels_last


def _optimizer(model: nn.Module, settings: TrainSettings) -> torch.optim.Optimizer:
    groups = parameter_groups(model, settings)
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=settings.learning_rate, momentum=settings.momentum)
    return torch.optim.AdamW(groups, lr=settings.learning_rate)


def parameter_groups(model: nn.Module, settings: TrainSettings) -> list[dict[str, Any]]:
    """Return what decays and, where only weights do, what does not: biases and normalisation."""
    decaying: list[nn.Parameter] = []
    spared: list[nn.Parameter] = []
    for parameter in model.parameters():
        weight = parameter.ndim > 1 or settings.decay_on == "all"
        (decaying if weight else spared).append(parameter)
    groups = [(decaying, settings.weight_decay), (spared, 0.0)]
    return [{"params": tensors, "weight_decay": decay} for tensors, decay in groups if tensors]
