"""Whether another program that trains on an exported folder replays what was labelled, and why not.

The programs have view sizes, normalisations, resize code and image orders built in. A folder can be
whole and correct and still show a student other pixels than the teacher saw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels.format.images import ImageTable
from lpld_labels.format.records import ViewBatch
from lpld_labels.interop.export_plan import ExportPlan, sampler_eras
from lpld_labels.interop.layouts import CUT_OUT_PROGRAM, Check, Normalisation
from lpld_labels.interop.pixels import stored_fractions


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What one program, called with one option, does with an exported folder.

    holds: whether every view is replayed as it was labelled and gets its own label.
    why: what goes wrong, or what the program has to be given.
    """

    program: str
    option: str
    holds: bool
    why: str


def claims(plan: ExportPlan) -> list[Claim]:
    """Return a claim for each way to train on an exported folder."""
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
    for trainer in plan.layout.trainers:
        problems = [problem for check in trainer.checks for problem in _CHECKS[check](plan)]
        needs = [trainer.needs.format(**facts)] if trainer.needs else []
        found.append(
            Claim(
                program=trainer.program,
                option=trainer.option.format(**facts),
                holds=not problems,
                why="; ".join(problems + needs),
            )
        )
    return found


def _pixels(plan: ExportPlan) -> list[str]:
    """Return how a trainer's pixels differ from the teacher's."""
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
    wanted = views.get(side)
    for teacher in header.teachers if wanted is not None else ():
        if teacher.mean is None or teacher.std is None:
            problems.append("the pool does not know its teacher's normalisation")
        elif wanted is not None and not _same(teacher.mean, teacher.std, wanted):
            given = f"mean {list(teacher.mean)}"
            problems.append(f"it normalises by mean {list(wanted.mean)}, {teacher.name} by {given}")
    return list(dict.fromkeys(problems))


def _same(mean: Sequence[float], std: Sequence[float], wanted: Normalisation) -> bool:
    return np.allclose(mean, wanted.mean) and np.allclose(std, wanted.std)


def _first_image(plan: ExportPlan) -> list[str]:
    """Check for a trainer that finds a batch by its first image."""
    problems = []
    if shared := _shared(int(batch.images[0]) for batch in plan.views()):
        problems.append(
            f"it knows a batch by its first image, and {shared} of {len(plan.files)} batches share "
            "theirs: two of them in one epoch get one's labels"
        )
    if sum(path.startswith("epoch_0/") for _, path in plan.files) == 1:
        problems.append("an epoch of one batch is none to it")
    return problems


def _first_images(plan: ExportPlan) -> list[str]:
    """Check for a trainer that finds a batch by its first three images."""
    shared = _shared(tuple(batch.images[:3].tolist()) for batch in plan.views())
    if not shared:
        return []
    return [f"{shared} of {len(plan.files)} batches begin with the same images: it refuses to start"]


def _shared(starts: Iterable[object]) -> int:
    """Return how many batches begin as another one does."""
    return sum(count for count in Counter(starts).values() if count > 1)


def _sampler_order(plan: ExportPlan) -> list[str]:
    if not plan.regular:
        return ["it draws whole epochs in its sampler's order, and the pool is not a whole run"]
    eras = sampler_eras(plan.pool)
    if not eras:
        return ["it looks for a batch where its sampler would put it (build with --replayable-by lpld)"]
    return [] if "new" in eras else ["the image order is that of PyTorch < 1.11: train with that"]


def _half_precision(plan: ExportPlan) -> list[str]:
    moved, images = 0, plan.pool.images
    for batch in plan.views():
        moved += moved_crops(stored_fractions(batch, images).astype(np.float16), batch, images)
    return [f"{moved} crops are off by a pixel: half precision is too coarse for them"] if moved else []


def moved_crops(coords: npt.NDArray[np.floating[Any]], views: ViewBatch, images: ImageTable) -> int:
    """Return how many crops the programs will cut elsewhere than they were: [B, 4] fractions, as stored.

    They multiply in float64 and hand Pillow corners that it rounds: left and left + width.
    """
    heights, widths = images.heights[views.images], images.widths[views.images]
    found = coords.astype(np.float64) * np.stack([heights, widths, heights, widths], axis=1)
    crops = views.crops.astype(np.int64)
    same_corner = np.rint(found[:, :2]) == crops[:, :2]
    same_end = np.rint(found[:, :2] + found[:, 2:]) == crops[:, :2] + crops[:, 2:]
    return int((~(same_corner & same_end).all(axis=1)).sum())


def _tail(plan: ExportPlan) -> list[str]:
    """Check whether the pool has a level for the classes that the folder leaves out."""
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
        f"labels change: all but the {kept} largest get probability 0 there, here they have the rest of it"
    ]


_CHECKS: Mapping[Check, Callable[[ExportPlan], list[str]]] = {
    "pixels": _pixels,
    "no cut-outs": lambda plan: ["it knows no cut-outs"] if plan.cut_out else [],
    "mixed": lambda plan: [] if plan.mixed else ["it cannot read batches that were not mixed"],
    "first image": _first_image,
    "first images": _first_images,
    "sampler order": _sampler_order,
    "half precision": _half_precision,
    "tail": _tail,
}
"""Check of a `Trainer` -> the problems it finds."""
