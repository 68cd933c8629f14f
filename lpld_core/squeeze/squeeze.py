"""Squeeze an image folder: compute class statistics, and how many batches a moving average needs.

Exact moments (means, variances) are computed by tasks of a few classes. A task sees all views of its classes
in an order that only depends on the seed, and sums in float64, so the statistics are bit-identical for any
executor. A moving average depends on the order of all batches, so it is one task.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lpld_core.device import to_device
from lpld_core.images import Pixels, RealFolder, labelled_batches, random_view, shuffled_rows
from lpld_core.networks.batchnorm import BatchNormLayer, batchnorm_layers, image_sums, watched_inputs
from lpld_core.networks.weights import Tensors, read_weights
from lpld_core.settings import SqueezeSettings
from lpld_core.squeeze.statistics import ClassStatistics, LayerStatistics
from lpld_core.teachers.teacher import LoadedTeacher, Machine
from lpld_core.unfinished import Checkpoint
from lpld_labels.errors import InvalidArgumentError, LabelPoolError
from lpld_labels.exec.job import Executor, Job, Progress, Steps, say_reused
from lpld_labels.exec.local import ONE_PROCESS
from lpld_labels.format.random_streams import Stream, keyed_generator
from lpld_labels.render.apply import centre_view

GROUP_BATCHES = 16
"""Minimum number of batches per group. Few groups are faster: nothing is prefetched across groups."""


def squeeze_folder(
    teacher: LoadedTeacher,
    folder: RealFolder,
    settings: SqueezeSettings | None = None,
    *,
    place: Path | None = None,
    executor: Executor = ONE_PROCESS,
    machine: Machine | None = None,
    progress: Progress | None = None,
) -> ClassStatistics:
    """Return the class statistics of all images.

    place: directory for unfinished work, from which the same squeeze resumes. machine: device and threads of
    the executor's workers. progress: called with (views done, total) after each batch.
    """
    settings = settings or SqueezeSettings()
    teacher.require_classes(folder.classes, "image folder", where=folder.root)
    groups = class_groups(teacher, folder, settings)
    total = sum(group.views for group in groups)
    with contextlib.ExitStack() as stack:
        place = place or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        counted = [group.counted(place) for group in groups]
        missing = [group for group, views in zip(groups, counted, strict=True) if views < group.views]
        worker = partial(Squeezer, folder=folder, settings=settings, place=place)
        work = Job(
            start=partial((machine or Machine()).start, worker, teacher.on("cpu")),
            here=lambda: worker(teacher=teacher),
            tasks=missing,
            name=lambda group: group.name(folder),
            total=total,
            done=total - sum(group.views for group in missing),
            where=place,
        )
        say_reused(place, sum(counted), total, "views")
        executor.run(work, progress)
        states = [read_weights(group.file(place)).tensors for group in groups]
    rows = batch_rows(teacher)
    moments = ClassMoments(folder.classes, rows.shift.cpu(), settings.average)
    moments.load_state({name: torch.cat([state[name] for state in states]) for name in moments.state()})
    for state in states:
        rows.reached |= state["reached"]
    job = squeeze_job(teacher, folder, settings)
    return statistics_of(teacher, rows, moments, folder.class_names, settings, job=job)


def squeeze_job(
    teacher: LoadedTeacher,
    folder: RealFolder,
    settings: SqueezeSettings,
    rows: npt.NDArray[np.int64] | None = None,
) -> dict[str, Any]:
    """Return everything that determines the statistics, as JSON values. rows: images used; None: all."""
    job = {
        **asdict(settings),
        "teacher": asdict(teacher.description),
        "size": teacher.input_size,
        # A digest of the images' bytes would take as long as the squeeze.
        "images": folder.listing_digest(rows, dates=True),
    }
    found: dict[str, Any] = json.loads(json.dumps(job))
    return found


def finished_squeeze(
    path: Path, teacher: LoadedTeacher, folder: RealFolder, settings: SqueezeSettings
) -> ClassStatistics | None:
    """Return the statistics of a file if the same squeeze made them, else None."""
    try:
        found = ClassStatistics.load(path)
    except LabelPoolError:
        return None
    return found if found.job == squeeze_job(teacher, folder, settings) else None


@dataclass(frozen=True, kw_only=True)
class ClassGroup:
    """The classes from `first` up to but not including `end`. views: number of views in all passes.

    fingerprint: hash of everything that determines the group's moments. It is part of the file name, so a
    changed image only discards the work on its own group.
    """

    first: int
    end: int
    views: int
    fingerprint: str

    def name(self, folder: RealFolder) -> str:
        first, last = folder.class_names[self.first], folder.class_names[self.end - 1]
        return f"class {first}" if first == last else f"classes {first} to {last}"

    def file(self, place: Path) -> Path:
        return place / f"classes-{self.first:06d}-{self.fingerprint}.safetensors"

    def counted(self, place: Path) -> int:
        """Return the number of views that an earlier run has already processed."""
        path = self.file(place)
        return int(read_weights(path).tensors["counts"].sum()) if path.exists() else 0


def class_groups(teacher: LoadedTeacher, folder: RealFolder, settings: SqueezeSettings) -> list[ClassGroup]:
    """Divide the classes into groups of consecutive classes; a moving average needs a single group."""
    groups, first, views = [], 0, 0
    for end, count in enumerate(folder.counts().tolist(), 1):
        views += count * settings.passes
        large = settings.update == "exact" and views >= GROUP_BATCHES * settings.batch_size
        if large or end == folder.classes:
            rows = np.flatnonzero((folder.labels >= first) & (folder.labels < end))
            job = json.dumps(squeeze_job(teacher, folder, settings, rows), sort_keys=True)
            fingerprint = hashlib.sha256(job.encode()).hexdigest()[:16]
            groups.append(ClassGroup(first=first, end=end, views=views, fingerprint=fingerprint))
            first, views = end, 0
    return groups


@dataclass(frozen=True, kw_only=True, eq=False)
class Squeezer:
    """A worker that writes the moments of class groups to `place`."""

    teacher: LoadedTeacher
    folder: RealFolder
    settings: SqueezeSettings
    place: Path

    def do(self, task: ClassGroup, *, again: bool) -> Steps:
        """Compute the moments of a group, or resume an earlier attempt; yield the numbers of views done."""
        del again
        rows = batch_rows(self.teacher)
        moments = ClassMoments(task.end - task.first, rows.shift, self.settings.average)
        checkpoint = Checkpoint(task.file(self.place))
        found = checkpoint.load()
        done = 0
        if found is not None:
            done = int(found.about["batches"])
            moments.load_state(found.tensors)
            rows.reached |= found.tensors["reached"]
        yield int(moments.counts.sum())
        shown = _batches(self.teacher, self.folder, self.settings, task, done=done)
        for count in gather(self.teacher, shown, rows, moments):
            done += 1
            if checkpoint.due():
                checkpoint.save({"reached": rows.reached, **moments.state()}, batches=done)
            yield count
        checkpoint.save({"reached": rows.reached, **moments.state()}, batches=done)


def _batches(
    teacher: LoadedTeacher, folder: RealFolder, settings: SqueezeSettings, group: ClassGroup, *, done: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield views float32 [B, 3, H, W] and labels int64 [B] minus `group.first`; skip `done` batches."""
    for number in range(settings.passes):

        def show(row: int, image: Pixels, number: int = number) -> Tensor:
            if settings.views == "centre":
                return centre_view(image, teacher.input_size)
            # Keyed by pass and image: neither threads nor the order of the images change a view.
            draws = keyed_generator(settings.seed, Stream.SQUEEZE_VIEWS, number, row, 0)
            return random_view(image, teacher.input_size, draws)

        rows = shuffled_rows(folder, settings.seed, number)
        labels = folder.labels[rows]
        rows = rows[(labels >= group.first) & (labels < group.end)]
        per_pass = math.ceil(len(rows) / settings.batch_size)
        first = max(0, done - number * per_pass) * settings.batch_size
        batches = labelled_batches(teacher, folder, rows[first:], show, batch_size=settings.batch_size)
        yield from ((images, labels - group.first) for images, labels in batches)


