"""Class-wise BatchNorm statistics of a frozen teacher: gathered in one pass, kept in one file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

import torch
from torch import Tensor

from lpld_core.networks.batchnorm import BatchNormLayer, batchnorm_layers
from lpld_core.networks.weights import WeightsFile, read_weights, save_weights
from lpld_core.squeeze.moments import ClassMoments, ExactMoments, Gatherer, GroupMoments, RunningMoments
from lpld_core.squeeze.settings import SqueezeSettings, Update, Views
from lpld_core.squeeze.unfinished_moments import UnfinishedMoments
from lpld_core.teachers.teacher import LoadedTeacher
from lpld_labels.errors import InvalidArgumentError, ManifestError
from lpld_labels.format.json_fields import FieldReader
from lpld_labels.format.manifest import Teacher

KIND = "class-statistics"
VERSION = 3
"""Version 2 says views and passes; what version 1 describes are centre views of one pass. Version 3 says
what decided the statistics, so that the same squeeze knows them again."""
LabelledImages = Iterable[tuple[Tensor, Tensor]]
"""Batches of normalised images float [B, 3, H, W] and labels int64 [B]."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerStatistics:
    """Statistics at one BatchNorm layer: mean and biased variance, float32 [classes, channels]."""

    name: str
    mean: Tensor
    variance: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassStatistics:
    """What the teacher's BatchNorm layers saw of each class.

    teacher: whose layers. class_names: folder names in class order. counts: int64 [classes], views seen.
    update, views, passes: see SqueezeSettings. momentum: of ema, else None.
    job: what decided them (see `squeeze_job`), as JSON values; None where that is not known.
    """

    teacher: Teacher
    class_names: tuple[str, ...]
    counts: Tensor
    layers: tuple[LayerStatistics, ...]
    update: Update
    momentum: float | None
    views: Views = "centre"
    passes: int = 1
    job: dict[str, Any] | None = None

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def nbytes(self) -> int:
        """Bytes of all means and variances."""
        return sum(layer.mean.nbytes + layer.variance.nbytes for layer in self.layers)

    def digest(self) -> str:
        """Return the hex SHA-256 over all means and variances."""
        state = hashlib.sha256()
        for layer in self.layers:
            state.update(layer.name.encode())
            for tensor in (layer.mean, layer.variance):
                state.update(tensor.contiguous().numpy().data)
        return state.hexdigest()

    def save(self, path: str | Path, *, within: Path | None = None) -> None:
        """Write everything as one safetensors file, atomically; within: see `write_atomically`."""
        tensors = {"counts": self.counts}
        for layer in self.layers:
            tensors[f"{layer.name}.mean"] = layer.mean
            tensors[f"{layer.name}.variance"] = layer.variance
        about = {
            "kind": KIND,
            "version": VERSION,
            "teacher": {
                "name": self.teacher.name,
                "weights_digest": self.teacher.weights_digest,
                "mean": list(self.teacher.mean or ()),
                "std": list(self.teacher.std or ()),
            },
            "class_names": list(self.class_names),
            "layers": [layer.name for layer in self.layers],
            "update": self.update,
            "momentum": self.momentum,
            "views": self.views,
            "passes": self.passes,
            "job": self.job,
        }
        save_weights(path, tensors, about, within=within)

    @staticmethod
    def load(path: str | Path) -> ClassStatistics:
        """Read a file that `save` wrote; anything else is refused with its path."""
        try:
            file = read_weights(path)
        except InvalidArgumentError as error:
            raise _not_statistics(path, error.problem) from None
        return _parse(file)

    def check_teacher(self, teacher: LoadedTeacher) -> None:
        """Refuse a teacher these statistics were not taken from."""
        if self.classes != teacher.classes:
            raise InvalidArgumentError(
                "statistics and teacher differ in their number of classes",
                expected=f"{teacher.classes} (the teacher's)",
                got=f"{self.classes} in the statistics",
                hint="squeeze with this teacher on the data it was trained on",
            )
        if self.teacher.weights_digest != teacher.description.weights_digest:
            raise InvalidArgumentError(
                "statistics were taken from another teacher",
                expected=f"weights {_short(teacher.description.weights_digest)} ({teacher.description.name})",
                got=f"{_short(self.teacher.weights_digest)} ({self.teacher.name})",
                hint="run squeeze again with this teacher, or recover with that one",
            )


def collect_statistics(
    teacher: LoadedTeacher,
    batches: LabelledImages,
    *,
    class_names: Sequence[str],
    update: Update = "exact",
    momentum: float = 0.1,
    progress: Callable[[int], None] | None = None,
    unfinished: UnfinishedMoments | None = None,
) -> ClassStatistics:
    """Run the batches through the teacher once and return the statistics of every class.

    update: "exact", the moments over all batches; or "ema", the paper's moving average (which depends
    on the order of the batches). progress: called with the number of images done after each batch.
    unfinished: where moments are kept on their way; `batches` are those it does not have yet.
    """
    SqueezeSettings(update=update, momentum=momentum)  # refuses what neither is
    require_same_classes(teacher, class_names)
    gatherer = Gatherer(teacher)
    rows = gatherer.rows
    moments: ClassMoments
    if update == "exact":
        moments = ExactMoments(teacher.classes, rows.shift)
    else:
        moments = RunningMoments(teacher.classes, rows.shift, momentum)
    if unfinished is not None:
        rows.reached |= unfinished.restore(moments)
    done = int(moments.counts.sum())
    for count in gatherer.gather(batches, moments):
        done += count
        if unfinished is not None:
            unfinished.passed_batch(moments, rows.reached)
        if progress is not None:
            progress(done)
    mean, variance = moments.result()
    found = GroupMoments(mean=mean, variance=variance, counts=moments.counts, reached=frozenset(rows.reached))
    statistics = exact_statistics(teacher, found, class_names=class_names)
    return replace(statistics, update=update, momentum=momentum if update == "ema" else None)


