"""Which batch of a pool goes into which file of a layout; refuses pools that the layout cannot hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lpld_labels.errors import LabelSourceError
from lpld_labels.format.records import BatchKey, ViewBatch
from lpld_labels.interop.image_ids import ERAS, Era, SampledOrders
from lpld_labels.interop.layouts import Layout
from lpld_labels.interop.settings import DEFAULT_SAMPLER_SEED, ExportOptions
from lpld_labels.pool.reader import PoolReader


@dataclass(frozen=True, kw_only=True, eq=False)
class ExportPlan:
    """The file of every batch, in key order.

    regular: whether they are a whole labelling run. top_k: labels kept of a row; None for whole rows.
    notes: one sentence each.
    """

    pool: PoolReader
    layout: Layout
    files: Sequence[tuple[BatchKey, str]]
    regular: bool
    top_k: int | None
    notes: Sequence[str]

    @property
    def cut_out(self) -> bool:
        return self.pool.header.augmentation.cutout_fraction is not None

    @property
    def mixed(self) -> bool:
        return self.pool.header.augmentation.mix != "none"

    def views(self) -> Iterator[ViewBatch]:
        return (self.pool.read_views(key) for key, _ in self.files)


def plan_export(pool: PoolReader, layout: Layout, options: ExportOptions) -> ExportPlan:
    """Decide where each batch goes."""
    if pool.header.label_kind != "logits":
        raise LabelSourceError(
            f"labels are {pool.header.label_kind}, the format holds logits",
            where=pool.location,
            hint="keep the pool",
        )
    _require_types(pool, layout)
    regular, notes = is_regular(pool), []
    keys = places = list(pool.keys)
    top_k = options.top_k or (None if pool.codec.top_k is None else pool.codec.top_k.k)
    if all(item.name != "classes" for item in layout.items):
        top_k = None
    if layout.ids == "sampler":
        _require_regular(pool, regular, "every batch of every epoch")
        notes += _sampler_notes(pool)
    elif layout.ids == "items":
        # G-VBSM's trainer counts through the images.
        whole = regular and set(_epoch_rows(pool).values()) == {len(pool.images)}
        _require_regular(pool, whole, f"all {len(pool.images)} images in every epoch")
    elif layout.ids == "batch lists":
        if top_k is None:
            notes.append("labels are whole rows: the pool is not top-k and --top-k was not given")
        places = [BatchKey(0, number) for number in range(len(keys))]
    elif not regular:
        length = max(1, len(pool.images) // pool.header.batch_size)
        notes.append(f"batches numbered anew, {length} to an epoch: the pool is not a whole run")
        keys = complete_keys(pool)
        if len(keys) < len(pool.keys):
            notes.append(f"{len(pool.keys) - len(keys)} incomplete batches left out")
        places = [BatchKey(*divmod(number, length)) for number in range(len(keys))]
    files = [
        (key, layout.file.format(epoch=place.epoch, batch=place.batch))
        for key, place in zip(keys, places, strict=True)
    ]
    return ExportPlan(pool=pool, layout=layout, files=files, regular=regular, top_k=top_k, notes=notes)


def _require_types(pool: PoolReader, layout: Layout) -> None:
    """Refuse what the layout's types cannot hold."""
    header = pool.header
    dtypes = {item.name: item.dtype for item in layout.items if item.dtype}
    for name, what, value, spare in (
        ("partners", "batch size", header.batch_size, 1),
        ("box", "size of views", header.augmentation.output_height, 0),
        ("classes", "number of classes", header.classes, 1),
    ):
        limit = int(np.iinfo(dtypes[name]).max) + spare if name in dtypes else value
        if value > limit:
            raise LabelSourceError(
                f"{what} is too large for this format",
                where=pool.location,
                expected=f"<= {limit}",
                got=value,
                hint="use --format lpld",
            )


def _require_regular(pool: PoolReader, regular: bool, expected: str) -> None:
    if not regular:
        raise LabelSourceError(
            "a pruned or incomplete pool has no place in this format",
            where=pool.location,
            expected=expected,
            hint="use --format lpld, which stores image ids",
        )


def _sampler_notes(pool: PoolReader) -> list[str]:
    """Refuse pools whose ids a trainer would not draw again."""
    fitting = sampler_eras(pool)
    if not fitting:
        raise LabelSourceError(
            "this format stores no image ids, and the pool's are not those it implies",
            where=pool.location,
            expected=f"the order of RandomSampler with seed {DEFAULT_SAMPLER_SEED}",
            hint="use --format lpld, which stores image ids, or build with --replayable-by sre2l",
        )
    if len(fitting) == len(ERAS):
        return []
    version = ">= 1.11" if fitting[0] == "new" else "< 1.11"
    return [f"image ids are those that PyTorch {version} draws; train with that"]


def _epoch_rows(pool: PoolReader) -> Counter[int]:
    rows: Counter[int] = Counter()
    for key, count in zip(pool.keys, pool.index.rows.tolist(), strict=True):
        rows[key.epoch] += count
    return rows


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
    counts = list(Counter(key.epoch for key in keys).values())
    dense = [BatchKey(epoch, batch) for epoch, length in enumerate(counts) for batch in range(length)]
    ends = {BatchKey(epoch, length - 1) for epoch, length in enumerate(counts)}
    short = set(keys).difference(complete_keys(pool))
    even = len(set(counts[:-1])) <= 1 and bool(counts) and counts[-1] <= counts[0]
    return keys == dense and even and short <= ends


def sampler_eras(pool: PoolReader) -> list[Era]:
    """Return the versions of PyTorch whose RandomSampler, seeded as the programs do, draws these images.

    Every batch must be at its place in its epoch. The programs count the images in the files of epoch 0
    and draw as many, so that epoch must have them all.
    """
    if _epoch_rows(pool)[0] != len(pool.images):
        return []
    return [era for era in ERAS if _drawn_by(pool, era)]


def _drawn_by(pool: PoolReader, era: Era) -> bool:
    size, orders = pool.header.batch_size, SampledOrders(len(pool.images), era=era)
    for key in pool.keys:
        expected = orders[key.epoch][key.batch * size : (key.batch + 1) * size]
        if not np.array_equal(pool.read_views(key).images, expected):
            return False
    return True
