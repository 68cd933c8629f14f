"""Plan an export: the file of each batch, and which trainers replay the folder exactly.

Trainers hard-code view sizes, normalisation, resize filter and image order. So a student may see other
pixels than the teacher, even if the folder is correct. A `Claim` says whether a trainer replays all views.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels.errors import LabelSourceError
from lpld_labels.format.images import ImageTable
from lpld_labels.format.records import BatchKey, ViewBatch
from lpld_labels.interop.image_ids import ERAS, Era, SampledOrders
from lpld_labels.interop.layouts import CUT_OUT_PROGRAM, GVBSM, LPLD, LPQLD, SRE2L, Layout
from lpld_labels.interop.pixels import image_sides, stored_fractions
from lpld_labels.interop.settings import DEFAULT_SAMPLER_SEED, ExportOptions
from lpld_labels.pool.reader import PoolReader


@dataclass(frozen=True, kw_only=True, eq=False)
class ExportPlan:
    """What to export. files: key and path of each batch, in key order.

    regular: whether the pool is a complete labelling run. top_k: number of labels per row; None: all.
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

    def views(self) -> Iterator[ViewBatch]:
        return (self.pool.read_views(key) for key, _ in self.files)


def plan_export(pool: PoolReader, layout: Layout, options: ExportOptions) -> ExportPlan:
    """Choose the file of each batch; refuse pools that the layout cannot hold."""
    if pool.header.label_kind != "logits":
        raise LabelSourceError(
            f"labels are {pool.header.label_kind}, the format holds logits",
            where=pool.location,
            hint="use the pool itself",
        )
    _require_types(pool, layout)
    regular, notes = _is_regular(pool), []
    keys = places = list(pool.keys)
    top_k = None
    if any(item.name == "classes" for item in layout.items):
        top_k = options.top_k or (None if pool.codec.top_k is None else pool.codec.top_k.k)
    if layout.ids == "sampler":
        _require_regular(pool, regular, "every batch of every epoch")
        notes += _sampler_notes(pool)
    elif layout.ids == "items":
        # G-VBSM's trainer expects every image in every epoch.
        complete = regular and set(_epoch_rows(pool).values()) == {len(pool.images)}
        _require_regular(pool, complete, f"all {len(pool.images)} images in every epoch")
    elif layout.ids == "batch lists":
        if top_k is None:
            notes.append("labels have all classes: the pool is not top-k and --top-k was not given")
        places = [BatchKey(0, number) for number in range(len(keys))]
    elif not regular:
        length = max(1, len(pool.images) // pool.header.batch_size)
        notes.append(f"batches renumbered, {length} per epoch: the pool is not a complete run")
        short = set(_short_batches(pool))
        keys = [key for key in keys if key not in short]
        if short:
            notes.append(f"{len(short)} incomplete batches left out")
        places = [BatchKey(*divmod(number, length)) for number in range(len(keys))]
    files = [
        (key, layout.file.format(epoch=place.epoch, batch=place.batch))
        for key, place in zip(keys, places, strict=True)
    ]
    return ExportPlan(pool=pool, layout=layout, files=files, regular=regular, top_k=top_k, notes=notes)


def _require_types(pool: PoolReader, layout: Layout) -> None:
    """Raise if the batch size, view size or number of classes is too large for the layout's dtypes."""
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
            "this format cannot hold a pruned or incomplete pool",
            where=pool.location,
            expected=expected,
            hint="use --format lpld, which stores image ids",
        )


def _sampler_notes(pool: PoolReader) -> list[str]:
    """Return a note if only old or only new PyTorch draws the pool's image order; raise if neither does."""
    fitting = _sampler_eras(pool)
    if not fitting:
        raise LabelSourceError(
            "this format stores no image ids, and the pool lacks the order it implies",
            where=pool.location,
            expected=f"the order of RandomSampler with seed {DEFAULT_SAMPLER_SEED}",
            hint="use --format lpld, which stores image ids, or build with --replayable-by sre2l",
        )
    if len(fitting) == len(ERAS):
        return []
    return [f"the image order is that of {ERAS[fitting[0]]}; train with that version"]


def _epoch_rows(pool: PoolReader) -> Counter[int]:
    rows: Counter[int] = Counter()
    for key, count in zip(pool.keys, pool.index.rows.tolist(), strict=True):
        rows[key.epoch] += count
    return rows


