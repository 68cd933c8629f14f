"""Importing folders with one file per batch: which files become which batches, and reading them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lpld_labels.errors import ImageMismatchError, InvalidBatchError, LabelFileError, LabelSourceError
from lpld_labels.format.images import ImageTable
from lpld_labels.format.records import BatchKey, IntArray, ViewBatch, check_labels
from lpld_labels.interop.batch_file import BatchFile, Item, read_batch_file
from lpld_labels.interop.evidence import chosen_era
from lpld_labels.interop.image_ids import IdLists, SampledOrders
from lpld_labels.interop.import_target import Request, Target, batch_target
from lpld_labels.interop.label_folder import BATCH_IDS, EPOCH_IDS, LabelFolder
from lpld_labels.interop.layouts import Layout
from lpld_labels.interop.pixels import crops_in_pixels, cutouts_in_pixels, exact_sizes
from lpld_labels.pool.plan import Shard, cut_evenly, raw_batches_per_shard
from lpld_labels.pool.shard import EncodedBatch, Skipped

_FREE_EPOCHS = 1000
_EPOCHS_PER_FOLDER = 16
"""Epochs that a folder may speak of: these, and so many for each that has files."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Places:
    """Where the batches of a folder are, and the image ids of their rows.

    rows: of each batch, in key order. lists: image ids by epoch; None where the files hold them.
    numbers: of each batch where they are numbered through; `lists` then are by number.
    """

    root: Path
    batch_size: int
    rows: Mapping[BatchKey, int]
    lists: SampledOrders | IdLists | None
    numbers: Mapping[BatchKey, int] | None = None

    @staticmethod
    def by_epoch(
        root: Path, batch_size: int, counts: Mapping[int, int], lists: SampledOrders | IdLists | None
    ) -> Places:
        """Return the places of batches in epoch folders. counts: rows of each epoch."""
        rows = {
            BatchKey(epoch, batch): min(batch_size, count - first)
            for epoch, count in counts.items()
            for batch, first in enumerate(range(0, count, batch_size))
        }
        return Places(root=root, batch_size=batch_size, rows=rows, lists=lists)

    def path(self, key: BatchKey) -> Path:
        """Return the file of a batch."""
        if self.numbers is not None:
            return self.root / f"batch_{self.numbers[key]}.tar"
        return self.root / f"epoch_{key.epoch}" / f"batch_{key.batch}.tar"

    def ids(self, key: BatchKey) -> IntArray | None:
        """Return the image ids of a batch; None where its file holds them."""
        if self.lists is None:
            return None
        if self.numbers is not None:
            return self.lists[self.numbers[key]]
        first = key.batch * self.batch_size
        return self.lists[key.epoch][first : first + self.rows[key]]


# Reading


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchFiles:
    """The batches of a folder, a file each; items are their keys.

    skip_bad: leave out files that are damaged or missing, instead of stopping at the first.
    """

    layout: Layout
    places: Places
    target: Target
    skip_bad: bool

    def __call__(self, keys: Sequence[BatchKey]) -> Iterator[EncodedBatch | Skipped]:
        for key in keys:
            try:
                yield read_encoded(key, self.places, self.layout, self.target)
            except (LabelFileError, InvalidBatchError) as error:
                if not self.skip_bad:
                    raise
                yield Skipped(self.places.path(key).relative_to(self.places.root).as_posix(), error.problem)

    def shards(self) -> list[Shard]:
        """Return the work: batches in key order."""
        return cut_evenly(list(self.places.rows), raw_batches_per_shard(self.target.header))

    def item(self, key: BatchKey) -> BatchKey:
        """Return the item that gives a batch."""
        return key


