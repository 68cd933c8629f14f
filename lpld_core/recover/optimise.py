"""Optimise the images of one group, starting from noise.

The loss is cross-entropy through the frozen teacher plus the distance to BatchNorm statistics. Moments are
computed per `Unit`, and the teacher normalises with its global statistics, so the units of one forward pass
do not affect each other.

The teacher sees an image through a view: crop, resize, flip and roll. These operations are linear and
separable. So a view is ``rows @ image @ columns^T``, with a small matrix per axis, and gradients are exact.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from lpld_core.device import to_device
from lpld_core.images import random_crops
from lpld_core.networks.batchnorm import BatchNormLayer, batchnorm_layers, image_sums, watched_inputs
from lpld_core.networks.weights import Tensors, with_prefix
from lpld_core.recover.settings import Group, RecoverSettings, StatisticsKind
from lpld_core.settings import FLIP_PROBABILITY
from lpld_core.squeeze.statistics import ClassStatistics
from lpld_core.teachers.teacher import LoadedTeacher
from lpld_core.unfinished import Checkpoint
from lpld_labels.errors import ComputationError, InvalidArgumentError
from lpld_labels.format.random_streams import Stream, keyed_generator

_IMAGES, _ADAM = "images", "adam."
BETAS = (0.5, 0.9)
_CHECK_EVERY = 25
"""Number of iterations between checks for NaN and infinity, which persist in Adam's averages."""


class UnitMoments(torch.autograd.Function):
    """Mean and biased variance over the images and pixels of each `Unit`: float [units, channels].

    values: float [B, channels, H, W]. unit_of_image: int64 [B]. sizes: int64 [units], number of images.
    shift: see `image_sums`. The backward pass is one multiply-add without large temporaries.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, values: Tensor, unit_of_image: Tensor, sizes: Tensor, shift: Tensor
    ) -> tuple[Tensor, Tensor]:
        first, second = image_sums(values, shift)
        count = (sizes * (values.shape[2] * values.shape[3])).view(-1, 1).to(values.dtype)
        zeros = first.new_zeros(len(sizes), first.shape[1])
        mean = zeros.index_add(0, unit_of_image, first) / count
        variance = zeros.index_add(0, unit_of_image, second) / count - mean.square()
        mean = mean + shift
        ctx.save_for_backward(values, unit_of_image, count, mean)
        return mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mean_grad: Tensor, variance_grad: Tensor) -> tuple[Tensor | None, ...]:
        values, unit_of_image, count, mean = ctx.saved_tensors
        slope = 2 * variance_grad / count
        offset = mean_grad / count - slope * mean
        per_image = [part[unit_of_image][:, :, None, None] for part in (offset, slope)]
        return torch.addcmul(per_image[0], per_image[1], values), None, None, None


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerTarget:
    """Target statistics of a layer. mean, variance: float [units or classes, channels]; one row if global."""

    layer: BatchNormLayer
    mean: Tensor
    variance: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class UnitLosses:
    """Losses of each unit, float [units]: mean cross-entropy, and BatchNorm distance without factor alpha."""

    cross_entropy: Tensor
    batchnorm: Tensor

    def total(self, alpha: float) -> Tensor:
        return self.cross_entropy + alpha * self.batchnorm


def unit_losses(
    model: nn.Module,
    images: Tensor,
    classes: Tensor,
    unit_of_image: Tensor,
    sizes: Tensor,
    targets: Sequence[LayerTarget],
    *,
    first_layer_weight: float = 10.0,
) -> UnitLosses:
    """Run normalised images [B, 3, H, W] through the model (eval mode); return both losses of every unit.

    classes, unit_of_image: int64 [B]. sizes: int64 [units], number of images.
    The BatchNorm distance of a unit is the sum over layers of
    |mean - target|_2 + |variance - target|_2; the first layer's term is multiplied by first_layer_weight.
    """
    distances = []

    def watch(number: int, values: Tensor) -> None:
        target = targets[number]
        mean, variance = UnitMoments.apply(values, unit_of_image, sizes, target.layer.running_mean)
        distance = torch.linalg.vector_norm(mean - target.mean, dim=1)
        distance = distance + torch.linalg.vector_norm(variance - target.variance, dim=1)
        distances.append(distance * (first_layer_weight if number == 0 else 1.0))

    with watched_inputs([target.layer for target in targets], watch):
        logits = model(images)
    per_image = nn.functional.cross_entropy(logits, classes, reduction="none")
    cross_entropy = per_image.new_zeros(len(sizes)).index_add(0, unit_of_image, per_image) / sizes
    return UnitLosses(cross_entropy=cross_entropy, batchnorm=torch.stack(distances).sum(dim=0))


@dataclass(frozen=True, kw_only=True, eq=False)
class RecoveredGroup:
    """A group's final images, normalised float [B, 3, H, W], and its final losses, averaged over units."""

    images: Tensor
    cross_entropy: float
    batchnorm: float


