"""The training loop: a network, its optimizer and its schedule, one epoch at a time.

Randomness in a step depends only on (seed, epoch, step, process); `state` holds everything else. So a run
that stops after any step and resumes from its state ends with the same weights.
"""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lpld_core.device import autocast, gradient_scaler, to_device
from lpld_core.networks.models import seeded
from lpld_core.networks.weights import Tensors, with_prefix
from lpld_core.train.evaluate import Accuracy, ValidationSet
from lpld_core.train.ranks import ALONE, Ranks
from lpld_core.train.settings import TrainSettings, rate_factor
from lpld_labels.errors import ComputationError, InvalidArgumentError
from lpld_labels.format.random_streams import Stream, keyed_generator
from lpld_labels.render import normalise

LossOf = Callable[[torch.Tensor, slice], torch.Tensor]
"""Takes logits [n, C] and the slice of the n rows in the batch; returns the mean loss, a scalar tensor."""

VECTOR_CHANNELS = 16
_MODEL, _OPTIMIZER, _SCALER = "model.", "optimizer.", "scaler."
STEPS_PER_READ = 20
"""Steps between two reads of the loss from a GPU. Each read waits until the GPU has finished."""


@dataclass(frozen=True, kw_only=True)
class EpochProgress:
    """Numbers of steps and images, sum of losses, seconds and last learning rate of an epoch so far."""

    steps: int = 0
    images: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0
    learning_rate: float = 0.0

    @property
    def loss(self) -> float:
        return self.loss_sum / max(self.images, 1)


class TrainingBatch(NamedTuple):
    """One process's rows of a step. pixels: [n, 3, H, W], values 0..255. loss_of: loss of these rows."""

    pixels: torch.Tensor
    loss_of: LossOf