def read_encoded(key: BatchKey, places: Places, layout: Layout, target: Target) -> EncodedBatch:
    """Read the file of a batch. Raises LabelFileError or InvalidBatchError for a file that is no use."""
    path = places.path(key)
    batch = read_batch_file(path, layout.items)
    _require_like_others(batch, places.rows[key], target, path)
    images = places.ids(key)
    if images is None:
        if batch.images is None:
            raise LabelFileError("batch holds no image ids", where=path)
        images = batch.images
        check_ids(images, target.images, where=path)
    views = ViewBatch(
        key=key,
        images=images,
        crops=crops_in_pixels(
            batch.coords,
            target.images.heights[images],
            target.images.widths[images],
            images,
            where=str(path),
        ),
        flips=batch.flips,
        mix=batch.mix,
        cutout=None
        if batch.cutouts is None
        else cutouts_in_pixels(batch.cutouts, target.header.augmentation.output_height, where=str(path)),
    )
    check_labels(batch.labels, key, images)
    top = target.codec.top_k
    if top is not None and batch.classes is not None:
        encoded = top.encode_sparse(batch.labels, batch.classes, None, classes=target.header.classes)
    else:
        encoded = target.codec.encode(batch.labels)
    return EncodedBatch.make(views, encoded)


def _require_like_others(batch: BatchFile, rows: int, target: Target, path: Path) -> None:
    """Refuse a batch that differs from the rest of its folder."""
    header, top = target.header, target.codec.top_k
    side = header.augmentation.output_height
    facts = {
        "rows": (rows, batch.rows),
        "columns of labels": (header.classes if top is None else top.k, batch.labels.shape[1]),
        "type of labels": (
            np.dtype(target.codec.native_dtype) if top is None else top.value_dtype,
            batch.labels.dtype,
        ),
        "top-k classes": (top is not None, batch.classes is not None),
        "mixing": (header.augmentation.mix, batch.mix_kind),
        "cut-outs": (header.augmentation.cutout_fraction is not None, batch.cutouts is not None),
    }
    for what, (expected, got) in facts.items():
        if expected != got:
            hint = "batch sizes may differ only in the last batch of an epoch" if what == "rows" else ""
            raise LabelFileError(
                f"batch differs from the others: {what}",
                where=path,
                expected=expected,
                got=got,
                hint=hint or "this file belongs to another run",
            )
    if batch.classes is not None:
        check_classes(int(batch.classes.max()), target, where=path)
    box = None if batch.mix is None else batch.mix.box
    if box is not None and max(box) > side:
        raise LabelSourceError(
            "mix box reaches outside the view",
            where=path,
            expected=f"sides up to {side}",
            got=list(box),
            hint="give the size of the views with --output-size",
        )


def check_classes(highest: int, target: Target, *, where: Path) -> None:
    """Refuse class numbers beyond the pool's classes."""
    if highest >= target.header.classes:
        raise LabelSourceError(
            f"labels speak of class {highest}",
            where=where,
            expected=f"classes below {target.header.classes}",
            hint="give the number of classes with --classes",
        )


def check_ids(ids: IntArray, images: ImageTable, *, where: Path) -> None:
    """Refuse image ids beyond the image folder."""
    if len(ids) and int(ids.max()) >= len(images):
        raise ImageMismatchError(
            f"labels speak of image {int(ids.max())}",
            where=where,
            expected=f"ids below the {len(images)} images of the folder",
            hint="give the folder of the images that were labelled",
        )


def first_readable(files: Iterable[Path], items: tuple[Item, ...]) -> BatchFile:
    """Return the first batch that can be read; raise the first error if none can."""
    problem: LabelFileError | None = None
    for path in files:
        try:
            return read_batch_file(path, items)
        except LabelFileError as error:
            problem = problem or error
    raise problem or LabelSourceError("no batch files")


# Planning


def plan_batches(request: Request, *, skip_bad: bool) -> tuple[BatchFiles, dict[str, Any]]:
    """Decide what the pool will be and where its batches are; return also results for its lineage."""
    layout, folder = request.layout, request.folder
    files = folder.files(layout.files)
    if not files:
        raise LabelSourceError("no label files of this layout", where=folder.root, expected=layout.summary)
    sample = first_readable(files, layout.items)
    places, recorded = _PLACES[layout.ids](request, sample)
    extra = sorted(folder.by_epoch.keys() - places.rows.keys())
    if extra:
        raise LabelSourceError(
            f"{len(extra)} files have no place in their epoch, the first is {extra[0]}",
            where=folder.by_epoch[extra[0]],
            expected=f"{sum(key.epoch == extra[0].epoch for key in places.rows)} batches in this epoch",
            hint="another run's files may be among them, or the image folder is the wrong one",
        )
    there = set(files)
    missing = [path for path in map(places.path, places.rows) if path not in there]
    if missing and not skip_bad:
        raise LabelSourceError(
            f"{len(missing)} of {len(places.rows)} label files are missing",
            where=missing[0],
            hint="copy the folder again, or go on without them with --skip-bad",
        )
    target = batch_target(request, sample, places.batch_size)
    return BatchFiles(layout=layout, places=places, target=target, skip_bad=skip_bad), recorded