def layer_targets(
    teacher: LoadedTeacher, statistics: ClassStatistics | None, kind: StatisticsKind
) -> tuple[LayerTarget, ...]:
    """Return the target of each BatchNorm layer: [classes, channels]; [1, channels] if kind is global."""
    layers = batchnorm_layers(teacher.model, name=f"teacher {teacher.description.name}")
    if kind == "global":
        return tuple(
            LayerTarget(layer=layer, mean=layer.running_mean[None], variance=layer.running_var[None])
            for layer in layers
        )
    if statistics is None:
        raise InvalidArgumentError(
            "class statistics are required",
            hint="compute them with `lpld-labels squeeze`, or use --statistics-kind global",
        )
    statistics.check_teacher(teacher)
    by_name = {layer.name: layer for layer in layers}
    return tuple(
        LayerTarget(
            layer=by_name[entry.name],
            mean=entry.mean.to(by_name[entry.name].running_mean),
            variance=entry.variance.to(by_name[entry.name].running_var),
        )
        for entry in statistics.layers
    )


class GroupOptimiser:
    """Optimises the images of one group on the teacher's device. targets: result of `layer_targets`."""

    def __init__(
        self, teacher: LoadedTeacher, group: Group, targets: Sequence[LayerTarget], settings: RecoverSettings
    ) -> None:
        self.group, self.settings = group, settings
        self.sizes = [len(unit.members) for unit in group.units]
        self._model = teacher.model
        like = next(teacher.model.parameters())
        sizes = torch.tensor(self.sizes)
        self._unit_sizes = sizes.to(like.device)
        units = torch.arange(len(sizes)).repeat_interleave(sizes, output_size=len(group.members))
        self._unit_of_image = units.to(like.device)
        self._classes = torch.tensor([label for label, _ in group.members], device=like.device)
        first_classes = [unit.members[0][0] for unit in group.units]
        self._targets = [
            LayerTarget(layer=target.layer, mean=target.mean[rows], variance=target.variance[rows])
            for target in targets
            for rows in [first_classes if len(target.mean) > 1 else [0]]
        ]
        mean, std = (torch.tensor(values, dtype=torch.float64) for values in (teacher.mean, teacher.std))
        self._black, self._white = ((x - mean).div(std).view(1, 3, 1, 1).to(like) for x in (0, 1))
        noise = [
            draw_noise((len(unit.members), 3, *settings.size), seed=settings.seed, unit=unit.key)
            for unit in group.units
        ]
        self.images = torch.cat([torch.from_numpy(unit).to(like) for unit in noise]).requires_grad_()
        self._adam = torch.optim.Adam([self.images], lr=settings.learning_rate, betas=BETAS)

    def state(self) -> Tensors:
        moments = {f"{_ADAM}{name}": value for name, value in self._adam.state[self.images].items()}
        return {_IMAGES: self.images.detach(), **moments}

    def load_state(self, tensors: Tensors) -> None:
        with torch.no_grad():
            self.images.copy_(tensors[_IMAGES])
        groups = self._adam.state_dict()["param_groups"]
        self._adam.load_state_dict({"state": {0: with_prefix(tensors, _ADAM)}, "param_groups": groups})

    def losses(self, iteration: int) -> UnitLosses:
        views = [draw_view(self.settings, unit.key, iteration) for unit in self.group.units]
        return unit_losses(
            self._model,
            show(self.images, self.sizes, views).contiguous(memory_format=torch.channels_last),
            self._classes,
            self._unit_of_image,
            self._unit_sizes,
            self._targets,
            first_layer_weight=self.settings.first_layer_weight,
        )

    def step(self, total: Tensor, iteration: int) -> None:
        """Move the images against the gradient of the summed losses, then clamp them to valid pixels."""
        self._adam.param_groups[0]["lr"] = self.settings.rate(iteration)
        (self.images.grad,) = torch.autograd.grad(total, self.images)
        self._adam.step()
        with torch.no_grad():
            self.images.copy_(torch.minimum(torch.maximum(self.images, self._black), self._white))


def recover_group(
    teacher: LoadedTeacher,
    group: Group,
    targets: Sequence[LayerTarget],
    settings: RecoverSettings,
    *,
    checkpoint: Checkpoint | None = None,
) -> Generator[int, None, RecoveredGroup]:
    """Optimise one group's images: yield the number of iterations done, return the last images.

    checkpoint: file to save the images to and to resume from; None: do not save. Raises ComputationError if
    values stop being finite or memory runs out.
    """
    last = settings.iterations - 1
    with _memory_errors(settings):
        optimiser = GroupOptimiser(teacher, group, targets, settings)
        first = 0
        found = None if checkpoint is None else checkpoint.load()
        if found is not None:
            first = int(found.about["iterations"])
            optimiser.load_state(found.tensors)
        for iteration in range(first, settings.iterations):
            losses = optimiser.losses(iteration)
            per_unit = losses.total(settings.alpha)
            if iteration % _CHECK_EVERY == 0 or iteration == last:
                _refuse_not_finite(per_unit, group, iteration)
            optimiser.step(per_unit.sum(), iteration)
            # Do not save after the last iteration: checkpoints lack the losses, which are reported.
            if checkpoint is not None and iteration != last and checkpoint.due():
                checkpoint.save(optimiser.state(), iterations=iteration + 1)
            yield iteration + 1
    images = optimiser.images.detach()
    per_unit = torch.stack([unit.sum() for unit in torch.split(images, optimiser.sizes)])
    _refuse_not_finite(per_unit, group, last)
    return RecoveredGroup(
        images=images,
        cross_entropy=float(losses.cross_entropy.detach().mean()),
        batchnorm=float(losses.batchnorm.detach().mean()),
    )