def _short_batches(pool: PoolReader) -> list[BatchKey]:
    size = pool.header.batch_size
    return [key for key, rows in zip(pool.keys, pool.index.rows.tolist(), strict=True) if rows != size]


def _is_regular(pool: PoolReader) -> bool:
    """Whether a pool holds a complete labelling run.

    Trainers compute a file name from a running batch number and the length of epoch 0. So every epoch but
    the last must be as long as the first, and only the last batch of an epoch may be short.
    """
    keys = list(pool.keys)
    counts = list(Counter(key.epoch for key in keys).values())
    dense = [BatchKey(epoch, batch) for epoch, length in enumerate(counts) for batch in range(length)]
    even = bool(counts) and len(set(counts[:-1])) <= 1 and counts[-1] <= counts[0]
    return keys == dense and even and all(key.batch == counts[key.epoch] - 1 for key in _short_batches(pool))


def _sampler_eras(pool: PoolReader) -> list[Era]:
    """Return the eras of PyTorch in which RandomSampler, with the programs' seed, draws the pool's order.

    Trainers draw as many images as the files of epoch 0 hold, so epoch 0 must be complete.
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


# Claims about trainers: each check returns the problems that it finds.


def _pixels(plan: ExportPlan) -> list[str]:
    """Return how a trainer's view size, resize filter and normalisation differ from the teacher's."""
    header, augmentation = plan.pool.header, plan.pool.header.augmentation
    views = {224: CUT_OUT_PROGRAM.normalisation} if plan.cut_out else plan.layout.views
    problems = []
    side = augmentation.output_height
    if side not in views or side != augmentation.output_width:
        sides = " or ".join(map(str, views))
        problems.append(f"its views have {sides} pixels, the pool's {side} x {augmentation.output_width}")
    if augmentation.resize != "pil":
        problems.append(
            f"it resizes with Pillow's bilinear filter, the teacher saw {augmentation.resize}: pixels differ "
            "(build with --replayable-by or --resize pil)"
        )
    for teacher in header.teachers if side in views else ():
        wanted = views[side]
        if teacher.mean is None or teacher.std is None:
            problems.append("the pool does not record its teacher's normalisation")
        elif not (np.allclose(teacher.mean, wanted.mean) and np.allclose(teacher.std, wanted.std)):
            given = f"mean {list(teacher.mean)}"
            problems.append(f"it normalises by mean {list(wanted.mean)}, {teacher.name} by {given}")
    return list(dict.fromkeys(problems))


def _no_cut_outs(plan: ExportPlan) -> list[str]:
    return ["it does not support cut-outs"] if plan.cut_out else []


def _mixed(plan: ExportPlan) -> list[str]:
    mixed = plan.pool.header.augmentation.mix != "none"
    return [] if mixed else ["it cannot read batches that were not mixed"]


def _first_image(plan: ExportPlan) -> list[str]:
    """Return the problems of a trainer that identifies a batch by its first image."""
    problems = []
    if shared := _shared(int(batch.images[0]) for batch in plan.views()):
        problems.append(
            f"it identifies a batch by its first image, and {shared} of {len(plan.files)} batches share "
            "theirs: two of these in one epoch get the same labels"
        )
    if sum(path.startswith("epoch_0/") for _, path in plan.files) == 1:
        problems.append("it skips epochs of one batch")
    return problems


def _first_images(plan: ExportPlan) -> list[str]:
    """Return the problems of a trainer that identifies a batch by its first three images."""
    shared = _shared(tuple(batch.images[:3].tolist()) for batch in plan.views())
    if not shared:
        return []
    return [f"{shared} of {len(plan.files)} batches begin with the same images: it refuses to start"]


def _shared(starts: Iterable[object]) -> int:
    """Return how many batches begin with the same images as another batch."""
    return sum(count for count in Counter(starts).values() if count > 1)


def _sampler_order(plan: ExportPlan) -> list[str]:
    if not plan.regular:
        return ["it draws all epochs in its sampler's order, and the pool is not a complete run"]
    eras = _sampler_eras(plan.pool)
    if not eras:
        return ["it assumes the order of its sampler, not the pool's (build with --replayable-by lpld)"]
    return [] if "new" in eras else [f"the image order is that of {ERAS['old']}: train with that version"]


def _half_precision(plan: ExportPlan) -> list[str]:
    moved, images = 0, plan.pool.images
    for batch in plan.views():
        moved += moved_crops(stored_fractions(batch, images).astype(np.float16), batch, images)
    return [f"{moved} crops are off by a pixel: half precision is too coarse for them"] if moved else []


def moved_crops(coords: npt.NDArray[np.floating[Any]], views: ViewBatch, images: ImageTable) -> int:
    """Return how many crops change when a program converts their fractions `coords`, [B, 4], to pixels.

    The programs multiply in float64; Pillow then rounds two corners, (top, left) and the opposite one.
    """
    found = coords.astype(np.float64) * image_sides(images, views.images)
    crops = views.crops.astype(np.int64)
    same_corner = np.rint(found[:, :2]) == crops[:, :2]
    same_end = np.rint(found[:, :2] + found[:, 2:]) == crops[:, :2] + crops[:, 2:]
    return int((~(same_corner & same_end).all(axis=1)).sum())


def _tail(plan: ExportPlan) -> list[str]:
    """Return a problem if the pool gives probability to classes that the exported labels leave out."""
    pool, kept = plan.pool, plan.top_k
    if kept is None:
        return []
    codec = pool.codec.top_k
    if codec is None or kept < codec.k:
        drops = kept < pool.classes
    else:
        stored = pool.read_encoded(pool.keys[0])
        drops = codec.sparse(stored.payload, rows=stored.views.rows, classes=pool.classes).tail is not None
    if not drops:
        return []
    return [
        f"labels change: it sets all but the {kept} largest to probability 0; the pool gives these the rest"
    ]


@dataclass(frozen=True)
class Trainer:
    """A program and option to train on an exported folder. It replays all views if no check finds a problem.

    option, needs: templates with {batch_size}, {epochs}, {batches}, {mix} and {quantization}.
    """

    program: str
    option: str
    checks: Sequence[Callable[[ExportPlan], list[str]]]
    needs: str = ""


_LPLD = "LPLD train_FKD_label_pruning_batch.py"
_LPLD_SIZE = "int((1 - prune_ratio) x epochs x batches of epoch 0) must not exceed {batches}"
_LPLD_LAST = "it never shows the last batch of an epoch; "
_OPTIONS = "--batch-size {batch_size}, --epochs up to {epochs}{mix}"
TRAINERS: Mapping[str, Sequence[Trainer]] = {
    SRE2L.name: [
        Trainer(
            "SRe2L train_FKD.py",
            "default",
            (_pixels, _no_cut_outs),
            f"give --fkd-path with a slash at its end, {_OPTIONS}",
        )
    ],
    LPLD.name: [
        Trainer(_LPLD, "--prune_label --granularity batch", (_pixels,), _LPLD_SIZE),
        Trainer(
            _LPLD,
            "--prune_label --granularity batch_to_epoch",
            (_pixels, _first_image),
            _LPLD_LAST + _LPLD_SIZE,
        ),
        Trainer(_LPLD, "--prune_label --granularity epoch, or no --prune_label", (_pixels, _sampler_order)),
    ],
    LPQLD.name: [
        Trainer(
            "LPQLD train_FKD_LPQLD.py",
            "--prune_label{quantization}",
            (_pixels, _first_images, _half_precision, _tail),
        )
    ],
    GVBSM.name: [
        Trainer("G-VBSM train_FKD.py", "default", (_pixels, _no_cut_outs, _mixed), f"give {_OPTIONS}")
    ],
}
"""Name of an export format (`Layout.name`) -> ways to train on a folder of that format."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Whether a program, if called with this option, replays every labelled view with the view's own label.

    why: the problems found, and options that are also required.
    """

    program: str
    option: str
    holds: bool
    why: str


def claims(plan: ExportPlan) -> tuple[Claim, ...]:
    """Return a claim for each trainer of the plan's layout."""
    header = plan.pool.header
    mix = header.augmentation.mix
    facts = {
        "batch_size": header.batch_size,
        "epochs": plan.pool.manifest.counts.epochs,
        "batches": len(plan.files),
        "mix": "" if mix == "none" else f", --mix-type {mix}",
        "quantization": "" if plan.top_k is None else f" --label_quantization MR-{plan.top_k}",
    }
    found = []
    for trainer in TRAINERS[plan.layout.name]:
        problems = [problem for check in trainer.checks for problem in check(plan)]
        needs = [trainer.needs.format(**facts)] if trainer.needs else []
        option = trainer.option.format(**facts)
        why = "; ".join(problems + needs)
        found.append(Claim(program=trainer.program, option=option, holds=not problems, why=why))
    return tuple(found)