def _in_sampler_order(request: Request, sample: BatchFile) -> tuple[Places, dict[str, Any]]:
    """Rebuild the order of images for the version of PyTorch that is given or fits the labels."""
    batch_size, counts = epoch_sizes(request, sample)
    era = chosen_era(request, batch_size)
    orders = SampledOrders(len(request.images), era=era, seed=request.options.sampler_seed)
    return Places.by_epoch(request.folder.root, batch_size, counts, orders), {"torch_era": era}


def _with_ids_inside(request: Request, sample: BatchFile) -> tuple[Places, dict[str, Any]]:
    batch_size, counts = epoch_sizes(request, sample)
    return Places.by_epoch(request.folder.root, batch_size, counts, None), {}


def _by_epoch_lists(request: Request, sample: BatchFile) -> tuple[Places, dict[str, Any]]:
    """Take image ids from LPLD's file; every list must fit the files and the image folder.

    The program may label one epoch more than asked for and stop within the last one.
    """
    notes, images = request.notes, request.images
    lists = _id_lists(request, EPOCH_IDS, "or use --format sre2l")
    labelled = {key.epoch for key in request.folder.by_epoch}
    _require_lists(lists, labelled, "epoch")
    # The program often lists epochs after the last labelled one; an epoch missing before it is a loss.
    counts, repeating = {}, []
    for epoch in (number for number in lists.numbers if number <= max(labelled)):
        ids = lists[epoch]
        check_ids(ids, images, where=lists.path)
        counts[epoch] = len(ids)
        if len(ids) and int(np.bincount(ids).max()) > 1:
            repeating.append(epoch)
    longest = max(counts.values())
    batch_size = min(sample.rows, longest)
    check_image_count(request, longest, batch_size, where=lists.path)
    notes.found.append(f"{len(counts)} epochs, image ids stored for each")
    if len(lists.numbers) > len(counts):
        notes.odd.append(f"image ids of {len(lists.numbers) - len(counts)} epochs that have no labels")
    if short := sum(rows < longest for rows in counts.values()):
        notes.odd.append(f"{short} epochs are shorter than the others")
    if repeating:
        which = f"epoch {repeating[0]} shows"
        if len(repeating) > 1:
            which = f"{len(repeating)} epochs, the first {repeating[0]}, show"
        notes.odd.append(f"{which} an image more than once, as epochs of a pruned pool do")
    return Places.by_epoch(request.folder.root, batch_size, counts, lists), {}


def _by_batch_lists(request: Request, sample: BatchFile) -> tuple[Places, dict[str, Any]]:
    """Take image ids from LPQLD's file and cut the row of batches into epochs.

    The folder has no epochs. They follow from the ids: an image is seen once an epoch, so a new epoch
    starts with the first batch that holds an image a second time.
    """
    images, notes = request.images, request.notes
    lists = _id_lists(request, BATCH_IDS, "copy it with the labels")
    _require_lists(lists, set(request.folder.numbered), "batch")
    numbers, rows, sizes = {}, {}, [0]
    batch, seen = 0, np.zeros(len(images), np.bool_)
    for number in lists.numbers:
        ids = lists[number]
        check_ids(ids, images, where=lists.path)
        if len(ids) == 0 or len(np.unique(ids)) != len(ids):
            raise LabelSourceError(f"batch {number} is empty or names an image twice", where=lists.path)
        if seen[ids].any():
            batch = 0
            sizes.append(0)
            seen[:] = False
        seen[ids] = True
        key = BatchKey(len(sizes) - 1, batch)
        numbers[key], rows[key] = number, len(ids)
        batch += 1
        sizes[-1] += len(ids)
    batch_size = max(rows.values())
    check_image_count(request, max(sizes), batch_size, where=lists.path)
    notes.found.append(f"{len(numbers)} batches, image ids stored for each")
    notes.assumed.append(f"{len(sizes)} epochs: one ends where an image would come again")
    largest = max(int(images.heights.max()), int(images.widths.max()))
    if largest > exact_sizes(sample.coords.dtype):
        notes.odd.append(
            f"{sample.coords.dtype} crops cannot tell all pixels of a {largest} pixel image apart: "
            "crops of the largest images may be off by a pixel"
        )
    root = request.folder.root
    return Places(root=root, batch_size=batch_size, rows=rows, lists=lists, numbers=numbers), {}


