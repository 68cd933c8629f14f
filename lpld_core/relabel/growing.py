"""Builds that add to a pool: what is there must be a part of what was asked for, from the same images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from lpld_core.relabel.settings import BuildSettings, Replayer
from lpld_labels.errors import ImageMismatchError, PoolConflictError
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import LineageStep
from lpld_labels.format.records import BatchKey
from lpld_labels.pool.staging_plan import deciding

_AS_BUILT = "run the command the pool was built with, choose another path, or replace it (--overwrite)"


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


@dataclass(frozen=True, kw_only=True)
class Making:
    """What decides labels and views, and is in no header: builds of one pool must agree on it.

    replayable_by: whose image order is followed. amp: whether the teachers ran in mixed precision.
    """

    replayable_by: Replayer | None
    amp: bool

    def purpose(self) -> dict[str, Any]:
        """Return it as unfinished work keeps it."""
        return deciding("build", **asdict(self))

    def lineage(self) -> dict[str, Any]:
        """Return it as parameters of a step; an order that is the seed's own is not named there."""
        return {"amp": self.amp} | ({"replayable_by": self.replayable_by} if self.replayable_by else {})

    def refuse_other(self, pool: Path, lineage: Sequence[LineageStep]) -> None:
        """A build that adds must label as the pool's other builds did."""
        for known in (step.parameters for step in lineage if step.operation == "build"):
            order = known.get("replayable_by")
            if order != self.replayable_by:
                raise PoolConflictError(
                    "the pool's images come in another order",
                    where=pool,
                    expected=f"--replayable-by {order}" if order else "no --replayable-by",
                    got=self.replayable_by,
                    hint=_AS_BUILT,
                )
            # The first pools did not say it.
            if known.get("amp", self.amp) != self.amp:
                raise PoolConflictError(
                    "the pool was labelled in another precision",
                    where=pool,
                    expected="--amp" if known["amp"] else "no --amp",
                    got="--amp" if self.amp else "no --amp",
                    hint=_AS_BUILT,
                )
