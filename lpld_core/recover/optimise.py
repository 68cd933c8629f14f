"""Optimise the images of one group from noise to what the teacher remembers.

An image is shown through a view: crop, resize, flip and roll. All are linear and separable, so a whole view
is ``rows @ image @ columns^T`` with one small matrix per axis: exact gradients, one code path.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lpld_core.networks.batchnorm import batchnorm_layers
from lpld_core.networks.weights import Tensors
from lpld_core.recover.losses import LayerTarget, UnitLosses, unit_losses
from lpld_core.recover.settings import Group, RecoverSettings, StatisticsKind
from lpld_core.squeeze.statistics import ClassStatistics
from lpld_core.teachers.teacher import LoadedTeacher
from lpld_core.unfinished import Checkpoint
from lpld_labels.errors import ComputationError, InvalidArgumentError
from lpld_labels.format.drawing import draw_crops
from lpld_labels.format.manifest import Augmentation
from lpld_labels.format.random_streams import Stream, keyed_generator

_IMAGES, _ADAM = "images", "adam."
BETAS = (0.5, 0.9)
CROP_RATIO = (3 / 4, 4 / 3)
FLIP_PROBABILITY = 0.5
_CHECK_EVERY = 25
"""Iterations between looks at the loss. NaN spreads through Adam's averages and stays, so none is missed."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RecoveredGroup:
    """The last iterate of a group and its losses there.

    images: float [B, 3, H, W], normalised, in the order of `Group.members`.
    cross_entropy, batchnorm: mean over the group's units at the last iteration.
    """

    images: Tensor
    cross_entropy: float
    batchnorm: float


def layer_targets(
    teacher: LoadedTeacher, statistics: ClassStatistics | None, kind: StatisticsKind
) -> tuple[LayerTarget, ...]:
    """Return what each BatchNorm layer is matched with: class rows [classes, channels], or one global row."""
    layers = batchnorm_layers(teacher.model, name=f"teacher {teacher.description.name}")
    if kind == "global":
        return tuple(
            LayerTarget(layer=layer, mean=layer.running_mean[None], variance=layer.running_var[None])
            for layer in layers
        )
    if statistics is None:
        raise InvalidArgumentError(
            "class statistics are needed",
            hint="make them with: lpld-labels squeeze; or match global statistics",
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
    """The images of one group on their way from keyed noise to the last iterate.

    targets: of `layer_targets`, for all classes. Images have the teacher's dtype and device.
    """

    def __init__(
        self, teacher: LoadedTeacher, group: Group, targets: Sequence[LayerTarget], settings: RecoverSettings
    ) -> None:
        self.group = group
        self.settings = settings
        self._model = teacher.model
        like = next(teacher.model.parameters())
        self._sizes = [len(unit.members) for unit in group.units]
        units = torch.arange(len(self._sizes)).repeat_interleave(torch.tensor(self._sizes))
        self._unit_of_image = units.to(like.device)
        self._classes = torch.tensor([label for label, _ in group.members], device=like.device)
        self._targets = _targets_of(group, targets)
        self._low, self._high = _valid_range(teacher, like)
        noise = [
            draw_noise((len(unit.members), 3, *settings.size), seed=settings.seed, unit=unit.key)
            for unit in group.units
        ]
        self.images = torch.cat([torch.from_numpy(unit).to(like) for unit in noise]).requires_grad_()
        self._adam = torch.optim.Adam([self.images], lr=settings.learning_rate, betas=BETAS)

    def state(self) -> Tensors:
        """Return all that the next iteration depends on."""
        moments = {f"{_ADAM}{name}": value for name, value in self._adam.state[self.images].items()}
        return {_IMAGES: self.images.detach(), **moments}

    def load_state(self, tensors: Tensors) -> None:
        """Go on from what `state` returned."""
        with torch.no_grad():
            self.images.copy_(tensors[_IMAGES])
        moments = {
            name.removeprefix(_ADAM): value for name, value in tensors.items() if name.startswith(_ADAM)
        }
        groups = self._adam.state_dict()["param_groups"]
        self._adam.load_state_dict({"state": {0: moments}, "param_groups": groups})

    def losses(self, iteration: int) -> UnitLosses:
        """Return both losses of every unit, seen through the views of an iteration."""
        settings = self.settings
        views = [draw_view(settings, unit.key, iteration) for unit in self.group.units]
        return unit_losses(
            self._model,
            show(self.images, self._sizes, views).contiguous(memory_format=torch.channels_last),
            self._classes,
            self._unit_of_image,
            self._targets,
            first_layer_weight=settings.first_layer_weight,
        )

    def step(self, total: Tensor, iteration: int) -> None:
        """Move the images against the gradient of the summed losses, then back to valid pixels."""
        self._adam.param_groups[0]["lr"] = self.settings.rate(iteration)
        (self.images.grad,) = torch.autograd.grad(total, self.images)
        self._adam.step()
        with torch.no_grad():
            self.images.copy_(torch.minimum(torch.maximum(self.images, self._low), self._high))


def recover_group(
    teacher: LoadedTeacher,
    group: Group,
    targets: Sequence[LayerTarget],
    settings: RecoverSettings,
    *,
    checkpoint: Checkpoint | None = None,
) -> Generator[int, None, RecoveredGroup]:
    """Optimise one group's images: yield the iterations done after each, return the last iterate.

    checkpoint: where the images are saved on the way, and resumed from. Raises ComputationError that names
    the class when values stop being finite, or what to lower when memory runs out.
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
            # Not after the last: its losses are reported, and they are not saved.
            if checkpoint is not None and iteration != last and checkpoint.due():
                checkpoint.save(optimiser.state(), iterations=iteration + 1)
            yield iteration + 1
    images = optimiser.images.detach()
    sizes = [len(unit.members) for unit in group.units]
    _refuse_not_finite(torch.stack([unit.sum() for unit in torch.split(images, sizes)]), group, last)
    return RecoveredGroup(
        images=images,
        cross_entropy=float(losses.cross_entropy.detach().mean()),
        batchnorm=float(losses.batchnorm.detach().mean()),
    )


def _targets_of(group: Group, targets: Sequence[LayerTarget]) -> list[LayerTarget]:
    """Pick each unit's row of class statistics; a single global row serves all units as it is."""
    chosen = []
    for target in targets:
        rows = [unit.members[0][0] for unit in group.units] if len(target.mean) > 1 else [0]
        chosen.append(LayerTarget(layer=target.layer, mean=target.mean[rows], variance=target.variance[rows]))
    return chosen


def _valid_range(teacher: LoadedTeacher, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return what black and white are after normalisation: [1, 3, 1, 1] each."""
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (teacher.mean, teacher.std))
    black, white = -mean / std, (1 - mean) / std
    return black.view(1, 3, 1, 1).to(like), white.view(1, 3, 1, 1).to(like)


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
    """Turn running out of memory into advice on what to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = str(error).lower()
        # On a CPU torch raises a plain RuntimeError.
        known = isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError))
        if not known and not ("memory" in text and "alloc" in text):
            raise
        raise ComputationError(
            "out of memory during recovery", hint=f"finished groups are kept; {_what_to_lower(settings)}"
        ) from None