class Trainer:
    """Trains a network in its parameters' dtype. settings: must set mean and std. ranks: its processes."""

    def __init__(self, model: nn.Module, settings: TrainSettings, ranks: Ranks = ALONE) -> None:
        if settings.mean is None or settings.std is None:
            raise InvalidArgumentError("training requires a normalisation", expected="mean and std")
        self._mean, self._std = settings.mean, settings.std
        self.settings = settings
        self.ranks = ranks
        self.device = ranks.device if ranks.world > 1 else torch.device(settings.device)
        self._format = _memory_format(model, self.device)
        self.model = model.to(self.device).to(memory_format=self._format)
        self._optimizer = _optimizer(self.model, settings)
        self._dtype = next(self.model.parameters()).dtype
        self._parallel: DistributedDataParallel | None = None
        self._average = None if settings.ema is None else WeightAverage(self.model, settings.ema)
        self._scaler = gradient_scaler(self.device, settings.amp)
        self._loss_dtype = torch.float32 if self.device.type == "mps" else torch.float64  # mps has no float64
        self._steps_per_read = 1 if self.device.type == "cpu" else STEPS_PER_READ

    @property
    def result(self) -> nn.Module:
        """The network to evaluate and save: the weight average if there is one."""
        return self.model if self._average is None else self._average.model

    def accuracy(self, validation: ValidationSet | None) -> Accuracy | None:
        if validation is None:
            return None
        return validation.accuracy(self.result, self._mean, self._std, ranks=self.ranks)

    def run_epoch(
        self,
        epoch: int,
        batches: Iterable[TrainingBatch],
        *,
        steps: int,
        begin: EpochProgress | None = None,
        after_step: Callable[[EpochProgress], None] | None = None,
    ) -> EpochProgress:
        """Take one step per batch. steps: steps in a full epoch. begin: progress before an interruption.

        after_step: called when the loss has been read, which is after every step on a CPU. Raises
        ComputationError if the loss is not finite.
        """
        progress = begin or EpochProgress()
        loss_sum, rows = self._no_loss(), 0
        start = time.perf_counter() - progress.seconds
        self.model.train()
        with seeded(0):
            for number, batch in enumerate(batches, progress.steps):
                rate = self.settings.learning_rate * rate_factor(self.settings, epoch + number / steps)
                if len(batch.pixels) > 1:  # BatchNorm cannot learn from a single view
                    self._seed(epoch, number)
                    loss_sum += self._step(batch, rate)
                    rows += len(batch.pixels) * self.ranks.world
                if (number + 1) % self._steps_per_read and number + 1 != steps:
                    continue
                progress = EpochProgress(
                    steps=number + 1,
                    images=progress.images + rows,
                    loss_sum=progress.loss_sum + float(self.ranks.sum(loss_sum)),
                    seconds=time.perf_counter() - start,
                    learning_rate=rate,
                )
                loss_sum, rows = self._no_loss(), 0
                if not math.isfinite(progress.loss):
                    raise _diverged(f"in epoch {epoch}: the loss is {progress.loss}")
                if after_step is not None:
                    after_step(progress)
        return progress

    def _no_loss(self) -> torch.Tensor:
        return torch.zeros((), dtype=self._loss_dtype, device=self.device)

    def _seed(self, epoch: int, step: int) -> None:
        place = (self.settings.seed, Stream.TRAINING, epoch, step, self.ranks.rank)
        torch.manual_seed(int(keyed_generator(*place).random() * 2**53))

    def _step(self, batch: TrainingBatch, rate: float) -> torch.Tensor:
        """Take a step; return the sum of losses over this process's rows, a scalar on the device."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad(set_to_none=True)
        if self.ranks.world > 1 and self._parallel is None:
            self._parallel = self.ranks.parallel(self.model, unused=self._has_unused(batch.pixels))
        rows = len(batch.pixels)
        # BatchNorm needs at least two rows in each part.
        count = max(1, min(self.settings.accumulate, rows // 2))
        losses = self._no_loss()
        for part in range(count):
            chosen = slice(part * rows // count, (part + 1) * rows // count)
            # Processes exchange gradients with the last part only.
            wait = self._parallel is not None and part < count - 1
            with self._parallel.no_sync() if wait and self._parallel else contextlib.nullcontext():
                losses += self._pass(batch, chosen)
        if self._average is not None:
            self._average.update(self.model)
        if self._scaler is None:
            self._optimizer.step()
        else:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        return losses

    def _pass(self, batch: TrainingBatch, rows: slice) -> torch.Tensor:
        """Backpropagate the share of `rows` in the step's mean loss; return the sum of the rows' losses."""
        count: int = rows.stop - rows.start
        model = self._parallel or self.model
        with autocast(self.device, self.settings.amp):
            output = model(self._inputs(batch.pixels[rows]))
        loss = batch.loss_of(output if output.dtype == torch.float64 else output.float(), rows)
        weighed = loss * (count / len(batch.pixels))
        scaled = weighed if self._scaler is None else self._scaler.scale(weighed)
        scaled.backward()
        return loss.detach().to(self._loss_dtype) * count

    def _inputs(self, pixels: torch.Tensor) -> torch.Tensor:
        inputs = normalise(to_device(pixels, self.device), self._mean, self._std)
        return inputs.to(self._dtype).contiguous(memory_format=self._format)

    def _has_unused(self, pixels: torch.Tensor) -> bool:
        """Whether some parameters do not affect the output."""
        trial = copy.deepcopy(self.model)
        with torch.random.fork_rng(devices=[]):
            trial.eval()(self._inputs(pixels.new_zeros(2, *pixels.shape[1:]))).sum().backward()
        return any(parameter.grad is None for parameter in trial.parameters() if parameter.requires_grad)

    def state(self) -> Tensors:
        """Return all that the next step depends on: parameters, buffers, optimizer state, weight average.

        Raises ComputationError if a parameter is not finite.
        """
        finite = [torch.isfinite(parameter).all() for parameter in self.model.parameters()]
        if not bool(torch.stack(finite).all()):
            raise _diverged("to weights that are not finite")
        tensors = {f"{_MODEL}{name}": value for name, value in self.model.state_dict().items()}
        if self._scaler is not None:
            scale = self._scaler.state_dict()
            tensors |= {f"{_SCALER}{name}": torch.tensor(scale[name], dtype=torch.float64) for name in _SCALE}
        for index, fields in self._optimizer.state_dict()["state"].items():
            for field, value in fields.items():
                if isinstance(value, torch.Tensor):
                    tensors[f"{_OPTIMIZER}{index}.{field}"] = value
        return tensors if self._average is None else {**tensors, **self._average.state()}

    def load_state(self, tensors: Tensors) -> None:
        """Resume from what `state` returned; other tensors are ignored."""
        self.model.load_state_dict(with_prefix(tensors, _MODEL))
        state: dict[int, Tensors] = {}
        for name, value in with_prefix(tensors, _OPTIMIZER).items():
            index, field = name.split(".")
            state.setdefault(int(index), {})[field] = value
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state, "param_groups": groups})
        if self._scaler is not None:
            scale = with_prefix(tensors, _SCALER)
            found = {name: float(scale["scale"]) if name == "scale" else int(scale[name]) for name in _SCALE}
            self._scaler.load_state_dict({**self._scaler.state_dict(), **found})
        if self._average is not None:
            self._average.load_state(tensors)


_SCALE = ("scale", "_growth_tracker")
"""The entries of a gradient scaler's state that change."""