def _refuse_not_finite(per_unit: Tensor, group: Group, iteration: int) -> None:
    bad = (~torch.isfinite(per_unit.detach())).nonzero().flatten().tolist()
    if not bad:
        return
    labels = sorted({label for number in bad for label, _ in group.units[number].members})
    named = f"class {labels[0]}" if len(labels) == 1 else f"classes {labels[0]} to {labels[-1]}"
    raise ComputationError(
        f"recovery of {named} gave values that are not finite by iteration {iteration}",
        hint="finished groups are kept; check the statistics or lower the learning rate or alpha",
    )


@contextlib.contextmanager
def _memory_errors(settings: RecoverSettings) -> Iterator[None]:
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = str(error).lower()
        # On a CPU torch raises a plain RuntimeError.
        known = isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError))
        if not known and not ("memory" in text and "alloc" in text):
            raise
        unit = "ipc" if settings.method == "lpld" else "batch_size"
        name, note = (unit, ", or the image size") if settings.class_group == 1 else ("class_group", "")
        raise ComputationError(
            "out of memory during recovery",
            hint=f"finished groups are kept; lower {name}, now {getattr(settings, name)}{note}",
        ) from None


Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class View:
    """A crop (in source pixels), a flip, and a roll down and right (in output pixels)."""

    top: int
    left: int
    height: int
    width: int
    flip: bool
    roll_down: int
    roll_right: int


def draw_view(settings: RecoverSettings, unit: tuple[int, int], iteration: int) -> View:
    """Draw the view of a unit at an iteration. Equal arguments give equal views. unit: the unit's key."""
    random = keyed_generator(settings.seed, Stream.RECOVERY_VIEWS, *unit, iteration)
    crop = random_crops(random, settings.size, settings.size, least=settings.crop_from(iteration))[0]
    flip, down, right = random.random(3).tolist()
    least = -settings.roll if settings.roll_direction == "both" else 0
    shifts = settings.roll - least + 1
    return View(
        top=crop[0],
        left=crop[1],
        height=crop[2],
        width=crop[3],
        flip=flip < FLIP_PROBABILITY,
        roll_down=int(down * shifts) + least,
        roll_right=int(right * shifts) + least,
    )


def draw_noise(shape: tuple[int, ...], *, seed: int, unit: tuple[int, int]) -> npt.NDArray[np.float64]:
    """Return the standard normal noise from which a unit's images start. unit: the unit's key."""
    return keyed_generator(seed, Stream.RECOVERY_NOISE, *unit, 0).standard_normal(shape)


def _view_matrices(view: View, size: tuple[int, int]) -> tuple[Matrix, Matrix]:
    """Return rows [H, H] and columns [W, W] such that the view of an image X is rows @ X @ columns^T."""
    rows = _resize_matrix(view.top, view.height, size[0])
    columns = _resize_matrix(view.left, view.width, size[1])
    if view.flip:
        columns = columns[::-1]
    return np.roll(rows, view.roll_down, axis=0), np.roll(columns, view.roll_right, axis=0)


def _resize_matrix(start: int, length: int, size: int) -> Matrix:
    """Return the matrix [size, size] that resizes pixels start..start + length to `size`, bilinearly."""
    centre = np.maximum((np.arange(size) + 0.5) * length / size - 0.5, 0.0)
    lower = np.minimum(centre.astype(np.int64), length - 1)
    upper = np.minimum(lower + 1, length - 1)
    matrix = np.zeros((size, size))
    weight = centre - lower
    np.add.at(matrix, (np.arange(size), start + lower), 1 - weight)
    np.add.at(matrix, (np.arange(size), start + upper), weight)
    return matrix


def show(images: Tensor, sizes: list[int], views: list[View]) -> Tensor:
    """Apply views[i] to unit i; differentiable. images: [B, 3, H, W]. sizes: number of images per unit."""
    height, width = images.shape[2:]
    matrices = [_view_matrices(view, (height, width)) for view in views]
    rows, columns = (
        to_device(torch.from_numpy(np.stack(each)).to(images.dtype), images.device)
        for each in zip(*matrices, strict=True)
    )
    units = zip(rows, torch.split(images, sizes), columns, strict=True)
    return torch.cat([row @ unit @ column.T for row, unit, column in units])
