"""Exporting a pool to a folder with one file per batch, as its layout says (layouts.py)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import PurePath
from typing import Any

import numpy as np

from lpld_labels.errors import LabelSourceError
from lpld_labels.format.records import BatchKey, IntArray, LabelArray
from lpld_labels.interop.batch_file import BatchFile, batch_items
from lpld_labels.interop.claims import CLAIMS, Claim, Written, sampler_eras
from lpld_labels.interop.image_ids import ERAS
from lpld_labels.interop.label_folder import BATCH_IDS, EPOCH_IDS
from lpld_labels.interop.layouts import Layout
from lpld_labels.interop.pixels import cutouts_in_fractions, stored_fractions
from lpld_labels.interop.settings import DEFAULT_SAMPLER_SEED, ExportOptions
from lpld_labels.pool.reader import PoolReader


class BatchExport:
    """An export that is ready to be written; what the layout cannot hold is refused when it is made."""

    def __init__(self, pool: PoolReader, layout: Layout, options: ExportOptions) -> None:
        self.notes: list[str] = []
        self._pool, self._layout = pool, layout
        if pool.header.label_kind != "logits":
            raise LabelSourceError(
                f"labels are {pool.header.label_kind}, the format holds logits",
                where=pool.location,
                hint="keep the pool",
            )
        self._top_k = options.top_k or (None if pool.codec.top_k is None else pool.codec.top_k.k)
        self._require_types()
        regular = is_regular(pool)
        self._written = Written(
            pool=pool,
            layout=layout,
            files=self._places(regular),
            regular=regular,
            top_k=self._top_k if self._sparse else None,
        )
        self.batches = len(self._written.files)
        rows = dict(zip(pool.keys, pool.index.rows.tolist(), strict=True))
        self.rows = sum(rows[key] for key, _ in self._written.files)

    @property
    def _sparse(self) -> bool:
        """Whether files hold the largest labels and their classes."""
        return self._top_k is not None and any(item.name == "classes" for item in self._layout.items)

    def _require_types(self) -> None:
        """Refuse what the layout's types cannot hold."""
        header = self._pool.header
        dtypes = {item.name: item.dtype for item in self._layout.items if item.dtype}
        for name, what, value, spare in (
            ("partners", "batch size", header.batch_size, 1),
            ("box", "size of views", header.augmentation.output_height, 0),
            ("classes", "number of classes", header.classes, 1),
        ):
            limit = int(np.iinfo(dtypes[name]).max) + spare if name in dtypes else value
            if value > limit:
                raise LabelSourceError(
                    f"{what} is too large for this format",
                    where=self._pool.location,
                    expected=f"<= {limit}",
                    got=value,
                    hint="use --format lpld",
                )

    def _places(self, regular: bool) -> list[tuple[BatchKey, str]]:
        """Return the file of every batch, in key order."""
        pool, keys = self._pool, list(self._pool.keys)
        match self._layout.ids:
            case "sampler":
                self._require_sampler_order(regular)
            case "items":
                self._require_whole_epochs(regular)
            case "batch lists":
                if not self._sparse:
                    self.notes.append(
                        "labels are whole rows: the pool is not top-k and --top-k was not given"
                    )
                return [(key, f"batch_{number}.tar") for number, key in enumerate(keys)]
            case "epoch lists" if not regular:
                length = max(1, len(pool.images) // pool.header.batch_size)
                self.notes.append(f"batches numbered anew, {length} to an epoch: the pool is not a whole run")
                whole = complete_keys(pool)
                if len(whole) < len(keys):
                    self.notes.append(f"{len(keys) - len(whole)} incomplete batches left out")
                keys = [BatchKey(*divmod(number, length)) for number in range(len(whole))]
                return [(key, _epoch_file(place)) for key, place in zip(whole, keys, strict=True)]
        return [(key, _epoch_file(key)) for key in keys]

    def _require_sampler_order(self, regular: bool) -> None:
        """Refuse pools whose ids a trainer would not draw again."""
        if not regular:
            raise LabelSourceError(
                "a pruned or incomplete pool has no place in this format",
                where=self._pool.location,
                expected="every batch of every epoch",
                hint="use --format lpld, which stores image ids",
            )
        fitting = sampler_eras(self._pool)
        if not fitting:
            raise LabelSourceError(
                "this format stores no image ids, and the pool's are not those it implies",
                where=self._pool.location,
                expected=f"the order of RandomSampler with seed {DEFAULT_SAMPLER_SEED}",
                hint="use --format lpld, which stores image ids, or build with --replayable-by sre2l",
            )
        if len(fitting) < len(ERAS):
            version = ">= 1.11" if fitting[0] == "new" else "< 1.11"
            self.notes.append(f"image ids are those that PyTorch {version} draws; train with that")

    def _require_whole_epochs(self, regular: bool) -> None:
        """G-VBSM's trainer counts through the images, so every epoch must have them all."""
        pool = self._pool
        rows: dict[int, int] = {}
        for key, count in zip(pool.keys, pool.index.rows.tolist(), strict=True):
            rows[key.epoch] = rows.get(key.epoch, 0) + count
        if not regular or set(rows.values()) != {len(pool.images)}:
            raise LabelSourceError(
                "a pruned or incomplete pool has no place in this format",
                where=pool.location,
                expected=f"all {len(pool.images)} images in every epoch",
                hint="use --format lpld",
            )

    def contents(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, list[Any]]]:
        """Yield the path of every label file below the folder that is wanted, and the list it holds."""
        for key, path in self._written.files:
            if wanted(path):
                yield path, batch_items(self._batch(key), self._layout.items)

    def _batch(self, key: BatchKey) -> BatchFile:
        pool = self._pool
        views, augmentation = pool.read_views(key), pool.header.augmentation
        cutout = views.cutout
        labels, classes = self._top(key) if self._sparse else (self._dense(key), None)
        return BatchFile(
            coords=stored_fractions(views, pool.images),
            flips=views.flips,
            cutouts=None if cutout is None else cutouts_in_fractions(views, cutout, augmentation),
            mix=views.mix,
            labels=labels,
            classes=classes,
            images=views.images,
        )

    def _dense(self, key: BatchKey) -> LabelArray:
        """Return labels [B, C] as these programs store them: float16, or float32 if the pool holds that."""
        dtype = np.float32 if self._pool.codec.name == "f32" else np.float16
        with np.errstate(over="ignore"):
            labels = self._pool.read_labels(key, dtype=dtype)
        if not np.isfinite(labels).all():
            raise LabelSourceError("labels are too large for float16", where=f"{self._pool.location}, {key}")
        return labels

    def _top(self, key: BatchKey) -> tuple[LabelArray, IntArray]:
        """Return values float16 [B, k] and their classes, largest first."""
        codec, kept = self._pool.codec.top_k, self._top_k or 1
        if codec is not None and kept == codec.k:
            stored = self._pool.read_encoded(key)
            sparse = codec.sparse(stored.payload, rows=stored.views.rows, classes=self._pool.classes)
            values, classes = sparse.values, sparse.indices
        else:
            values, classes = _largest(self._pool.read_labels(key, dtype=np.float32), kept)
        return values.astype(np.float16), classes

    def id_files(self) -> dict[str, Iterator[str]]:
        """Return JSON files of image ids: name -> text in pieces."""
        files = self._written.files
        if self._layout.ids == "epoch lists":
            by_epoch = groupby(files, key=lambda file: PurePath(file[1]).parts[0].removeprefix("epoch_"))
            return {EPOCH_IDS: self._lists((epoch, [key for key, _ in part]) for epoch, part in by_epoch)}
        if self._layout.ids == "batch lists":
            return {BATCH_IDS: self._lists((str(number), [key]) for number, (key, _) in enumerate(files))}
        return {}

    def _lists(self, named: Iterable[tuple[str, list[BatchKey]]]) -> Iterator[str]:
        separator = "{"
        for name, keys in named:
            ids = [image for key in keys for image in self._pool.read_views(key).images.tolist()]
            yield f'{separator}"{name}": {json.dumps(ids)}'
            separator = ", "
        yield "}"

    def claims(self) -> list[Claim]:
        """Return what holds when the program that reads this layout trains on what was written."""
        return CLAIMS[self._layout.name](self._written)


