"""Builds that add to a pool: what is there must be a part of what was asked for, from the same images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path

from lpld_core.relabel.settings import BuildSettings, Replayer
from lpld_labels.errors import ImageMismatchError, PoolConflictError
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import LineageStep
from lpld_labels.format.records import BatchKey


def refuse_other_images(labelled: ImageTable, found: ImageTable, folder: Path) -> None:
    """Name the first image that is not as it was when the pool was begun."""
    hint = "restore the labelled images, or label these into another pool"
    before = zip(labelled.paths, labelled.digests, strict=True)
    now = zip(found.paths, found.digests, strict=True)
    for (path, digest), (other, other_digest) in zip_longest(before, now, fillvalue=("no more images", None)):
        if path != other:
            raise ImageMismatchError(
                "not the images the pool was built from",
                where=folder,
                expected=path,
                got=other,
                hint=hint,
            )
        if digest is not None and other_digest is not None and digest != other_digest:
            raise ImageMismatchError(
                "image has changed since the pool was built",
                where=folder / path,
                expected=f"digest {digest.hex()}",
                got=other_digest.hex(),
                hint=hint,
            )


def refuse_surplus(
    pool: Path, present: Iterable[BatchKey], wanted: Sequence[BatchKey], settings: BuildSettings
) -> None:
    """A build adds; it must not leave a pool that holds more than was asked for."""
    surplus = set(present).difference(wanted)
    if not surplus:
        return
    epochs = max(key.epoch for key in surplus) + 1
    way = f"prune it to ratio {settings.ratio:g} instead"
    if epochs > settings.epochs:
        way = f"build with {epochs} epochs, as it has, or more"
    raise PoolConflictError(
        f"the pool holds {len(surplus)} batches that this build leaves out, e.g. {min(surplus)}",
        where=pool,
        hint=f"{way}, or choose another path",
    )


def refuse_other_order(pool: Path, lineage: Sequence[LineageStep], replayable_by: Replayer | None) -> None:
    """A build that adds must take images in the order the pool was begun with."""
    begun = [step.parameters.get("replayable_by") for step in lineage if step.operation == "build"]
    if begun and begun[0] != replayable_by:
        raise PoolConflictError(
            "the pool's images come in another order",
            where=pool,
            expected=f"--replayable-by {begun[0]}" if begun[0] else "no --replayable-by",
            got=replayable_by,
            hint="run the command the pool was built with, or choose another path",
        )
