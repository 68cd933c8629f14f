"""FKD: one file per image with all its crops (see importers/fkd_file.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels.codecs.label_semantics import softmax
from lpld_labels.errors import LabelSourceError
from lpld_labels.format.records import BatchKey, IntArray, LabelArray
from lpld_labels.interop.exporters.base import Amount, ExportFormat
from lpld_labels.interop.exporters.batch_list import batch_items
from lpld_labels.interop.exporters.claims import Claim
from lpld_labels.interop.imported import import_parameters

HELD_BYTES = 128 * 1024**2
"""Labels gathered at a time; a pool whose batches hold the same images in every epoch is read once."""
LABEL_TYPES = {1: "smoothing", 5: "marginal_smoothing_k5", 10: "marginal_smoothing_k10"}
"""What the trainer can read: k -> its --soft_label_type."""
MAX_HALF_CLASSES = 2048
PROGRAM = "FKD train_FKD.py"


@dataclass(frozen=True, kw_only=True)
class _Crops:
    """What was gathered of one image so far, one entry a crop."""

    coords: list[npt.NDArray[np.float32]] = field(default_factory=list)
    flips: list[bool] = field(default_factory=list)
    classes: list[IntArray] = field(default_factory=list)
    values: list[LabelArray] = field(default_factory=list)


class FkdExport(ExportFormat):
    """Pools of views that were not mixed: probabilities as they are, logits through a softmax."""

    name = "fkd"
    summary = "train/CLASS/IMAGE.tar, crops and labels by image"
    label_kinds = ("probabilities", "logits")

    def prepare(self) -> Amount:
        """Refuse mixed views, uneven crops, and labels that are neither top-k nor told to become so."""
        self._check_views()
        self._k = self._kept()
        self._images_of = {key: self.pool.read_views(key).images for key in self.pool.keys}
        counts = np.zeros(len(self.pool.images), np.int64)
        for images in self._images_of.values():
            np.add.at(counts, images, 1)
        self._labelled = np.flatnonzero(counts)
        if len(set(counts[self._labelled].tolist())) != 1:
            raise LabelSourceError(
                "images have different numbers of crops",
                where=self.pool.location,
                expected="a pool of whole epochs",
                got=f"{counts[self._labelled].min()} to {counts.max()} crops of an image",
                hint="keep the pool, or do not prune it",
            )
        self._paths = _label_paths(self.pool.images.paths)
        total = sum(len(images) for images in self._images_of.values())
        return Amount(files=len(self._labelled), batches=len(self.pool), rows=total)

    def _check_views(self) -> None:
        augmentation = self.pool.header.augmentation
        if augmentation.mix != "none" or augmentation.cutout_fraction is not None:
            raise LabelSourceError(
                "this format holds crops and flips alone",
                where=self.pool.location,
                got=f"mix {augmentation.mix}, cut-out {augmentation.cutout_fraction}",
                hint="use --format lpld",
            )

    def _kept(self) -> int:
        codec, wish = self.pool.codec.top_k, self.options.top_k
        if self.pool.header.label_kind == "probabilities" and codec is not None:
            if wish not in (None, codec.k):
                raise LabelSourceError("labels are top-k already", expected=f"--top-k {codec.k}", got=wish)
            return codec.k
        if wish is None:
            raise LabelSourceError(
                "this format holds the k largest probabilities", where=self.pool.location, hint="give --top-k"
            )
        if wish > self.pool.classes:
            raise LabelSourceError(
                "--top-k is more than there are classes", expected=self.pool.classes, got=wish
            )
        if self.pool.header.label_kind == "logits":
            self.notes.append("labels are softmax at temperature 1 of the pool's logits")
        return wish

    def contents(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, list[Any]]]:
        """Gather some images at a time."""
        labelled = self._labelled[[wanted(self._paths[image]) for image in self._labelled.tolist()]]
        crops = sum(map(len, self._images_of.values())) // max(len(self._labelled), 1)
        row_bytes = self._k * 8 + 17
        at_once = max(1, HELD_BYTES // (crops * row_bytes))
        size = self.pool.header.batch_size
        at_once = max(size, at_once // size * size)
        for first in range(0, len(labelled), at_once):
            group = labelled[first : first + at_once]
            gathered = self._gathered(group)
            for image in group.tolist():
                yield self._paths[image], self._content(gathered[image])

    def _gathered(self, group: npt.NDArray[np.int64]) -> dict[int, _Crops]:
        gathered = {image: _Crops() for image in group.tolist()}
        for key, images in self._images_of.items():
            wanted = np.flatnonzero(np.isin(images, group))
            if len(wanted):
                self._add(key, wanted, gathered)
        return gathered

    def _add(self, key: BatchKey, slots: npt.NDArray[np.int64], gathered: dict[int, _Crops]) -> None:
        views = self.pool.read_views(key)
        coords, flips = batch_items(views, self.pool.images, self.pool.header.augmentation)[:2]
        values, classes = self._labels(key)
        for slot in slots.tolist():
            crops = gathered[int(views.images[slot])]
            crops.coords.append(coords[slot])
            crops.flips.append(bool(flips[slot]))
            crops.classes.append(classes[slot])
            crops.values.append(values[slot])

    def _labels(self, key: BatchKey) -> tuple[LabelArray, IntArray]:
        """Return probabilities [B, k] and their classes, largest first."""
        codec = self.pool.codec.top_k
        if self.pool.header.label_kind == "probabilities" and codec is not None:
            stored = self.pool.read_encoded(key)
            sparse = codec.sparse(stored.payload, rows=stored.views.rows, classes=self.pool.classes)
            return sparse.values, sparse.indices
        labels = self.pool.read_labels(key, dtype=np.float32)
        if self.pool.header.label_kind == "logits":
            labels = softmax(np.asarray(labels, np.float32))
        classes = np.argsort(-labels, axis=1, kind="stable")[:, : self._k].astype(np.int32)
        return np.take_along_axis(labels, classes, axis=1), classes

    def _content(self, crops: _Crops) -> list[Any]:
        """Return three arrays: coords, flips and labels of the type the pool came with."""
        coords, flips = np.stack(crops.coords), np.array(crops.flips, np.bool_)
        classes, values = np.stack(crops.classes), np.stack(crops.values)
        if self._hard:
            return [coords, flips, classes[:, 0].astype(np.int64)]
        exact = values.dtype == np.float16 and self.pool.classes <= MAX_HALF_CLASSES
        pairs = np.stack([classes, values], axis=1).astype(np.float16 if exact else np.float32)
        return [coords, flips, pairs[:, :, 0] if self._k == 1 else pairs]

    @property
    def _hard(self) -> bool:
        return import_parameters(self.pool.header).get("label_type") == "hard"

    def claims(self) -> list[Claim]:
        """Say what the trainer does with the labels; its pixels are its own."""
        kind = "hard" if self._hard else LABEL_TYPES.get(self._k)
        problems = ["it resizes crops to 224 pixels with a bilinear filter, whatever the teacher saw"]
        if kind is None:
            problems.append(f"it reads the 1, 5 or 10 largest labels, not {self._k}")
        needs = "images must lie in a folder named train"
        return [Claim.make(PROGRAM, f"--soft_label_type {kind or '?'}", problems, needs=needs)]


def _label_paths(paths: Sequence[str]) -> list[str]:
    """Return the label file of every image; the program cuts names at their first dot."""
    found = []
    for text in paths:
        path = PurePosixPath(text)
        found.append(str(PurePosixPath("train", *path.parts[:-1], path.name.split(".")[0] + ".tar")))
    if len(set(found)) != len(found):
        raise LabelSourceError(
            "two images of a class share a name up to its first dot", expected="one label file an image"
        )
    return found
