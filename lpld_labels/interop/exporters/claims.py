"""What holds when another program trains on an exported folder, and why not where it does not.

The programs have view sizes, normalisations, resize code and image orders built in. A folder can be
whole and correct and still show a student other pixels than the teacher saw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import PoolHeader
from lpld_labels.format.records import ViewBatch
from lpld_labels.interop.programs import Normalisation
from lpld_labels.interop.sampler import ERAS, Era, epoch_orders
from lpld_labels.pool.reader import PoolReader

PILLOW = "pil"


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
    if augmentation.resize != PILLOW:
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
    sides = np.stack([heights, widths, heights, widths], axis=1)
    found = coords.astype(np.float64) * sides
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
    size = pool.header.batch_size
    orders = epoch_orders(len(pool.images), era=era)
    epoch, order = -1, np.empty(0, np.int32)
    for key in pool.keys:
        while key.epoch > epoch:
            epoch, order = epoch + 1, next(orders)
        expected = order[key.batch * size : (key.batch + 1) * size]
        found = pool.read_views(key).images
        if len(found) != len(expected) or not np.array_equal(found, expected):
            return False
    return True


def shared_starts(starts: Iterable[tuple[int, ...]]) -> int:
    """Return how many batches begin with the same images as another one."""
    return sum(count for count in Counter(starts).values() if count > 1)