def exact_statistics(
    teacher: LoadedTeacher, moments: GroupMoments, *, class_names: Sequence[str]
) -> ClassStatistics:
    """Return the moments of all classes as statistics of a teacher; refuse a class without images."""
    counts = moments.counts.cpu()
    _refuse_empty_classes(counts, class_names)
    layers = batchnorm_layers(teacher.model, name=f"teacher {teacher.description.name}")
    return ClassStatistics(
        teacher=teacher.description,
        class_names=tuple(class_names),
        counts=counts,
        # A layer that only runs in training (an auxiliary head) has nothing to match.
        layers=tuple(layer for n, layer in enumerate(_by_layer(layers, moments)) if n in moments.reached),
        update="exact",
        momentum=None,
    )


def require_same_classes(teacher: LoadedTeacher, class_names: Sequence[str]) -> None:
    """Refuse data with another number of classes than the teacher's."""
    if len(class_names) != teacher.classes:
        raise InvalidArgumentError(
            "teacher and data differ in their number of classes",
            expected=f"{teacher.classes} (the teacher's)",
            got=f"{len(class_names)} class folders",
            hint="use the data this teacher was trained on",
        )


def _by_layer(layers: Sequence[BatchNormLayer], moments: GroupMoments) -> Iterator[LayerStatistics]:
    sizes = [layer.channels for layer in layers]
    tables = (moments.mean, moments.variance)
    parts = (torch.split(table.float().cpu(), sizes, dim=1) for table in tables)
    for layer, mean, variance in zip(layers, *parts, strict=True):
        if not (torch.isfinite(mean).all() and torch.isfinite(variance).all()):
            raise InvalidArgumentError(
                f"BatchNorm layer '{layer.name}' saw values that are not finite",
                hint="check the teacher's weights and the normalisation of the images",
            )
        yield LayerStatistics(name=layer.name, mean=mean.contiguous(), variance=variance.contiguous())


def _refuse_empty_classes(counts: Tensor, class_names: Sequence[str]) -> None:
    empty = (counts == 0).nonzero().flatten().tolist()
    if empty:
        more = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
        raise InvalidArgumentError(
            f"class '{class_names[empty[0]]}'{more} has no image",
            expected="at least one image per class",
            hint="add images, or remove the class from data and teacher",
        )


def _short(digest: str | None) -> str:
    return "unknown" if digest is None else digest[:12]


def _not_statistics(path: str | Path, reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"not a statistics file ({reason})", where=path, hint="make one with: lpld-labels squeeze"
    )


def _parse(file: WeightsFile) -> ClassStatistics:
    if file.about.get("kind") != KIND:
        raise _not_statistics(file.path, "it holds something else")
    reader = FieldReader(file.about, where=str(file.path))
    reader.text("kind")
    version = reader.integer("version", minimum=1)
    if version > VERSION:
        raise _not_statistics(file.path, f"written as version {version}, this program reads {VERSION}")
    teacher = reader.nested("teacher", Teacher.parse)
    names = reader.strings("class_names")
    statistics = ClassStatistics(
        teacher=teacher,
        class_names=names,
        counts=_tensor(file, "counts", (len(names),)),
        layers=tuple(
            LayerStatistics(
                name=layer,
                mean=_tensor(file, f"{layer}.mean", (len(names), None)),
                variance=_tensor(file, f"{layer}.variance", (len(names), None)),
            )
            for layer in reader.strings("layers")
        ),
        update=cast("Update", reader.text("update", choices=get_args(Update))),
        momentum=reader.optional("momentum", reader.number),
        views="centre" if version == 1 else cast("Views", reader.text("views", choices=get_args(Views))),
        passes=1 if version == 1 else reader.integer("passes", minimum=1),
        job=None if version < 3 else reader.optional("job", reader.mapping),
    )
    reader.finish()
    return statistics


def _tensor(file: WeightsFile, name: str, shape: tuple[int | None, ...]) -> Tensor:
    tensor = file.tensors.get(name)
    if tensor is None or tensor.ndim != len(shape) or tensor.shape[0] != shape[0]:
        raise ManifestError(
            f"tensor '{name}' is wrong",
            where=file.path,
            expected=f"first dimension {shape[0]}",
            got="nothing" if tensor is None else list(tensor.shape),
            hint="make the file again with: lpld-labels squeeze",
        )
    if not torch.isfinite(tensor).all():
        raise ManifestError(f"tensor '{name}' is not finite", where=file.path, hint="squeeze again")
    return tensor