class BatchRows:
    """Collects a row per image while the network runs: mean and mean square of every channel in all layers.

    Values are relative to the layers' running means (`shift`), which keeps variances accurate where means
    are large. A layer that runs twice counts both times; a layer that does not run gives zeros.
    reached: bool [layers], whether each layer has run.
    """

    def __init__(self, layers: Sequence[BatchNormLayer]) -> None:
        self.layers = layers
        self.reached = torch.zeros(len(layers), dtype=torch.bool)
        self.shift = torch.cat([layer.running_mean for layer in layers]).double()
        self._parts: list[tuple[Tensor, Tensor, int] | None] = [None] * len(layers)

    def watch(self, number: int, values: Tensor) -> None:
        """Add an input of layer `number`. values: float [B, channels, H, W]."""
        first, second = image_sums(values, self.layers[number].running_mean)
        pixels = values.shape[2] * values.shape[3]
        before = self._parts[number]
        if before is not None:
            first, second, pixels = first + before[0], second + before[1], pixels + before[2]
        self._parts[number] = (first, second, pixels)
        self.reached[number] = True

    def take(self, images: int) -> tuple[Tensor, Tensor]:
        """Return mean and mean square per image, float64 [images, channels of all layers], and reset."""
        means, squares = [], []
        for part, layer in zip(self._parts, self.layers, strict=True):
            zeros = self.shift.new_zeros(images, layer.channels)
            first, second, pixels = part if part is not None else (zeros, zeros, 1)
            means.append(first / pixels)
            squares.append(second / pixels)
        self._parts = [None] * len(self.layers)
        return torch.cat(means, dim=1).double(), torch.cat(squares, dim=1).double()


