"""Warnings about a pool: one sentence for each thing that a careful reader would ask about."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lpld_labels.inspect.sample import OTHER, PoolFacts, Sample
from lpld_labels.inspect.text import percent, shortened

_NAMED = 3
_SUM_TOLERANCE = 0.02
_ENOUGH_ROWS = 100


def pool_warnings(facts: PoolFacts, sample: Sample) -> list[str]:
    """Return warnings about the whole pool, then about the labels and views looked at."""
    return [*_coverage(facts), *_labels(facts, sample), *_views(facts, sample)]


def _coverage(facts: PoolFacts) -> list[str]:
    counts, classes = facts.summary.manifest.counts, facts.summary.manifest.header.classes
    found: list[str] = []
    if not counts.batches:
        return ["The pool holds no label batch: nothing was labelled, or all was pruned away."]
    unseen = np.flatnonzero(facts.image_views == 0)
    if len(unseen):
        names = _some(facts.images.paths, unseen)
        found.append(f"Images never seen as themselves: {len(unseen):,} of {counts.images:,} ({names}).")
    empty = np.flatnonzero(facts.class_images[:classes] == 0)
    if len(empty):
        names = _some(facts.names, empty)
        found.append(f"Classes without an image: {len(empty):,} of {classes:,} ({names}).")
    missing = np.flatnonzero((facts.class_images > 0) & (facts.class_views == 0))
    if len(missing):
        names = _some(facts.names, missing)
        found.append(f"Classes missing, with images but not one view: {len(missing):,} ({names}).")
    beyond = int(facts.class_images[classes:].sum())
    if beyond:
        found.append(f"Images of a class beyond the labels' {classes:,} columns: {beyond:,}.")
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
        image = shortened(facts.images.paths[int(rows.image[broken[0]])])
        where = f"the first of image {image} in {sample.keys[int(rows.batch[broken[0]])]}"
        found.append(f"Labels that are not finite (NaN or infinite): {len(broken):,} {looked}, {where}.")
    constant = int(rows.constant.sum())
    if constant:
        found.append(f"Constant labels, the same value for every class: {constant:,} {looked}.")
    same = (rows.top == rows.top[0]).all() and (rows["values"] == rows["values"][0]).all()
    if len(rows) > 1 and same and not constant:
        found.append("All labels looked at are the same.")
    off = int((np.abs(rows.total - 1) > _SUM_TOLERANCE).sum())
    if off:
        found.append(f"Probabilities that do not add up to 1: {off:,} {looked}.")
    return found + _agreement(facts, sample)


def _agreement(facts: PoolFacts, sample: Sample) -> list[str]:
    """Warn if labels agree with the true classes hardly more than chance: often a wrong class order."""
    rows = sample.rows
    agreeing = float((rows.agreement != OTHER).mean())
    two = (rows.partner >= 0) & (facts.images.classes[rows.partner] != facts.images.classes[rows.image])
    chance = float((1 + two).mean()) / facts.summary.manifest.header.classes
    if len(rows) < _ENOUGH_ROWS or agreeing >= min(max(1.5 * chance, 0.05), 0.5):
        return []
    told = f"The strongest class is an image's own or its partner's in {percent(agreeing)} of the labels, "
    return [f"{told}where chance gives {percent(chance)}: are images and labels in the same class order?"]


def _views(facts: PoolFacts, sample: Sample) -> list[str]:
    rows, found, manifest = sample.rows, [], facts.summary.manifest
    outside = int((rows.area > 1).sum())
    if outside:
        found.append(f"Crops larger than the image they are of: {outside:,}.")
    mix, unmixed = manifest.header.augmentation.mix, int(np.isnan(rows.strength).sum())
    if mix != "none" and unmixed:
        found.append(f"Views that were not mixed, though the pool says {mix}: {unmixed:,}.")
    incomplete = manifest.counts.incomplete_batches
    if incomplete:
        size = manifest.header.batch_size
        found.append(f"Incomplete batches, of fewer than {size:,} rows: {incomplete:,}.")
    return found


def _some(names: Sequence[str], places: npt.NDArray[np.int64]) -> str:
    """Return the first few names."""
    listed = ", ".join(shortened(names[place]) for place in places[:_NAMED].tolist())
    return listed + (f" and {len(places) - _NAMED:,} more" if len(places) > _NAMED else "")