def _what_to_lower(settings: RecoverSettings) -> str:
    if settings.class_group > 1:
        return f"lower class_group, now {settings.class_group} (the images stay the same), and run again"
    if settings.method == "lpld":
        return f"one class does not fit: lower ipc, now {settings.ipc}, or the image size"
    return f"one batch does not fit: lower batch_size, now {settings.batch_size}, or the image size"


Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class View:
    """One crop (source pixels), flip and roll (output pixels down and right)."""

    top: int
    left: int
    height: int
    width: int
    flip: bool
    roll_down: int
    roll_right: int


def draw_view(settings: RecoverSettings, unit: tuple[int, int], iteration: int) -> View:
    """Draw the view of one unit (its key) at one iteration; it depends on nothing but the arguments."""
    random = keyed_generator(settings.seed, Stream.RECOVERY_VIEWS, *unit, iteration)
    height, width = settings.size
    augmentation = Augmentation(
        output_height=height,
        output_width=width,
        resize="torch",
        crop_scale=(settings.crop_from(iteration), 1.0),
        crop_ratio=CROP_RATIO,
    )
    crop = draw_crops(random, np.array([height]), np.array([width]), augmentation)[0].tolist()
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
    """Return the standard normal images a unit starts from: float64 of the shape given."""
    return keyed_generator(seed, Stream.RECOVERY_NOISE, *unit, 0).standard_normal(shape)


def view_matrices(view: View, size: tuple[int, int]) -> tuple[Matrix, Matrix]:
    """Return rows [H, H] and columns [W, W] such that the view of an image X is rows @ X @ columns^T."""
    rows = _resize_matrix(view.top, view.height, size[0])
    columns = _resize_matrix(view.left, view.width, size[1])
    if view.flip:
        columns = columns[::-1]
    return np.roll(rows, view.roll_down, axis=0), np.roll(columns, view.roll_right, axis=0)


def _resize_matrix(start: int, length: int, size: int) -> Matrix:
    """Return [size, size]: take `length` pixels from `start` and resize them to `size`, bilinearly."""
    centre = np.maximum((np.arange(size) + 0.5) * length / size - 0.5, 0.0)
    lower = np.minimum(centre.astype(np.int64), length - 1)
    upper = np.minimum(lower + 1, length - 1)
    matrix = np.zeros((size, size))
    weight = centre - lower
    np.add.at(matrix, (np.arange(size), start + lower), 1 - weight)
    np.add.at(matrix, (np.arange(size), start + upper), weight)
    return matrix


def show(images: Tensor, sizes: list[int], views: list[View]) -> Tensor:
    """Return each unit's images through that unit's view; differentiable.

    images: float [B, 3, H, W], units one after the other. sizes: images per unit. Same shape back.
    """
    height, width = images.shape[2:]
    shown = []
    for unit, view in zip(torch.split(images, sizes), views, strict=True):
        rows, columns = (
            torch.from_numpy(matrix).to(device=images.device, dtype=images.dtype)
            for matrix in view_matrices(view, (height, width))
        )
        shown.append(rows @ unit @ columns.T)
    return torch.cat(shown)
