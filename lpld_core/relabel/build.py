"""Building a pool: which batches it needs, what the teacher says about them, and writing them down.

Every batch follows from (seed, epoch, batch) alone, so it makes no difference in which order, by how
many processes or in how many sittings they are labelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import torch

from lpld_core.images.prefetch import WorkBehind
from lpld_core.images.rendering import rendered
from lpld_core.part import Part
from lpld_core.relabel.rehearsal import labelled, rehearse, require_room
from lpld_core.relabel.replayable import Replayer, check_replayable
from lpld_core.teachers.ensemble import Ensemble
from lpld_labels.codecs import Codec, codec_named
from lpld_labels.errors import (
    ImageMismatchError,
    InvalidArgumentError,
    NotAPoolError,
    PoolConflictError,
)
from lpld_labels.foreign.sampler import SampledOrders
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import Augmentation, LineageStep, Manifest, PoolHeader
from lpld_labels.format.random_streams import lowest_ranked
from lpld_labels.format.records import BatchKey, ViewBatch
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.writer import PoolWriter, missing_keys
from lpld_labels.replay import ImageStore, batches_per_epoch, draw_views
from lpld_labels.rewriting.selection import kept_count

Progress = Callable[[int, int], None]
"""Called with (batches labelled, batches to label)."""


@dataclass(frozen=True, kw_only=True)
class LabelJob:
    """What to label and where to put it.

    images, pool: the image folder and the pool's directory. epochs: views per image at ratio 1.
    ratio: label only the batches that random pruning by this ratio would keep.
    codec: a spelling of `codec_named`. seal_seconds: work a crash may cost.
    image_cache: directory for decoded images that processes share; None keeps them in memory.
    replayable_by: program whose image order to follow, so that an exported folder suits it (see
        replayable.py); None to draw the order from the seed.
    """

    images: Path
    pool: Path
    augmentation: Augmentation
    epochs: int
    batch_size: int
    seed: int = 0
    ratio: float = 1.0
    codec: str = "f16"
    seal_seconds: float = 45.0
    image_cache: Path | None = None
    replayable_by: Replayer | None = None


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """What a build did: batches it labelled and found done, and the pool's manifest if published."""

    labelled: int
    found: int
    manifest: Manifest | None