class ClassMoments:
    """Accumulates the rows that `BatchRows` collects, per class and for all layers at once.

    shift: float64 [channels], already subtracted from the rows' values. momentum: None for exact moments of
    all images; else the weight of each batch in the paper's moving average.
    """

    def __init__(self, classes: int, shift: Tensor, momentum: float | None = None) -> None:
        self.shift, self.momentum = shift, momentum
        self.counts = torch.zeros(classes, dtype=torch.int64, device=shift.device)
        # Sums of means and of mean squares; or averages of means (start at 0) and of variances (start at 1).
        self._first = shift.new_zeros(classes, len(shift))
        self._second = torch.zeros_like(self._first) if momentum is None else torch.ones_like(self._first)

    def add(self, labels: Tensor, means: Tensor, squares: Tensor) -> None:
        """Add a batch: labels int64 [B], mean and mean square float64 [B, channels] of each image."""
        self.counts.index_add_(0, labels, torch.ones_like(labels))
        if self.momentum is None:
            self._first.index_add_(0, labels, means)
            self._second.index_add_(0, labels, squares)
            return
        # Sum each class in its first row. Selecting the classes would make the host wait for a GPU.
        same = labels == labels[:, None]
        row = torch.where(same, torch.arange(len(labels), device=labels.device), len(labels)).amin(dim=1)
        images, zeros = same.sum(dim=1).view(-1, 1), torch.zeros_like(means)
        mean = zeros.index_add(0, row, means)[row] / images
        variance = zeros.index_add(0, row, squares)[row] / images - mean.square()
        for average, now in ((self._first, mean + self.shift), (self._second, variance)):
            before = average[labels]
            average[labels] = before + self.momentum * (now - before)  # equal in all rows of a class

    def result(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance, float64 [classes, channels] each; exact moments of 0 images are NaN."""
        if self.momentum is not None:
            return self._first, self._second
        images = self.counts.view(-1, 1)
        mean = self._first / images
        return mean + self.shift, (self._second / images - mean.square()).clamp_(min=0)

    def state(self) -> Tensors:
        """Return the accumulators themselves, not copies."""
        return {"counts": self.counts, "first": self._first, "second": self._second}

    def load_state(self, tensors: Tensors) -> None:
        for name, tensor in self.state().items():
            tensor.copy_(tensors[name])


def gather(
    teacher: LoadedTeacher, batches: Iterable[tuple[Tensor, Tensor]], rows: BatchRows, moments: ClassMoments
) -> Iterator[int]:
    """Run the teacher on batches and add each to the moments; yield the number of images of each batch."""
    device = rows.shift.device
    with watched_inputs(rows.layers, rows.watch):
        for images, labels in batches:
            with torch.inference_mode():
                teacher.model(to_device(images, device))
                moments.add(to_device(labels, device), *rows.take(len(labels)))
            yield len(labels)


def batch_rows(teacher: LoadedTeacher) -> BatchRows:
    """Return the `BatchRows` of the teacher's BatchNorm layers; refuse a teacher that has none."""
    return BatchRows(batchnorm_layers(teacher.model, name=f"teacher {teacher.description.name}"))


def statistics_of(
    teacher: LoadedTeacher,
    rows: BatchRows,
    moments: ClassMoments,
    class_names: Sequence[str],
    settings: SqueezeSettings,
    *,
    job: dict[str, Any] | None = None,
) -> ClassStatistics:
    """Convert the moments of all classes to statistics; refuse a class without images."""
    counts = moments.counts.cpu()
    empty = (counts == 0).nonzero().flatten().tolist()
    if empty:
        more = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
        raise InvalidArgumentError(
            f"class '{class_names[empty[0]]}'{more} has no image",
            expected="at least one image per class",
            hint="add images, or remove the class from data and teacher",
        )
    sizes = [layer.channels for layer in rows.layers]
    tables = (torch.split(table.float().cpu(), sizes, dim=1) for table in moments.result())
    layers = []
    for layer, ran, means, variances in zip(rows.layers, rows.reached.tolist(), *tables, strict=True):
        if not (torch.isfinite(means).all() and torch.isfinite(variances).all()):
            raise InvalidArgumentError(
                f"inputs of BatchNorm layer '{layer.name}' are not finite",
                hint="check the teacher's weights and the normalisation of the images",
            )
        # A layer that only runs in training (an auxiliary head) has nothing to match.
        if ran:
            layers.append(
                LayerStatistics(name=layer.name, mean=means.contiguous(), variance=variances.contiguous())
            )
    return ClassStatistics(
        teacher=teacher.description,
        class_names=tuple(class_names),
        counts=counts,
        layers=tuple(layers),
        update=settings.update,
        momentum=settings.average,
        views=settings.views,
        passes=settings.passes,
        job=job,
    )


@dataclass(frozen=True, kw_only=True)
class UpdateBound:
    """required: number of batches until a moving average is stable. available: number of batches per pass."""

    required: int
    available: int
    required_passes: int
    one_pass_suffices: bool


def update_bound(*, smallest_class: int, images: int, batch_size: int, momentum: float = 0.1) -> UpdateBound:
    """Return the paper's bound on batches (equation 6). smallest_class: image count of the rarest class."""
    failure, deviation, start_error, tolerance = 0.05, 0.2, 1.0, 0.01
    appearance = 1 - (1 - smallest_class / images) ** batch_size
    # Every class must appear about as often as expected, and the average must forget its initial value.
    chernoff = -2 * math.log(failure / 2) / (deviation**2 * appearance)
    convergence = math.log(start_error / tolerance) / ((1 - deviation) * momentum * appearance)
    required, available = math.ceil(max(chernoff, convergence)), math.ceil(images / batch_size)
    return UpdateBound(
        required=required,
        available=available,
        required_passes=math.ceil(required / available),
        one_pass_suffices=available >= required,
    )


def folder_bound(folder: RealFolder, settings: SqueezeSettings) -> UpdateBound:
    """Return how many batches a folder must give before a moving average is accurate."""
    return update_bound(
        smallest_class=int(folder.counts().min()),
        images=len(folder),
        batch_size=settings.batch_size,
        momentum=settings.momentum,
    )
