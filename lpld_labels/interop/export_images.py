"""Exporting a pool to FKD's folder: one file per image with all its crops (import_images.py has the form)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels.codecs.label_semantics import softmax
from lpld_labels.errors import LabelSourceError
from lpld_labels.format.records import BatchKey, IntArray, LabelArray
from lpld_labels.interop.claims import Claim, fkd_claims
from lpld_labels.interop.export_batches import largest, require_label_kinds
from lpld_labels.interop.import_images import MAX_HALF_CLASSES
from lpld_labels.interop.pixels import stored_fractions
from lpld_labels.interop.settings import ExportOptions, import_parameters
from lpld_labels.pool.reader import PoolReader

HELD_BYTES = 128 * 1024**2
"""Labels gathered at a time; a pool whose batches hold the same images in every epoch is read once."""

_Crop = tuple[npt.NDArray[np.float32], bool, IntArray, LabelArray]
"""Fractions, flip, classes, values: what is known of one crop."""


class ImageExport:
    """An export that is ready to be written: probabilities as they are, logits through a softmax.

    Mixed views, uneven crops, and labels that are neither top-k nor to become so are refused when it is made.
    """

    def __init__(self, pool: PoolReader, options: ExportOptions) -> None:
        self.notes: list[str] = []
        self._pool = pool
        require_label_kinds(pool, "probabilities", "logits")
        self._require_plain_views()
        self._k = self._kept(options.top_k)
        self._hard = import_parameters(pool.header).get("label_type") == "hard"
        self._images_of = {key: pool.read_views(key).images for key in pool.keys}
        self.batches, self.rows = len(pool), sum(map(len, self._images_of.values()))
        counts = np.zeros(len(pool.images), np.int64)
        for images in self._images_of.values():
            np.add.at(counts, images, 1)
        self._labelled = np.flatnonzero(counts)
        self.files = len(self._labelled)
        if len(set(counts[self._labelled].tolist())) != 1:
            raise LabelSourceError(
                "images have different numbers of crops",
                where=pool.location,
                expected="a pool of whole epochs",
                got=f"{counts[self._labelled].min()} to {counts.max()} crops of an image",
                hint="keep the pool, or do not prune it",
            )
        self._paths = _label_paths(pool.images.paths)

    def _require_plain_views(self) -> None:
        augmentation = self._pool.header.augmentation
        if augmentation.mix != "none" or augmentation.cutout_fraction is not None:
            raise LabelSourceError(
                "this format holds crops and flips alone",
                where=self._pool.location,
                got=f"mix {augmentation.mix}, cut-out {augmentation.cutout_fraction}",
                hint="use --format lpld",
            )

    def _kept(self, wish: int | None) -> int:
        pool, codec = self._pool, self._pool.codec.top_k
        if pool.header.label_kind == "probabilities" and codec is not None:
            if wish not in (None, codec.k):
                raise LabelSourceError("labels are top-k already", expected=f"--top-k {codec.k}", got=wish)
            return codec.k
        if wish is None:
            raise LabelSourceError(
                "this format holds the k largest probabilities", where=pool.location, hint="give --top-k"
            )
        if wish > pool.classes:
            raise LabelSourceError("--top-k is more than there are classes", expected=pool.classes, got=wish)
        if pool.header.label_kind == "logits":
            self.notes.append("labels are softmax at temperature 1 of the pool's logits")
        return wish

    def contents(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, list[Any]]]:
        """Yield the path of every label file that is wanted, and what it holds; some images at a time."""
        labelled = [image for image in self._labelled.tolist() if wanted(self._paths[image])]
        crops = self.rows // max(self.files, 1)
        size = self._pool.header.batch_size
        at_once = max(size, HELD_BYTES // (crops * (self._k * 8 + 17)) // size * size)
        for first in range(0, len(labelled), at_once):
            for image, gathered in self._gathered(labelled[first : first + at_once]).items():
                yield self._paths[image], self._content(gathered)

    def _gathered(self, group: list[int]) -> dict[int, list[_Crop]]:
        """Return the crops of some images, in key order."""
        gathered: dict[int, list[_Crop]] = {image: [] for image in group}
        for key, images in self._images_of.items():
            slots = np.flatnonzero(np.isin(images, group))
            if not len(slots):
                continue
            views = self._pool.read_views(key)
            coords = stored_fractions(views, self._pool.images)
            values, classes = self._labels(key)
            for slot in slots.tolist():
                crop = coords[slot], bool(views.flips[slot]), classes[slot], values[slot]
                gathered[int(images[slot])].append(crop)
        return gathered

    def _labels(self, key: BatchKey) -> tuple[LabelArray, IntArray]:
        """Return probabilities [B, k] and their classes, largest first."""
        pool, codec = self._pool, self._pool.codec.top_k
        if pool.header.label_kind == "probabilities" and codec is not None:
            stored = pool.read_encoded(key)
            sparse = codec.sparse(stored.payload, rows=stored.views.rows, classes=pool.classes)
            return sparse.values, sparse.indices
        labels = pool.read_labels(key, dtype=np.float32)
        if pool.header.label_kind == "logits":
            labels = softmax(np.asarray(labels, np.float32))
        return largest(labels, self._k)

    def _content(self, crops: list[_Crop]) -> list[Any]:
        """Return three arrays: coords, flips and labels of the type the pool came with."""
        coords, flips, classes, values = (np.stack(part) for part in zip(*crops, strict=True))
        if self._hard:
            return [coords, flips, classes[:, 0].astype(np.int64)]
        exact = values.dtype == np.float16 and self._pool.classes <= MAX_HALF_CLASSES
        pairs = np.stack([classes, values], axis=1).astype(np.float16 if exact else np.float32)
        return [coords, flips, pairs[:, :, 0] if self._k == 1 else pairs]

    def id_files(self) -> dict[str, Iterator[str]]:
        """Return no files: the paths of label files name their images."""
        return {}

    def claims(self) -> list[Claim]:
        """Return what holds when FKD's trainer trains on what was written."""
        return fkd_claims(hard=self._hard, kept=self._k)


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
