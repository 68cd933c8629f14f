"""Import folders with one file per batch: map files to batches and read them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lpld_labels.errors import ImageMismatchError, InvalidBatchError, LabelFileError, LabelSourceError
from lpld_labels.format.images import ImageTable
from lpld_labels.format.records import BatchKey, IntArray, ViewBatch, check_labels
from lpld_labels.interop.batch_file import BatchFile, parse_batch, read_batch_file, read_batches
from lpld_labels.interop.image_ids import ERAS, Era, IdLists, SampledOrders
from lpld_labels.interop.import_target import Request, Target, batch_target, first_readable
from lpld_labels.interop.layouts import HALD, Layout
from lpld_labels.interop.pixels import crops_in_pixels, cutouts_in_pixels, exact_sizes, image_sides
from lpld_labels.pool.plan import Shard, cut_evenly, raw_batches_per_shard
from lpld_labels.pool.shard import EncodedBatch, Skipped

_SUM_TOLERANCE = 0.01  # For rounding to float16.
_FREE_EPOCHS = 1000
_EPOCHS_PER_FOLDER = 16
"""Epoch numbers must be below _FREE_EPOCHS + _EPOCHS_PER_FOLDER x (number of epochs that have files)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Places:
    """The batches of a folder: their files and the image ids of their rows.

    rows: row count of each batch, in key order. numbers: file numbers, if these continue across epochs.
    lists: image ids by epoch, or by file number if `numbers` is given; None if label files contain them.
    """

    batch_size: int
    rows: Mapping[BatchKey, int]
    lists: SampledOrders | IdLists | None
    numbers: Mapping[BatchKey, int] | None = None

    def file(self, key: BatchKey, layout: Layout) -> str:
        batch = key.batch if self.numbers is None else self.numbers[key]
        return layout.file.format(epoch=key.epoch, batch=batch)

    def ids(self, key: BatchKey) -> IntArray | None:
        """Return the image ids of a batch; None if its label file contains them."""
        if self.lists is None:
            return None
        if self.numbers is not None:
            return self.lists[self.numbers[key]]
        first = key.batch * self.batch_size
        return self.lists[key.epoch][first : first + self.rows[key]]