def _diverged(how: str) -> ComputationError:
    return ComputationError(f"training diverged {how}", hint="lower the learning rate")


def _memory_format(model: nn.Module, device: torch.device) -> torch.memory_format:
    """Return channels-last, which is faster, unless that is unsafe for this network on a CPU.

    oneDNN's channels-last weight gradient of a strided 1x1 convolution corrupts the heap where the input has
    fewer channels than a vector has lanes: 8 with AVX2, 16 with AVX-512 (uxlfoundation/oneDNN#6035).
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
        # Not fused: if its first step overflows, fused SGD keeps uninitialised memory as momentum.
        return torch.optim.SGD(groups, lr=settings.learning_rate, momentum=settings.momentum)
    # A fused optimizer skips the step of an overflow without the host reading a flag from the GPU.
    fused = True if settings.amp == "fp16" and settings.device.startswith("cuda") else None
    return torch.optim.AdamW(groups, lr=settings.learning_rate, fused=fused)


def parameter_groups(model: nn.Module, settings: TrainSettings) -> list[dict[str, Any]]:
    """Return the optimizer's groups: parameters with weight decay, and parameters without it."""
    decaying: list[nn.Parameter] = []
    exempt: list[nn.Parameter] = []
    for parameter in model.parameters():
        weight = parameter.ndim > 1 or settings.decay_on == "all"
        (decaying if weight else exempt).append(parameter)
    groups = [(decaying, settings.weight_decay), (exempt, 0.0)]
    return [{"params": tensors, "weight_decay": decay} for tensors, decay in groups if tensors]


STEPS_APART = 10
STARTS_AFTER = 100
POWER = 2 / 3
_AVERAGE, _AVERAGE_STEPS = "average.", "average_steps"


class WeightAverage:
    """Moving average of a network's parameters and buffers. decay: maximum decay, 0 to 1."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(requires_grad=False).eval()
        self._decay = decay
        self._steps = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Call this before each step. Every STEPS_APART calls, it adds the current weights to the average."""
        step, self._steps = self._steps, self._steps + 1
        if step % STEPS_APART:
            return
        since = step - STARTS_AFTER
        decay = min(self._decay, 1 - (1 + since) ** -POWER) if since > 0 else 0.0
        ours = self.model.state_dict()
        for name, value in model.state_dict().items():
            if decay and value.is_floating_point():
                ours[name].lerp_(value, 1 - decay)
            else:
                ours[name].copy_(value)

    def state(self) -> Tensors:
        """Return the tensors of the averaged network, and the number of calls of `update`."""
        tensors = {f"{_AVERAGE}{name}": value for name, value in self.model.state_dict().items()}
        return {**tensors, _AVERAGE_STEPS: torch.tensor(self._steps)}

    def load_state(self, tensors: Tensors) -> None:
        """Resume from what `state` returned; other tensors are ignored."""
        self.model.load_state_dict(with_prefix(tensors, _AVERAGE))
        self._steps = int(tensors[_AVERAGE_STEPS])
