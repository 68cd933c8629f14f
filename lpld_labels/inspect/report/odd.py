"""What is odd about a pool, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lpld_labels.inspect.pages.markup import shortened
from lpld_labels.inspect.pages.numbers import percent
from lpld_labels.inspect.report.facts import PoolFacts
from lpld_labels.inspect.report.sample import OTHER, Sample

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
        names = _some(facts.images.paths, unseen)
        found.append(f"Images never seen as themselves: {len(unseen):,} of {summary.images:,} ({names}).")
    classes = np.arange(len(facts.class_images))
    empty = np.flatnonzero((facts.class_images == 0) & (classes < summary.classes))
    if len(empty):
        names = _some(facts.names, empty)
        found.append(f"Classes without an image: {len(empty):,} of {summary.classes:,} ({names}).")
    missing = np.flatnonzero((facts.class_images > 0) & (facts.class_views == 0))
    if len(missing):
        names = _some(facts.names, missing)
        found.append(f"Classes missing, with images but not one view: {len(missing):,} ({names}).")
    beyond = int(facts.class_images[summary.classes :].sum())
    if beyond:
        found.append(f"Images of a class beyond the labels' {summary.classes:,} columns: {beyond:,}.")
    return found


def _labels(facts: PoolFacts, sample: Sample) -> list[str]:
    rows, found = sample.rows, []
    looked = f"of {len(rows):,} looked at"
    if sample.unreadable:
        first = shortened(sample.unreadable[0], 300)
        found.append(f"Batches that cannot be read: {len(sample.unreadable):,} ({first}).")
    if not len(rows):
        return found
    broken = np.flatnonzero(np.isnan(rows.confidence))
    if len(broken):
        path = shortened(facts.images.paths[int(rows.image[broken[0]])])
        key = sample.keys[int(rows.batch[broken[0]])]
        found.append(
            f"Labels that are not finite (NaN or infinite): {len(broken):,} {looked}, "
            f"the first of image {path} in {key}."
        )
    constant = int(rows.constant.sum())
    if constant:
        found.append(f"Constant labels, the same value for every class: {constant:,} {looked}.")
    same = (rows.top == rows.top[0]).all() and (rows.values == rows.values[0]).all()
    if len(rows) > 1 and same and not constant:
        found.append("All labels looked at are the same.")
    off = int((np.abs(rows.total - 1) > _SUM_TOLERANCE).sum())
    if off:
        found.append(f"Probabilities that do not add up to 1: {off:,} {looked}.")
    return found + _agreement(facts, sample)


def _agreement(facts: PoolFacts, sample: Sample) -> list[str]:
    """Say so where labels know hardly more of the true classes than chance: often a wrong class order."""
    rows = sample.rows
    agreeing = float((rows.agreement != OTHER).mean())
    two = (rows.partner >= 0) & (facts.images.classes[rows.partner] != facts.images.classes[rows.image])
    chance = float((1 + two).mean()) / facts.summary.classes
    if len(rows) < _ENOUGH_ROWS or agreeing >= min(max(1.5 * chance, 0.05), 0.5):
        return []
    told, by_chance = percent(agreeing), percent(chance)
    sentence = (
        f"The strongest class is an image's own or its partner's in {told} of the labels, where chance "
    )
    return [f"{sentence}gives {by_chance}: are images and labels in the same class order?"]


def _views(facts: PoolFacts, sample: Sample) -> list[str]:
    rows, found = sample.rows, []
    outside = int((rows.area > 1).sum())
    if outside:
        found.append(f"Crops larger than the image they are of: {outside:,}.")
    mix = facts.summary.augmentation.mix
    unmixed = int(np.isnan(rows.strength).sum())
    if mix != "none" and unmixed:
        found.append(f"Views that were not mixed, though the pool says {mix}: {unmixed:,}.")
    incomplete = facts.summary.incomplete_batches
    if incomplete:
        found.append(f"Incomplete batches, of fewer than {facts.summary.batch_size:,} rows: {incomplete:,}.")
    return found


def _some(names: Sequence[str], places: npt.NDArray[np.int64]) -> str:
    """Return the first few names."""
    listed = ", ".join(shortened(names[place]) for place in places[:_NAMED].tolist())
    return listed + (f" and {len(places) - _NAMED:,} more" if len(places) > _NAMED else "")