def _rows_by_epoch(batch_size: int, counts: Mapping[int, int]) -> dict[BatchKey, int]:
    return {
        BatchKey(epoch, batch): min(batch_size, count - first)
        for epoch, count in counts.items()
        for batch, first in enumerate(range(0, count, batch_size))
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchFiles:
    """Source of batches for a `PoolPlan`, called with batch keys.

    round_down: see `crops_in_pixels`. skip_bad: skip damaged or missing files.
    """

    root: Path
    layout: Layout
    places: Places
    target: Target
    round_down: bool
    skip_bad: bool

    def __call__(self, keys: Sequence[BatchKey]) -> Iterator[EncodedBatch | Skipped]:
        for file, group in groupby(keys, lambda key: self.places.file(key, self.layout)):
            members = list(group)
            try:
                saved = self._saved(file, members)
            except LabelFileError as error:
                yield self._skipped(file, error)
                continue
            for key, content in zip(members, saved, strict=True):
                place = file if "{batch}" in self.layout.file else f"{file}, batch {key.batch}"
                try:
                    yield self._encoded(key, content, self.root / place)
                except (LabelFileError, InvalidBatchError) as error:
                    yield self._skipped(place, error)

    def _skipped(self, place: str, error: LabelFileError | InvalidBatchError) -> Skipped:
        if not self.skip_bad:
            raise error
        return Skipped(place, error.problem)

    def _saved(self, file: str, keys: Sequence[BatchKey]) -> list[object]:
        """Return the saved contents of each batch. All of these batches are in `file`."""
        saved = read_batches(self.root / file, self.layout.file)
        if "{batch}" in self.layout.file:
            return saved
        planned = sum(key.epoch == keys[0].epoch for key in self.places.rows)
        if len(saved) != planned:
            problem = "the file and the image ids differ in their number of batches"
            raise LabelFileError(problem, where=self.root / file, expected=planned, got=len(saved))
        return [saved[key.batch] for key in keys]

    def shards(self) -> list[Shard]:
        return cut_evenly(list(self.places.rows), raw_batches_per_shard(self.target.header))

    def item(self, key: BatchKey) -> BatchKey:
        return key

    def _encoded(self, key: BatchKey, saved: object, path: Path) -> EncodedBatch:
        target = self.target
        batch = parse_batch(saved, self.layout.items, where=path)
        _require_like_others(batch, self.places.rows[key], target, path)
        images = self.places.ids(key)
        if images is None:
            if batch.images is None:
                raise LabelFileError("label file contains no image ids", where=path)
            images = batch.images
            check_ids(images, target.images, where=path)
        cutout = None
        if batch.cutouts is not None:
            cutout = cutouts_in_pixels(batch.cutouts, target.header.augmentation.output_height, where=path)
        views = ViewBatch(
            key=key,
            images=images,
            crops=crops_in_pixels(
                batch.coords, image_sides(target.images, images), images, where=path, down=self.round_down
            ),
            flips=batch.flips,
            mix=batch.mix,
            cutout=cutout,
        )
        check_labels(batch.labels, key, images, target.header.label_kind)
        if target.header.label_kind == "probabilities":
            _require_probabilities(batch, path)
        top = target.codec.top_k
        if top is not None and batch.classes is not None:
            encoded = top.encode_sparse(batch.labels, batch.classes, None, classes=target.header.classes)
        else:
            encoded = target.codec.encode(batch.labels)
        return EncodedBatch.make(views, encoded)


def _require_probabilities(batch: BatchFile, path: Path) -> None:
    sums = batch.labels.sum(axis=1, dtype=np.float64)
    worst = float(sums[np.abs(sums - 1).argmax()])
    if abs(worst - 1) > _SUM_TOLERANCE:
        hint = "the program wrote logits, if its softmax was removed: they cannot be imported"
        raise LabelFileError(
            "labels are not probabilities", where=path, expected="rows that sum to 1", got=worst, hint=hint
        )


def _require_like_others(batch: BatchFile, rows: int, target: Target, path: Path) -> None:
    augmentation, top = target.header.augmentation, target.codec.top_k
    columns, dtype = target.header.classes, np.dtype(target.codec.native_dtype)
    if top is not None:
        columns, dtype = top.k, top.value_dtype
    facts = {
        "number of rows": (rows, batch.rows),
        "number of label columns": (columns, batch.labels.shape[1]),
        "dtype of labels": (dtype, batch.labels.dtype),
        "use of top-k classes": (top is not None, batch.classes is not None),
        "kind of mixing": (augmentation.mix, batch.mix_kind),
        "use of cut-outs": (augmentation.cutout_fraction is not None, batch.cutouts is not None),
    }
    for what, (expected, got) in facts.items():
        if expected != got:
            hint = "this file belongs to a different run"
            if what == "number of rows":
                hint = "only the last batch of an epoch may have a different size"
            raise LabelFileError(
                f"{what} differs from the other batches", where=path, expected=expected, got=got, hint=hint
            )
    if batch.classes is not None:
        target.require_class(int(batch.classes.max()), where=path)
    box = None if batch.mix is None else batch.mix.box
    if box is not None and max(box) > augmentation.output_height:
        raise LabelSourceError(
            "mix box reaches outside the view",
            where=path,
            expected=f"coordinates up to {augmentation.output_height}",
            got=list(box),
            hint="give the size of the views with --output-size",
        )


def check_ids(ids: IntArray, images: ImageTable, *, where: Path) -> None:
    """Raise if an image id is not below the number of images. where: the file to name in the message."""
    if len(ids) and int(ids.max()) >= len(images):
        raise ImageMismatchError(
            f"labels refer to image {int(ids.max())}",
            where=where,
            expected=f"ids below {len(images)}, the number of images in the folder",
            hint="give the folder of the images that were labelled",
        )


def plan_batches(request: Request, *, skip_bad: bool) -> BatchFiles:
    """Plan the pool that the import writes, and find the file of each batch."""
    layout, root = request.layout, request.folder.root
    files = request.folder.files(layout)
    if not files:
        raise LabelSourceError("no label files of this layout", where=root, expected=layout.summary)
    _require_expressible(request)
    sample = first_readable(
        files, lambda path: parse_batch(read_batches(path, layout.file)[0], layout.items, where=path)
    )
    round_down = _rounds_down(request, sample)
    places = _PLACES[layout.ids](request, sample)
    if places.numbers is None and (extra := sorted(request.batches.keys() - places.rows.keys())):
        raise LabelSourceError(
            f"{len(extra)} files are beyond the end of their epoch, the first is {extra[0]}",
            where=request.batches[extra[0]],
            expected=f"{sum(key.epoch == extra[0].epoch for key in places.rows)} batches in this epoch",
            hint="the folder may contain files of a different run, or --images is the wrong folder",
        )
    planned = dict.fromkeys(root / places.file(key, layout) for key in places.rows)
    there = set(files)
    missing = [path for path in planned if path not in there]
    if missing and not skip_bad:
        raise LabelSourceError(
            f"{len(missing)} of {len(planned)} label files are missing",
            where=missing[0],
            hint="copy the folder again, or skip the files with --skip-bad",
        )
    target = batch_target(request, sample, places.batch_size)
    return BatchFiles(
        root=root, layout=layout, places=places, target=target, round_down=round_down, skip_bad=skip_bad
    )


def _require_expressible(request: Request) -> None:
    """Refuse non-square images if the layout needs square ones, and row weights unless they are dropped."""
    layout, notes, options = request.layout, request.notes, request.options
    images = request.images
    if layout.square and (uneven := np.flatnonzero(images.heights != images.widths)).size:
        raise ImageMismatchError(
            "an image is not square",
            where=images.paths[uneven[0]],
            expected=f"square images: {layout.name} divides rows by the width of the image",
            got=f"{images.heights[uneven[0]]} x {images.widths[uneven[0]]} pixels",
        )
    if any(item.name == "weights" for item in layout.items):
        what = f"{layout.name}'s trainer multiplies the loss of each row by a weight"
        if not options.drop_weights:
            raise LabelSourceError(
                f"pools cannot store weights of rows: {what}",
                where=request.folder.root,
                hint="use --drop-weights to import the rest; sample_weights.txt has the weights",
            )
        notes.odd.append(f"the weights are dropped: {what}")


def _rounds_down(request: Request, sample: BatchFile) -> bool:
    """Return whether to round crops down (see `crops_in_pixels`). Add notes on the crops to the report."""
    layout, images, notes = request.layout, request.images, request.notes
    largest = max(int(images.heights.max()), int(images.widths.max()))
    if largest > exact_sizes(sample.coords.dtype):
        notes.odd.append(
            f"{sample.coords.dtype} crops cannot address every pixel of a {largest}-pixel image: "
            "crops of the largest images may be off by one pixel"
        )
    round_down = layout is HALD and request.options.crops == "replayed"
    if layout is HALD:
        whose = "HALD's trainer, which rounds pixels down" if round_down else "the teacher"
        notes.assumed.append(f"crops of {whose} (--crops)")
        notes.odd.append(
            "HALD runs teachers with BatchNorm in training mode, except on images of RDED: "
            "`verify --teacher` will not confirm other labels"
        )
    return round_down


def _without_lists(request: Request, sample: BatchFile) -> Places:
    """Return the `Places` of a layout in which label files hold the image ids, or a sampler draws them."""
    batch_size, counts = epoch_sizes(request, sample)
    orders = None
    if request.layout.ids == "sampler":
        request.notes.results["torch_era"] = era = _chosen_era(request, batch_size)
        orders = SampledOrders(len(request.images), era=era, seed=request.options.sampler_seed)
    return Places(batch_size=batch_size, rows=_rows_by_epoch(batch_size, counts), lists=orders)


def _by_epoch_lists(request: Request, sample: BatchFile) -> Places:
    """Return `Places` with lists of image ids by epoch. Epochs may be short, and some may have no labels."""
    notes = request.notes
    labelled = {key.epoch for key in request.batches}
    hint = "copy it with the labels" if request.layout is HALD else "or use --format sre2l"
    lists = _id_lists(request, labelled, "epoch", hint)
    # The program often lists further epochs, which come after the last labelled epoch.
    counts, repeating = {}, []
    for epoch in (number for number in lists.numbers if number <= max(labelled)):
        ids = lists[epoch]
        check_ids(ids, request.images, where=lists.path)
        counts[epoch] = len(ids)
        if len(ids) and int(np.bincount(ids).max()) > 1:
            repeating.append(epoch)
    longest = max(counts.values())
    if longest == 0:
        raise LabelSourceError("lists of image ids are empty", where=lists.path, hint="restore this file")
    batch_size = min(sample.rows, longest)
    check_image_count(request, longest, batch_size, where=lists.path)
    notes.found.append(f"{len(counts)} epochs, image ids stored for each")
    if len(lists.numbers) > len(counts):
        notes.odd.append(f"image ids of {len(lists.numbers) - len(counts)} epochs that have no labels")
    if short := sum(rows < longest for rows in counts.values()):
        notes.odd.append(f"{short} epochs are shorter than the others")
    if repeating:
        which = f"{len(repeating)} of {len(counts)} epochs, the first {repeating[0]}"
        notes.odd.append(f"an image occurs more than once in {which}, as in epochs of a pruned pool")
    return Places(batch_size=batch_size, rows=_rows_by_epoch(batch_size, counts), lists=lists)


def _by_batch_lists(request: Request, sample: BatchFile) -> Places:
    """Return `Places` with LPQLD's image ids. A batch that would repeat an image begins a new epoch."""
    images, notes = request.images, request.notes
    lists = _id_lists(request, {key.batch for key in request.batches}, "batch", "copy it with the labels")
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
    return Places(batch_size=batch_size, rows=rows, lists=lists, numbers=numbers)


_PLACES: Mapping[str, Callable[[Request, BatchFile], Places]] = {
    "sampler": _without_lists,
    "items": _without_lists,
    "epoch lists": _by_epoch_lists,
    "batch lists": _by_batch_lists,
}


def _id_lists(request: Request, labelled: set[int], what: str, hint: str) -> IdLists:
    """Open the file of image ids, which must have a list for every labelled epoch or batch."""
    if not request.folder.has_ids(request.layout):
        name = request.layout.ids_file
        raise LabelSourceError("image ids are missing", where=request.folder.root, expected=name, hint=hint)
    lists = IdLists(request.folder.root / request.layout.ids_file)
    if missing := sorted(labelled - set(lists.numbers)):
        problem = f"no image ids for {what} {missing[0]}"
        raise LabelSourceError(problem, where=lists.path, hint="restore this file")
    return lists


def epoch_sizes(request: Request, sample: BatchFile) -> tuple[int, dict[int, int]]:
    """Return the batch size, and the number of rows by epoch. Only the last epoch may have fewer rows."""
    folder, notes = request.folder, request.notes
    lengths = {key.epoch: key.batch + 1 for key in request.batches}  # Sorted: an epoch's last batch wins.
    longest, final = max(lengths.values()), max(lengths)
    most = _FREE_EPOCHS + _EPOCHS_PER_FOLDER * len(lengths)
    if final >= most:  # Else all epochs before it would be planned and reported missing.
        raise LabelSourceError(
            f"epoch {final} is far beyond the {len(lengths)} epochs that have files",
            where=folder.root,
            expected=f"epochs below {most}",
            hint="the folder may contain files of a different run",
        )
    last_files = [path for key, path in request.batches.items() if key.batch == longest - 1]
    tail = first_readable(last_files, partial(read_batch_file, items=request.layout.items))
    batch_size = max(sample.rows, tail.rows)
    seen = (longest - 1) * batch_size + tail.rows
    check_image_count(request, seen, batch_size, where=folder.root)
    counts = dict.fromkeys(range(final + 1), seen)
    notes.found.append(f"{final + 1} epochs of {longest} batches, {seen} images each")
    if lengths[final] < longest:
        counts[final] = lengths[final] * batch_size
        notes.odd.append(f"epoch {final}, the last, stops after {lengths[final]} of {longest} batches")
    return batch_size, counts


def check_image_count(request: Request, seen: int, batch_size: int, *, where: Path) -> None:
    """Refuse an image folder that does not fit an epoch of `seen` images."""
    images = len(request.images)
    # A program that drops an incomplete last batch leaves out fewer than `batch_size` images.
    if seen > images or (images - seen >= batch_size and not request.options.allow_extra_images):
        more = "; or pass --allow-extra-images" if seen < images else ""
        raise ImageMismatchError(
            "the image folder and the labels differ in their number of images",
            where=where,
            expected=f"{seen} images, as in one epoch of labels",
            got=images,
            hint=f"give the folder of the images that were labelled{more}",
        )


# Infer the order of image ids from the labels: in the right order, rows of epochs 0 and 1 that belong to the
# same image correlate; in a wrong order, they do not.

_WANTED_PAIRS = 400  # Enough to tell a correlation of 0.05 from zero.
_ENOUGH_PAIRS = 16
_CERTAIN = 5.0  # A correlation this many standard errors above zero is not chance.


class _Agreement(NamedTuple):
    """Correlation of labels of the same image, if image ids have a given order. error: standard error."""

    mean: float
    error: float
    pairs: int


def _chosen_era(request: Request, batch_size: int) -> Era:
    """Return the PyTorch version (see ERAS) of the options; "auto" infers it from the labels or fails."""
    options, notes = request.options, request.notes
    found = _agreement_by_era(request, batch_size)
    parts = [f"{of.mean:.2f} +- {of.error:.2f} if {era}, {of.pairs} pairs" for era, of in found.items()]
    agreement = f"agreement of labels of the same image is {'; '.join(parts)}"
    era: Era = "new"
    if options.torch_era != "auto":
        era, why = options.torch_era, ", as given (--torch-era)"
    elif found:
        era = max(ERAS, key=lambda era: found[era].mean)
        why = ", which fits the labels; `verify --teacher` can prove it"
        notes.found.append(agreement)
    else:
        why = "; the folder is too small to tell (--torch-era)"
    if found and found[era].mean <= _CERTAIN * found[era].error:
        if options.torch_era == "auto":
            raise LabelSourceError(
                "no known order of image ids fits the labels",
                where=request.folder.root,
                expected="labels of the same image to agree between epochs 0 and 1",
                got=agreement,
                hint="check --images and --sampler-seed, or force an order with --torch-era",
            )
        notes.odd.append(f"the labels do not support these image ids: {agreement}")
    seeded = f"RandomSampler, seed {options.sampler_seed}"
    notes.assumed.append(f"image ids of {seeded}, {ERAS[era]}{why}")
    return era


def _agreement_by_era(request: Request, batch_size: int) -> dict[Era, _Agreement]:
    """Return the agreement of epochs 0 and 1 for each PyTorch version (see ERAS); {} if pairs are too few."""
    images = len(request.images)
    # m rows of each epoch have m * m / images images in common, on average.
    batches = math.ceil(math.sqrt(_WANTED_PAIRS * images) / batch_size)
    first, second = (_directions(request, epoch, batches, batch_size) for epoch in (0, 1))
    if first is None or second is None:
        return {}
    (rows, places), (other_rows, other_places) = first, second
    similarity = rows @ other_rows.T
    found = {}
    for era in ERAS:
        orders = SampledOrders(images, era=era, seed=request.options.sampler_seed)
        matched = similarity[orders[0][places][:, None] == orders[1][other_places]]
        if len(matched) < _ENOUGH_PAIRS:
            return {}
        error = float(matched.std() / math.sqrt(len(matched)))
        found[era] = _Agreement(float(matched.mean()), error, len(matched))
    return found


def _directions(
    request: Request, epoch: int, batches: int, batch_size: int
) -> tuple[npt.NDArray[np.float32], IntArray] | None:
    """Return the label directions and image positions of up to `batches` batches of an epoch.

    Directions: float32 [n, C], labels minus row and column means, with rows scaled to length 1.
    Positions: int32 [n], place in the epoch, from 0, of the image with the greater weight in each view.
    """
    labels: list[npt.NDArray[np.float32]] = []
    places: list[IntArray] = []
    for key, path in request.batches.items():
        if key.epoch == epoch and len(labels) < batches:
            try:
                batch = read_batch_file(path, request.layout.items)
            except LabelFileError:
                continue
            slots = np.arange(batch.rows, dtype=np.int32)
            if batch.mix is not None and batch.mix.strength < 0.5:
                slots = batch.mix.partner
            labels.append(batch.labels.astype(np.float32))
            places.append(key.batch * batch_size + slots)
    if not labels:
        return None
    rows = np.concatenate(labels)
    rows -= rows.mean(axis=1, keepdims=True)
    rows -= rows.mean(axis=0)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return rows, np.concatenate(places)
