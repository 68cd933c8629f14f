"""LPQLD: batch lists numbered through, in small types, image ids of every batch in a JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from lpld_labels.errors import LabelSourceError
from lpld_labels.foreign.exporters.base import ExportFile, ExportFormat
from lpld_labels.foreign.exporters.batch_list import batch_items
from lpld_labels.foreign.label_folder import BATCH_IDS
from lpld_labels.format.records import BatchKey, LabelArray

MAX_UINT8 = 255
MAX_CLASSES = 2**15


class LpqldExport(ExportFormat):
    """Any pool, its batches numbered in key order; top-k labels stay top-k."""

    name = "lpqld"
    summary = "batch_N.tar with sampler_indices_batch.json"

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
        coords, second, partners, strength, box = batch_items(
            self.pool.read_views(key), self.pool.images, self.pool.header.augmentation
        )
        return [
            coords.astype(np.float16),
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

    def id_files(self, files: list[ExportFile]) -> dict[str, Iterator[str]]:
        """Return the ids of every batch, as the program writes them."""
        return {BATCH_IDS: self._ids(files)}

    def _ids(self, files: list[ExportFile]) -> Iterator[str]:
        for number, file in enumerate(files):
            ids = self.pool.read_views(file.key).images.tolist()
            yield f'{", " if number else "{"}"{number}": {json.dumps(ids)}'
        yield "}"


def _largest(labels: LabelArray, k: int) -> tuple[LabelArray, Any]:
    if k > labels.shape[1]:
        raise LabelSourceError("--top-k is more than there are classes", expected=labels.shape[1], got=k)
    classes = np.argsort(-labels, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(labels, classes, axis=1), classes
