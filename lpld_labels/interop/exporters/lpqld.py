"""LPQLD: batch lists numbered through, in small types, image ids of every batch in a JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from lpld_labels.errors import LabelSourceError
from lpld_labels.format.records import BatchKey, LabelArray
from lpld_labels.interop.exporters.base import BatchExport, ExportFile
from lpld_labels.interop.exporters.batch_list import batch_items
from lpld_labels.interop.exporters.claims import Claim, moved_crops, pixel_problems, shared_starts
from lpld_labels.interop.exporters.lpld import CUT_OUT_TRAINERS, TRAINERS
from lpld_labels.interop.label_folder import BATCH_IDS

MAX_UINT8 = 255
MAX_CLASSES = 2**15


PROGRAM = "LPQLD train_FKD_LPQLD.py"
KEY_IMAGES = 3
"""The trainer knows a batch by its first three images."""


class LpqldExport(BatchExport):
    """Any pool, its batches numbered in key order; top-k labels stay top-k."""

    name = "lpqld"
    summary = "batch_N.tar with sampler_indices_batch.json"

    _moved = 0
    """Crops that half precision moves, counted as batches are written."""

    def files(self) -> list[ExportFile]:
        """Number the batches in key order; refuse what the format's small types cannot hold."""
        header = self.pool.header
        limits = {
            "batch size": (header.batch_size, MAX_UINT8 + 1),
            "size of views": (header.augmentation.output_height, MAX_UINT8),
            "number of classes": (header.classes, MAX_CLASSES),
        }
        for what, (value, limit) in limits.items():
            if value > limit:
                raise LabelSourceError(
                    f"{what} is too large for this format",
                    where=self.pool.location,
                    expected=f"<= {limit}",
                    got=value,
                    hint="use --format lpld",
                )
        if not self._sparse:
            self.notes.append("labels are whole rows: the pool is not top-k and --top-k was not given")
        return [ExportFile(key=key, path=f"batch_{n}.tar") for n, key in enumerate(self.pool.keys)]

    @property
    def _sparse(self) -> bool:
        return self.pool.codec.top_k is not None or self.options.top_k is not None

    def content(self, key: BatchKey) -> list[Any]:
        """Return seven items, or six with whole rows."""
        views = self.pool.read_views(key)
        coords, second, partners, strength, box = batch_items(
            views, self.pool.images, self.pool.header.augmentation
        )
        half = coords.astype(np.float16)
        self._moved += moved_crops(half, views, self.pool.images)
        return [
            half,
            second,
            None if partners is None else partners.astype(np.uint8),
            strength,
            None if box is None else [np.array(side, np.uint8) for side in box],
            *(self._top(key) if self._sparse else [self.dense(key)]),
        ]

    def _top(self, key: BatchKey) -> list[Any]:
        """Return values float16 [B, k] and classes int16 [B, k], largest first."""
        codec, k = self.pool.codec.top_k, self.options.top_k
        if codec is not None and k in (None, codec.k):
            stored = self.pool.read_encoded(key)
            values, classes, _ = codec.sparse(
                stored.payload, rows=stored.views.rows, classes=self.pool.classes
            )
        else:
            values, classes = _largest(self.pool.read_labels(key, dtype=np.float32), k or 1)
        return [values.astype(np.float16), classes.astype(np.int16)]

    def id_files(self) -> dict[str, Iterator[str]]:
        """Return the ids of every batch, as the program writes them."""
        return {BATCH_IDS: self._ids()}

    def _ids(self) -> Iterator[str]:
        for number, file in enumerate(self.chosen):
            ids = self.pool.read_views(file.key).images.tolist()
            yield f'{", " if number else "{"}"{number}": {json.dumps(ids)}'
        yield "}"

    def claims(self) -> list[Claim]:
        """Say it for the trainer's way to read labels that fits what was written."""
        header = self.pool.header
        cut_out = header.augmentation.cutout_fraction is not None
        problems = pixel_problems(header, CUT_OUT_TRAINERS if cut_out else TRAINERS)
        starts = [tuple(self.pool.read_views(file.key).images[:KEY_IMAGES].tolist()) for file in self.chosen]
        if shared := shared_starts(starts):
            problems.append(
                f"{shared} of {len(starts)} batches begin with the same images: it refuses to start"
            )
        if self._moved:
            problems.append(f"{self._moved} crops are off by a pixel: half precision is too coarse for them")
        option = f"--prune_label --label_quantization MR-{self._k}" if self._sparse else "--prune_label"
        if self._sparse and self._drops_tail():
            problems.append(
                f"labels change: all but the {self._k} largest get probability 0 there, here they have the "
                "rest of it"
            )
        return [Claim.make(PROGRAM, option, problems)]

    @property
    def _k(self) -> int:
        codec = self.pool.codec.top_k
        return self.options.top_k or (self.pool.classes if codec is None else codec.k)

    def _drops_tail(self) -> bool:
        """Whether classes that are left out have a level of their own in the pool."""
        codec = self.pool.codec.top_k
        if codec is None or self._k < codec.k:
            return self._k < self.pool.classes
        stored = self.pool.read_encoded(self.pool.keys[0])
        sparse = codec.sparse(stored.payload, rows=stored.views.rows, classes=self.pool.classes)
        return sparse.tail is not None


def _largest(labels: LabelArray, k: int) -> tuple[LabelArray, Any]:
    if k > labels.shape[1]:
        raise LabelSourceError("--top-k is more than there are classes", expected=labels.shape[1], got=k)
    classes = np.argsort(-labels, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(labels, classes, axis=1), classes