def _epoch_file(key: BatchKey) -> str:
    return f"epoch_{key.epoch}/batch_{key.batch}.tar"


def _largest(labels: LabelArray, kept: int) -> tuple[LabelArray, IntArray]:
    """Return the largest labels of each row [B, k] and their classes, largest first."""
    if kept > labels.shape[1]:
        raise LabelSourceError("--top-k is more than there are classes", expected=labels.shape[1], got=kept)
    classes = np.argsort(-labels, axis=1, kind="stable")[:, :kept].astype(np.int32)
    return np.take_along_axis(labels, classes, axis=1), classes


def complete_keys(pool: PoolReader) -> list[BatchKey]:
    """Return the keys of batches that are not short."""
    size = pool.header.batch_size
    return [key for key, rows in zip(pool.keys, pool.index.rows.tolist(), strict=True) if rows == size]


def is_regular(pool: PoolReader) -> bool:
    """Whether a pool's keys and rows are those of a whole labelling run.

    Old trainers count batches through all epochs and divide by the length of epoch 0 to find a file again. So
    every epoch but the last must be as long as the first, and only the last batch of an epoch may be short.
    """
    keys = list(pool.keys)
    lengths: dict[int, int] = {}
    for key in keys:
        lengths[key.epoch] = lengths.get(key.epoch, 0) + 1
    counts = list(lengths.values())
    dense = [BatchKey(epoch, batch) for epoch, length in enumerate(counts) for batch in range(length)]
    ends = {BatchKey(epoch, length - 1) for epoch, length in enumerate(counts)}
    short = set(keys).difference(complete_keys(pool))
    even = len(set(counts[:-1])) <= 1 and bool(counts) and counts[-1] <= counts[0]
    return keys == dense and even and short <= ends
