"""What holds when another program trains on an exported folder, and why not where it does not.

The programs have view sizes, normalisations, resize code and image orders built in. A folder can be
whole and correct and still show a student other pixels than the teacher saw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import PoolHeader
from lpld_labels.format.records import BatchKey, ViewBatch
from lpld_labels.interop.image_ids import ERAS, Era, SampledOrders
from lpld_labels.interop.layouts import CUT_OUT_PROGRAM, Layout, Normalisation
from lpld_labels.interop.pixels import stored_fractions
from lpld_labels.pool.reader import PoolReader


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What one program, called with one option, does with an exported folder.

    holds: whether every view is replayed as it was labelled and gets its own label.
    why: what the program has to be told, or what goes wrong.
    """

    program: str
    option: str
    holds: bool
    why: str

    @staticmethod
    def make(program: str, option: str, problems: Sequence[str], *, needs: str = "") -> Claim:
        """Return a claim that holds if there are no problems; `needs` is what the caller has to do."""
        return Claim(
            program=program, option=option, holds=not problems, why="; ".join([*problems, needs]).strip("; ")
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Written:
    """An exported folder: the file of every batch, in key order.

    regular: whether they are a whole labelling run. top_k: labels kept of a row; None for whole rows.
    """

    pool: PoolReader
    layout: Layout
    files: Sequence[tuple[BatchKey, str]]
    regular: bool
    top_k: int | None

    @property
    def header(self) -> PoolHeader:
        return self.pool.header

    @property
    def cut_out(self) -> bool:
        return self.header.augmentation.cutout_fraction is not None

    def views(self) -> Iterator[ViewBatch]:
        return (self.pool.read_views(key) for key, _ in self.files)


def epoch_claims(written: Written) -> list[Claim]:
    """The trainers of SRe2L and G-VBSM have one way to read a folder."""
    header, mix = written.header, written.header.augmentation.mix
    sre2l = written.layout.name == "sre2l"
    problems = pixel_problems(header, written.layout.trainers)
    if written.cut_out:
        problems.append("it knows no cut-outs")
    if mix == "none" and not sre2l:
        problems.append("it cannot read batches that were not mixed")
    options = [f"--batch-size {header.batch_size}", f"--epochs up to {written.pool.manifest.counts.epochs}"]
    if sre2l:
        options.insert(0, "--fkd-path with a slash at its end")
    if mix != "none":
        options.append(f"--mix-type {mix}")
    program = "SRe2L train_FKD.py" if sre2l else "G-VBSM train_FKD.py"
    return [Claim.make(program, "default", problems, needs=f"give {', '.join(options)}")]


def lpld_claims(written: Written) -> list[Claim]:
    """LPLD's trainer has three ways to choose labels."""
    program, ids = "LPLD train_FKD_label_pruning_batch.py", "--prune_label --granularity"
    pixels = _cut_out_or_pixel_problems(written)
    size = f"int((1 - prune_ratio) x epochs x batches of epoch 0) must not exceed {len(written.files)}"
    by_first_image = list(pixels)
    if shared := _shared(int(batch.images[0]) for batch in written.views()):
        by_first_image.append(
            f"it knows a batch by its first image, and {shared} of {len(written.files)} batches share "
            "theirs: two of them in one epoch get one's labels"
        )
    if sum(PurePath(path).parts[0] == "epoch_0" for _, path in written.files) == 1:
        by_first_image.append("an epoch of one batch is none to it")
    return [
        Claim.make(program, f"{ids} batch", pixels, needs=size),
        Claim.make(
            program,
            f"{ids} batch_to_epoch",
            by_first_image,
            needs=f"it never shows the last batch of an epoch; {size}",
        ),
        Claim.make(program, f"{ids} epoch, or no --prune_label", [*pixels, *_order_problems(written)]),
    ]


def _order_problems(written: Written) -> list[str]:
    if not written.regular:
        return ["it draws whole epochs in its sampler's order, and the pool is not a whole run"]
    eras = sampler_eras(written.pool)
    if not eras:
        return ["it looks for a batch where its sampler would put it (build with --replayable-by lpld)"]
    return [] if "new" in eras else ["the image order is that of PyTorch < 1.11: train with that"]


def lpqld_claims(written: Written) -> list[Claim]:
    """Say it for the trainer's way to read labels that fits what was written."""
    problems = _cut_out_or_pixel_problems(written)
    starts, moved = [], 0
    for batch in written.views():
        starts.append(tuple(batch.images[:3].tolist()))
        coords = stored_fractions(batch, written.pool.images).astype(np.float16)
        moved += moved_crops(coords, batch, written.pool.images)
    if shared := _shared(starts):
        problems.append(f"{shared} of {len(starts)} batches begin with the same images: it refuses to start")
    if moved:
        problems.append(f"{moved} crops are off by a pixel: half precision is too coarse for them")
    if written.top_k is None:
        return [Claim.make("LPQLD train_FKD_LPQLD.py", "--prune_label", problems)]
    if _drops_tail(written.pool, written.top_k):
        problems.append(
            f"labels change: all but the {written.top_k} largest get probability 0 there, here they have the "
            "rest of it"
        )
    option = f"--prune_label --label_quantization MR-{written.top_k}"
    return [Claim.make("LPQLD train_FKD_LPQLD.py", option, problems)]


def _drops_tail(pool: PoolReader, kept: int) -> bool:
    """Whether classes that are left out have a level of their own in the pool."""
    codec = pool.codec.top_k
    if codec is None or kept < codec.k:
        return kept < pool.classes
    stored = pool.read_encoded(pool.keys[0])
    return codec.sparse(stored.payload, rows=stored.views.rows, classes=pool.classes).tail is not None


CLAIMS: Mapping[str, Callable[[Written], list[Claim]]] = {
    "sre2l": epoch_claims,
    "gvbsm": epoch_claims,
    "lpld": lpld_claims,
    "lpqld": lpqld_claims,
}
"""Layout -> what to claim of its trainer."""


def _cut_out_or_pixel_problems(written: Written) -> list[str]:
    cut_out = {224: CUT_OUT_PROGRAM.normalisation}
    return pixel_problems(written.header, cut_out if written.cut_out else written.layout.trainers)


def pixel_problems(header: PoolHeader, trainers: Mapping[int, Normalisation]) -> list[str]:
    """Return how a trainer's pixels differ from the teacher's.

    trainers: side of a view -> normalisation, for every data set the trainer knows.
    """
    problems = []
    augmentation = header.augmentation
    side = augmentation.output_height
    if side not in trainers or side != augmentation.output_width:
        sides = " or ".join(map(str, trainers))
        problems.append(f"its views have {sides} pixels, the pool's {side} x {augmentation.output_width}")
    if augmentation.resize != "pil":
        problems.append(
            f"it resizes with Pillow's bilinear filter, the teacher saw {augmentation.resize}: pixels differ "
            "(build with --replayable-by or --resize pil)"
        )
    wanted = trainers.get(side)
    for teacher in header.teachers if wanted is not None else ():
        if teacher.mean is None or teacher.std is None:
            problems.append("the pool does not know its teacher's normalisation")
        elif wanted is not None and not _same(teacher.mean, teacher.std, wanted):
            given = f"mean {list(teacher.mean)}"
            problems.append(f"it normalises by mean {list(wanted.mean)}, {teacher.name} by {given}")
    return list(dict.fromkeys(problems))


def _same(mean: Sequence[float], std: Sequence[float], wanted: Normalisation) -> bool:
    return np.allclose(mean, wanted.mean) and np.allclose(std, wanted.std)


def moved_crops(coords: npt.NDArray[np.floating[Any]], views: ViewBatch, images: ImageTable) -> int:
    """Return how many crops the programs will cut elsewhere than they were: [B, 4] fractions, as stored.

    They multiply in float64 and hand Pillow corners that it rounds: left and left + width.
    """
    heights, widths = images.heights[views.images], images.widths[views.images]
    found = coords.astype(np.float64) * np.stack([heights, widths, heights, widths], axis=1)
    corners = np.concatenate([found[:, :2], found[:, :2] + found[:, 2:]], axis=1)
    crops = views.crops.astype(np.int64)
    expected = np.concatenate([crops[:, :2], crops[:, :2] + crops[:, 2:]], axis=1)
    return int((np.rint(corners) != expected).any(axis=1).sum())


def sampler_eras(pool: PoolReader) -> list[Era]:
    """Return the versions of PyTorch whose RandomSampler, seeded as the programs do, draws these images.

    Every batch must be at its place in its epoch. The programs count the images in the files of epoch 0
    and draw as many, so that epoch must have them all.
    """
    first = sum(rows for key, rows in zip(pool.keys, pool.index.rows.tolist(), strict=True) if key.epoch == 0)
    if first != len(pool.images):
        return []
    return [era for era in ERAS if _drawn_by(pool, era)]


def _drawn_by(pool: PoolReader, era: Era) -> bool:
    size, orders = pool.header.batch_size, SampledOrders(len(pool.images), era=era)
    for key in pool.keys:
        expected = orders[key.epoch][key.batch * size : (key.batch + 1) * size]
        if not np.array_equal(pool.read_views(key).images, expected):
            return False
    return True


def _shared(starts: Iterable[object]) -> int:
    """Return how many batches begin as another one does."""
    return sum(count for count in Counter(starts).values() if count > 1)
