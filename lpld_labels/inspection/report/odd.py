"""What is odd about a pool, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lpld_labels.inspection.pages.markup import shortened
from lpld_labels.inspection.pages.numbers import percent
from lpld_labels.inspection.report.facts import PoolFacts
from lpld_labels.inspection.report.sample import OTHER, Sample

_NAMED = 3
_SUM_TOLERANCE = 0.02
_ENOUGH_ROWS = 100


def oddities(facts: PoolFacts, sample: Sample) -> list[str]:
    """Return one sentence for each thing that a careful reader would ask about."""
    return [*_coverage(facts), *_labels(facts, sample), *_views(facts, sample)]


def _coverage(facts: PoolFacts) -> list[str]:
    summary, found = facts.summary, []
    if not summary.batches:
        return ["The pool holds no label batch: nothing was labelled, or all was pruned away."]
    unseen = np.flatnonzero(facts.image_views == 0)
    if len(unseen):
        names = _some([facts.images.paths[place] for place in unseen[:_NAMED].tolist()], len(unseen))
        found.append(f"{_count(len(unseen), 'image')} of {summary.images:,} never seen as itself: {names}.")
    classes = np.arange(len(facts.class_images))
    empty = np.flatnonzero((facts.class_images == 0) & (classes < summary.classes))
    if len(empty):
        names = _some([facts.names[place] for place in empty[:_NAMED].tolist()], len(empty))
        found.append(
            f"{_count(len(empty), 'class', 'classes')} of {summary.classes:,} without an image: {names}."
        )
    missing = np.flatnonzero((facts.class_images > 0) & (facts.class_views == 0))
    if len(missing):
        names = _some([facts.names[place] for place in missing[:_NAMED].tolist()], len(missing))
        found.append(f"{_count(len(missing), 'class', 'classes')} missing: images but not one view: {names}.")
    beyond = int(facts.class_images[summary.classes :].sum())
    if beyond:
        found.append(
            f"{_count(beyond, 'image')} of a class beyond the labels' {summary.classes:,} columns."
        )
    return found


def _labels(facts: PoolFacts, sample: Sample) -> list[str]:
    rows, found = sample.rows, []
    looked = f"of {len(rows):,} looked at"
    if sample.unreadable:
        found.append(
            f"{_count(len(sample.unreadable), 'batch', 'batches')} cannot be read: "
            f"{shortened(sample.unreadable[0], 300)}"
        )
    if not len(rows):
        return found
    broken = int(np.isnan(rows.confidence).sum())
    if broken:
        first = int(np.flatnonzero(np.isnan(rows.confidence))[0])
        path = facts.images.paths[int(rows.image[first])]
        found.append(
            f"{_count(broken, 'label')} {looked} not finite (NaN or infinite), the first of image "
            f"{shortened(path)} in {sample.keys[int(rows.batch[first])]}."
        )
    constant = int(rows.constant.sum())
    if constant:
        found.append(f"{_count(constant, 'label')} {looked} constant: every class has the same value.")
    same = (rows.top == rows.top[0]).all() and (rows.values == rows.values[0]).all()
    if len(rows) > 1 and same and not constant:
        found.append("All labels looked at are the same.")
    off = int((np.abs(rows.total - 1) > _SUM_TOLERANCE).sum())
    if off:
        found.append(f"{_count(off, 'label')} {looked} probabilities that do not add up to 1.")
    agreeing = float((rows.agreement != OTHER).mean())
    mixed = rows.partner >= 0
    other = facts.images.classes[rows.partner] != facts.images.classes[rows.image]
    chance = float((1 + (mixed & other)).mean()) / facts.summary.classes
    if len(rows) >= _ENOUGH_ROWS and agreeing < min(1.5 * chance, 0.5):
        found.append(
            f"The strongest class is an image's own or its partner's in {percent(agreeing)} of the labels, "
            f"where chance gives {percent(chance)}: are images and labels in the same class order?"
        )
    return found


def _views(facts: PoolFacts, sample: Sample) -> list[str]:
    rows, found = sample.rows, []
    outside = int((rows.area > 1).sum()) if len(rows) else 0
    if outside:
        found.append(f"{_count(outside, 'crop')} larger than the image it is of.")
    mix = facts.summary.augmentation.mix
    unmixed = int(np.isnan(rows.strength).sum()) if len(rows) else 0
    if mix != "none" and unmixed:
        found.append(f"{_count(unmixed, 'view')} not mixed, though the pool is said to be made with {mix}.")
    if facts.summary.incomplete_batches:
        found.append(
            f"{_count(facts.summary.incomplete_batches, 'batch', 'batches')} of fewer than "
            f"{facts.summary.batch_size:,} rows."
        )
    return found


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one} is" if number == 1 else f"{number:,} {many or one + 's'} are"


def _some(names: Sequence[str], number: int) -> str:
    listed = ", ".join(shortened(name) for name in names)
    return listed + (f" and {number - len(names):,} more" if number > len(names) else "")
