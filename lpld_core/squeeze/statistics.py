"""Class-wise BatchNorm statistics of a frozen teacher, and the file that holds them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from lpld_core.networks.batchnorm import batchnorm_layers
from lpld_core.networks.weights import WeightsFile, read_weights, save_weights
from lpld_core.squeeze.moments import BatchRows, ClassMoments, gather
from lpld_core.squeeze.settings import SqueezeSettings, Update, Views
from lpld_core.teachers.teacher import LoadedTeacher
from lpld_labels.errors import InvalidArgumentError, ManifestError
from lpld_labels.format.manifest import Teacher

KIND = "class-statistics"
VERSION = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerStatistics:
    """Statistics at one BatchNorm layer: mean and biased variance, float32 [classes, channels]."""

    name: str
    mean: Tensor
    variance: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class _About:
    """What decided statistics. Fields with defaults are absent in files of versions 1 and 2.

    teacher: whose layers. class_names: folder names in class order. update, views, passes: see
    SqueezeSettings. momentum: of ema, else None. job: see `squeeze_job`; None where that is not known.
    """

    teacher: Teacher
    class_names: tuple[str, ...]
    update: Update
    momentum: float | None
    views: Views = "centre"
    passes: int = 1
    job: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class _Header(_About):
    """What a file says beside its tensors. layers: their names."""

    kind: str
    version: int
    layers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassStatistics(_About):
    """What the teacher's BatchNorm layers saw of each class. counts: int64 [classes], views seen."""

    counts: Tensor
    layers: tuple[LayerStatistics, ...]

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
        names = tuple(layer.name for layer in self.layers)
        header = _Header(kind=KIND, version=VERSION, layers=names, **_about(self))
        save_weights(path, tensors, asdict(header), within=within)

    @staticmethod
    def load(path: str | Path) -> ClassStatistics:
        """Read a file that `save` wrote; anything else is refused with its path."""
        try:
            file = read_weights(path)
        except InvalidArgumentError as error:
            raise _not_statistics(path, error.problem) from None
        if file.about.get("kind") != KIND:
            raise _not_statistics(path, "it holds something else")
        try:
            header = msgspec.convert(file.about, _Header)
        except msgspec.ValidationError as error:
            raise _not_statistics(path, str(error)) from None
        if header.version > VERSION:
            reason = f"written as version {header.version}, this program reads {VERSION}"
            raise _not_statistics(path, reason)
        classes = len(header.class_names)
        return ClassStatistics(
            counts=_tensor(file, "counts", classes, dimensions=1),
            layers=tuple(
                LayerStatistics(
                    name=layer,
                    mean=_tensor(file, f"{layer}.mean", classes),
                    variance=_tensor(file, f"{layer}.variance", classes),
                )
                for layer in header.layers
            ),
            **_about(header),
        )

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


def _about(found: _About) -> dict[str, Any]:
    return {entry.name: getattr(found, entry.name) for entry in fields(_About)}


def collect_statistics(
    teacher: LoadedTeacher,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    class_names: Sequence[str],
    update: Update = "exact",
    momentum: float = 0.1,
    progress: Callable[[int], None] | None = None,
) -> ClassStatistics:
    """Run batches through the teacher once and return the statistics of every class.

    batches: normalised images float [B, 3, H, W] and labels int64 [B]. update: "exact", the moments over all
    batches; or "ema", the paper's moving average (which depends on their order).
    progress: called with the number of images done after each batch.
    """
    SqueezeSettings(update=update, momentum=momentum)  # refuses invalid ones
    require_same_classes(teacher, class_names)
    rows = BatchRows(batchnorm_layers(teacher.model, name=f"teacher {teacher.description.name}"))
    moments = ClassMoments(teacher.classes, rows.shift, momentum if update == "ema" else None)
    for _ in gather(teacher, batches, rows, moments):
        if progress is not None:
            progress(int(moments.counts.sum()))
    return statistics_of(teacher, rows, moments, class_names)


def statistics_of(
    teacher: LoadedTeacher, rows: BatchRows, moments: ClassMoments, class_names: Sequence[str]
) -> ClassStatistics:
    """Return moments of all classes as statistics; refuse a class without images."""
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
                f"BatchNorm layer '{layer.name}' saw values that are not finite",
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
        update="exact" if moments.momentum is None else "ema",
        momentum=moments.momentum,
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


def _short(digest: str | None) -> str:
    return "unknown" if digest is None else digest[:12]


def _not_statistics(path: str | Path, reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"not a statistics file ({reason})", where=path, hint="make one with: lpld-labels squeeze"
    )


def _tensor(file: WeightsFile, name: str, classes: int, *, dimensions: int = 2) -> Tensor:
    tensor = file.tensors.get(name)
    if tensor is None or tensor.ndim != dimensions or len(tensor) != classes:
        raise ManifestError(
            f"tensor '{name}' is wrong",
            where=file.path,
            expected=f"first dimension {classes}",
            got="nothing" if tensor is None else list(tensor.shape),
            hint="make the file again with: lpld-labels squeeze",
        )
    if not torch.isfinite(tensor).all():
        raise ManifestError(f"tensor '{name}' is not finite", where=file.path, hint="squeeze again")
    return tensor