def wanted_batches(
    images: int, *, batch_size: int, epochs: int, seed: int = 0, ratio: float = 1.0
) -> list[BatchKey]:
    """Return the batches of a pool in key order.

    At ratio 1 these are all. Above, they are the floor(n / ratio) of lowest rank among the n complete
    ones: what random pruning of the full pool keeps.
    """
    if epochs < 1 or images < 1:
        raise InvalidArgumentError("nothing to label", got=f"{images} images, {epochs} epochs")
    count = batches_per_epoch(images, batch_size)
    if ratio == 1:
        return [BatchKey(epoch, batch) for epoch in range(epochs) for batch in range(count)]
    complete = [BatchKey(epoch, batch) for epoch in range(epochs) for batch in range(images // batch_size)]
    return lowest_ranked(seed, complete, kept_count(len(complete), ratio))


def build_pool(
    job: LabelJob,
    ensemble: Ensemble,
    images: ImageTable,
    *,
    part: Part | None = None,
    publish: bool = True,
    workers: int = 1,
    progress: Progress | None = None,
) -> BuildResult:
    """Label what is missing and publish the pool.

    part: label only this share of the batches. publish: commit at the end; where several processes fill
    one pool, one of them does so when the others are done.
    workers: threads that prepare pixels. Interrupting keeps all finished batches for the next run.
    """
    wanted, codec = check_job(job, ensemble, images)
    with (
        _published(job, images, wanted) as published,
        _writer(job, ensemble, images, codec, published) as writer,
    ):
        _refuse_surplus(writer.keys, wanted, job)
        share = (part or Part()).share(wanted)
        missing = list(missing_keys(writer, share))
        _label(job, ensemble, images, codec, missing, writer, workers=workers, progress=progress)
        manifest = None
        if publish:
            manifest = writer.commit(lineage=_lineage(writer, published, job, ensemble, wanted))
    return BuildResult(labelled=len(missing), found=len(share) - len(missing), manifest=manifest)


def check_job(job: LabelJob, ensemble: Ensemble, images: ImageTable) -> tuple[list[BatchKey], Codec]:
    """Refuse a job that cannot be done, before anything is written; return its batches and codec."""
    if job.replayable_by is not None:
        check_replayable(job.replayable_by, job.augmentation, ratio=job.ratio)
    wanted = wanted_batches(
        len(images), batch_size=job.batch_size, epochs=job.epochs, seed=job.seed, ratio=job.ratio
    )
    codec = codec_named(job.codec)
    bytes_per_row = rehearse(job, ensemble, images, codec)
    require_room(job.pool, len(wanted) * min(job.batch_size, len(images)), bytes_per_row)
    return wanted, codec


@contextmanager
def _published(job: LabelJob, images: ImageTable, wanted: Sequence[BatchKey]) -> Iterator[PoolReader | None]:
    """Open the pool if there is one already; it must be of the same images and hold nothing else."""
    try:
        pool = PoolReader(job.pool)
    except NotAPoolError:
        yield None
        return
    with pool:
        _refuse_other_images(pool.images, images, job)
        _refuse_surplus(pool.keys, wanted, job)
        _refuse_other_order(pool.header.lineage, job)
        yield pool


def _writer(
    job: LabelJob, ensemble: Ensemble, images: ImageTable, codec: Codec, published: PoolReader | None
) -> PoolWriter:
    return PoolWriter(
        job.pool,
        header=_header(job, ensemble),
        images=images,
        codec=codec,
        onto=published,
        seal_seconds=job.seal_seconds,
    )


def _refuse_other_images(labelled: ImageTable, found: ImageTable, job: LabelJob) -> None:
    """Name the first image that is not as it was when the pool was begun."""
    hint = "restore the labelled images, or label these into another pool"
    before = zip(labelled.paths, labelled.digests, strict=True)
    now = zip(found.paths, found.digests, strict=True)
    for (path, digest), (other, other_digest) in zip_longest(before, now, fillvalue=("no more images", None)):
        if path != other:
            raise ImageMismatchError(
                "not the images the pool was built from",
                where=job.images,
                expected=path,
                got=other,
                hint=hint,
            )
        if digest is not None and other_digest is not None and digest != other_digest:
            raise ImageMismatchError(
                "image has changed since the pool was built",
                where=job.images / path,
                expected=f"digest {digest.hex()}",
                got=other_digest.hex(),
                hint=hint,
            )


def _refuse_surplus(present: Iterable[BatchKey], wanted: Sequence[BatchKey], job: LabelJob) -> None:
    """A build adds; it must not leave a pool that holds more than was asked for."""
    surplus = set(present).difference(wanted)
    if not surplus:
        return
    epochs = max(key.epoch for key in surplus) + 1
    way = f"prune it to ratio {job.ratio:g} instead"
    if epochs > job.epochs:
        way = f"build with {epochs} epochs, as it has, or more"
    raise PoolConflictError(
        f"the pool holds {len(surplus)} batches that this build leaves out, e.g. {min(surplus)}",
        where=job.pool,
        hint=f"{way}, or choose another path",
    )


def _refuse_other_order(lineage: Sequence[LineageStep], job: LabelJob) -> None:
    """A build that adds must take images in the order the pool was begun with."""
    begun = [step.parameters.get("replayable_by") for step in lineage if step.operation == "build"]
    if begun and begun[0] != job.replayable_by:
        raise PoolConflictError(
            "the pool's images come in another order",
            where=job.pool,
            expected=f"--replayable-by {begun[0]}" if begun[0] else "no --replayable-by",
            got=job.replayable_by,
            hint="run the command the pool was built with, or choose another path",
        )


def _header(job: LabelJob, ensemble: Ensemble) -> PoolHeader:
    return PoolHeader(
        classes=ensemble.classes,
        batch_size=job.batch_size,
        augmentation=job.augmentation,
        seed=job.seed,
        teachers=ensemble.descriptions,
        ensemble=ensemble.rule,
    )


def _label(
    job: LabelJob,
    ensemble: Ensemble,
    images: ImageTable,
    codec: Codec,
    keys: Sequence[BatchKey],
    writer: PoolWriter,
    *,
    workers: int,
    progress: Progress | None,
) -> None:
    """Draw and render ahead, label, write behind."""
    store = ImageStore(job.images, images, cache_directory=job.image_cache)
    orders = None if job.replayable_by is None else SampledOrders(len(images))

    def draw(key: BatchKey) -> ViewBatch:
        return draw_views(
            job.augmentation,
            images,
            seed=job.seed,
            epoch=key.epoch,
            batch=key.batch,
            batch_size=job.batch_size,
            order=None if orders is None else orders[key.epoch],
        )

    with (
        WorkBehind(writer.append) as write,
        closing(rendered(keys, draw, store, job.augmentation, workers=workers)) as batches,
    ):
        for done, (views, pixels) in enumerate(batches, 1):
            write.put(labelled(views, ensemble.logits(pixels), codec))
            if progress is not None:
                progress(done, len(keys))


def _lineage(
    writer: PoolWriter,
    published: PoolReader | None,
    job: LabelJob,
    ensemble: Ensemble,
    wanted: Sequence[BatchKey],
) -> tuple[LineageStep, ...]:
    """Return the pool's past; a build that finds everything done leaves no trace in it."""
    before = published.header.lineage if published else ()
    if published is not None and len(writer.keys) == len(published):
        return before
    step = LineageStep(
        operation="build",
        parent_digest=published.manifest.content_digest if published else None,
        parameters={
            "ratio": job.ratio,
            "seed": job.seed,
            "level": "batch",
            "epochs": job.epochs,
            "batches": len(wanted),
            "torch": torch.__version__,
            "device": ensemble.device.type,
            "amp": ensemble.amp,
            "threads": torch.get_num_threads(),
            **({"replayable_by": job.replayable_by} if job.replayable_by else {}),
        },
    )
    return (*before, step)
