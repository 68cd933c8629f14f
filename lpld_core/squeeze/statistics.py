"""Class-wise BatchNorm statistics of a frozen teacher, and the file that holds them."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from lpld_core.networks.weights import WeightsFile, read_weights, save_weights
from lpld_core.settings import SqueezeViews, Update
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
    """Origin of the statistics. Files of versions 1 and 2 lack the fields with defaults.

    update, views, passes: see SqueezeSettings. momentum: None unless update is ema. job: see `squeeze_job`.
    """

    teacher: Teacher
    class_names: tuple[str, ...]
    update: Update
    momentum: float | None
    views: SqueezeViews = "centre"
    passes: int = 1
    job: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class _Header(_About):
    """Metadata of a statistics file. layers: names of the BatchNorm layers."""

    kind: str
    version: int
    layers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassStatistics(_About):
    """Statistics per class at the teacher's BatchNorm layers. counts: int64 [classes], number of views."""

    counts: Tensor
    layers: tuple[LayerStatistics, ...]

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def nbytes(self) -> int:
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
        """Write a safetensors file, atomically; within: see `write_atomically`."""
        tensors = {"counts": self.counts}
        for layer in self.layers:
            tensors[f"{layer.name}.mean"] = layer.mean
            tensors[f"{layer.name}.variance"] = layer.variance
        names = tuple(layer.name for layer in self.layers)
        header = _Header(kind=KIND, version=VERSION, layers=names, **_about(self))
        save_weights(path, tensors, asdict(header), within=within)

    @staticmethod
    def load(path: str | Path) -> ClassStatistics:
        """Read a file that `save` wrote; refuse other files."""
        try:
            file = read_weights(path)
        except InvalidArgumentError as error:
            raise _not_statistics(path, error.problem) from None
        if file.about.get("kind") != KIND:
            raise _not_statistics(path, "it holds other data")
        try:
            header = msgspec.convert(file.about, _Header)
        except msgspec.ValidationError as error:
            raise _not_statistics(path, str(error)) from None
        if header.version > VERSION:
            reason = f"its version is {header.version}, this program reads up to {VERSION}"
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
        teacher.require_classes(self.classes, "statistics")
        ours, theirs = self.teacher, teacher.description
        if ours.weights_digest != theirs.weights_digest:
            raise InvalidArgumentError(
                "the statistics are of a different teacher",
                expected=f"weights {(theirs.weights_digest or 'unknown')[:12]} ({theirs.name})",
                got=f"{(ours.weights_digest or 'unknown')[:12]} ({ours.name})",
                hint="run squeeze again with this teacher, or use the teacher of the statistics",
            )


def _about(found: _About) -> dict[str, Any]:
    return {entry.name: getattr(found, entry.name) for entry in fields(_About)}


def _not_statistics(path: str | Path, reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"not a statistics file ({reason})", where=path, hint="make one with: lpld-labels squeeze"
    )


def _tensor(file: WeightsFile, name: str, classes: int, *, dimensions: int = 2) -> Tensor:
    tensor = file.tensors.get(name)
    if tensor is None or tensor.ndim != dimensions or len(tensor) != classes:
        raise ManifestError(
            f"tensor '{name}' is missing or has the wrong shape",
            where=file.path,
            expected=f"{dimensions} dimensions, the first of size {classes}",
            got="nothing" if tensor is None else list(tensor.shape),
            hint="make the file again with: lpld-labels squeeze",
        )
    if not torch.isfinite(tensor).all():
        raise ManifestError(f"tensor '{name}' is not finite", where=file.path, hint="run squeeze again")
    return tensor