_PLACES: Mapping[str, Callable[[Request, BatchFile], tuple[Places, dict[str, Any]]]] = {
    "sampler": _in_sampler_order,
    "items": _with_ids_inside,
    "epoch lists": _by_epoch_lists,
    "batch lists": _by_batch_lists,
}
"""`Layout.ids` -> who finds out where batches and image ids are."""


def _id_lists(request: Request, name: str, hint: str) -> IdLists:
    path = request.folder.root / name
    if not path.is_file():
        raise LabelSourceError("image ids are missing", where=request.folder.root, expected=name, hint=hint)
    return IdLists(path)


def _require_lists(lists: IdLists, labelled: set[int], what: str) -> None:
    missing = sorted(labelled - set(lists.numbers))
    if missing:
        raise LabelSourceError(
            f"no image ids for {what} {missing[0]}", where=lists.path, hint="restore this file"
        )


def epoch_sizes(request: Request, sample: BatchFile) -> tuple[int, dict[int, int]]:
    """Return the batch size and the rows of every epoch from 0 to the last one that has a file.

    An epoch is as long as the longest one found. Only the last may stop early: its end is not known.
    """
    folder, notes = request.folder, request.notes
    lengths: dict[int, int] = {}
    for key in folder.by_epoch:
        lengths[key.epoch] = max(lengths.get(key.epoch, 0), key.batch + 1)
    _refuse_far_epochs(lengths, folder)
    longest, final = max(lengths.values()), max(lengths)
    last_files = [path for key, path in folder.by_epoch.items() if key.batch == longest - 1]
    tail = first_readable(last_files, request.layout.items)
    batch_size = max(sample.rows, tail.rows)
    seen = (longest - 1) * batch_size + tail.rows
    check_image_count(request, seen, batch_size, where=folder.root)
    counts = dict.fromkeys(range(final + 1), seen)
    notes.found.append(f"{final + 1} epochs of {longest} batches, {seen} images each")
    if lengths[final] < longest:
        counts[final] = lengths[final] * batch_size
        notes.odd.append(f"epoch {final}, the last, stops after {lengths[final]} of {longest} batches")
    return batch_size, counts


def _refuse_far_epochs(lengths: Mapping[int, int], folder: LabelFolder) -> None:
    """Refuse a lone folder of a far epoch: all epochs before it would be planned, and found missing."""
    most = _FREE_EPOCHS + _EPOCHS_PER_FOLDER * len(lengths)
    if max(lengths) >= most:
        raise LabelSourceError(
            f"epoch {max(lengths)} is far beyond the {len(lengths)} epochs that have files",
            where=folder.root,
            expected=f"epochs below {most}",
            hint="another run's files may be among them",
        )


def check_image_count(request: Request, seen: int, batch_size: int, *, where: Path) -> None:
    """Refuse an image folder that cannot be the one an epoch of `seen` images was drawn from."""
    images = len(request.images)
    # A program that drops its last incomplete batch leaves out fewer images than a batch holds.
    if seen > images or (images - seen >= batch_size and not request.options.allow_extra_images):
        more = "; or say --allow-extra-images" if seen < images else ""
        raise ImageMismatchError(
            "the image folder has another number of images than the labels",
            where=where,
            expected=f"{seen} images, as in one epoch of labels",
            got=images,
            hint=f"give the folder of the images that were labelled{more}",
        )
