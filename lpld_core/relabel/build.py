"""Building a pool: which batches it needs, what the teacher says about them, and writing them down.

Every batch follows from (seed, epoch, batch) alone, so it makes no difference in which order, by how
many processes or in how many sittings they are labelled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from lpld_core.relabel.growing import Making, refuse_other_images, refuse_surplus
from lpld_core.relabel.rehearsal import rehearse, require_room
from lpld_core.relabel.replayable import check_replayable
from lpld_core.relabel.settings import BuildSettings
from lpld_core.settings import DEFAULT_WEIGHTS, RANDOM_WEIGHTS, Part
from lpld_core.teachers.ensemble import Ensemble, load_ensemble
from lpld_labels.codecs import Codec, codec_named
from lpld_labels.errors import InvalidArgumentError, NotAPoolError
from lpld_labels.exec.job import Progress
from lpld_labels.exec.pieces import require_listable
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import Augmentation, LineageStep, Manifest, PoolHeader
from lpld_labels.format.random_streams import lowest_ranked
from lpld_labels.format.records import BatchKey, ViewBatch
from lpld_labels.interop.image_ids import SampledOrders
from lpld_labels.pool.packing import Packed
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.staged_writer import StagedWriter
from lpld_labels.render import batches_per_epoch, draw_views
from lpld_labels.render.images import FolderImages, class_names, scan_image_folder
from lpld_labels.transforms.outputs import require_apart
from lpld_labels.transforms.selection import kept_count


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """What a build did: batches it labelled and found done, and the pool's manifest if published."""

    labelled: int
    found: int
    manifest: Manifest | None


def load_teachers(images: Path, settings: BuildSettings) -> Ensemble:
    """Load the teachers as the settings say, with as many classes as the folder has; set torch's threads."""
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    classes = None if settings.fewer_classes else len(class_names(images))
    return load_ensemble(settings.teachers, classes=classes, device=settings.device, amp=settings.amp)


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
    require_listable(epochs * count, what="label batches", hint="label fewer epochs, or larger batches")
    if ratio == 1:
        return [BatchKey(epoch, batch) for epoch in range(epochs) for batch in range(count)]
    complete = [BatchKey(epoch, batch) for epoch in range(epochs) for batch in range(images // batch_size)]
    return lowest_ranked(seed, complete, kept_count(len(complete), ratio))


@dataclass(frozen=True, kw_only=True)
class Build:
    """One build with all it needs at hand.

    images, pool: the image folder and the pool's directory. table: the folder's images.
    """

    images: Path
    pool: Path
    settings: BuildSettings
    ensemble: Ensemble
    table: ImageTable

    @classmethod
    def prepare(
        cls,
        images: Path,
        pool: Path,
        settings: BuildSettings,
        *,
        ensemble: Ensemble | None = None,
        table: ImageTable | None = None,
        device: str | None = None,
        image_progress: Progress | None = None,
    ) -> Build:
        """Load what is not given, and refuse what cannot be done, before anything is written.

        device: where the teachers are loaded here, if not where the settings say.
        """
        if settings.image_cache is not None:
            require_apart(settings.image_cache, images)
            require_apart(pool, settings.image_cache)
        codec_named(settings.codec)  # a name that is none is told before the teacher is loaded
        if ensemble is None:
            ensemble = load_teachers(images, replace(settings, device=device or settings.device))
        if table is None:
            table = scan_image_folder(images, progress=image_progress)
        build = cls(images=images, pool=pool, settings=settings, ensemble=ensemble, table=table)
        build.check()
        return build

    @cached_property
    def source(self) -> FolderImages:
        """The images of the folder, each known to be the one that was scanned."""
        return FolderImages(self.images, self.table)

    @cached_property
    def augmentation(self) -> Augmentation:
        """How views are made, as the pool records it."""
        return self.settings.augmentation(self.ensemble.input_size)

    @cached_property
    def codec(self) -> Codec:
        """How labels are stored."""
        return codec_named(self.settings.codec)

    @property
    def making(self) -> Making:
        """What decides labels beside the pool's header."""
        return Making(replayable_by=self.settings.replayable_by, amp=self.ensemble.amp)

    @cached_property
    def _orders(self) -> SampledOrders | None:
        """The image order of each epoch, where another program's is followed."""
        return None if self.settings.replayable_by is None else SampledOrders(len(self.table))

    def draw(self, key: BatchKey) -> ViewBatch:
        """Draw the views of a batch; called by one thread at a time."""
        return draw_views(
            self.augmentation,
            self.table,
            seed=self.settings.seed,
            epoch=key.epoch,
            batch=key.batch,
            batch_size=self.settings.batch_size,
            order=None if self._orders is None else self._orders[key.epoch],
        )

    @cached_property
    def wanted(self) -> list[BatchKey]:
        """All batches of the finished pool, in key order."""
        asked = self.settings
        return wanted_batches(
            len(self.table),
            batch_size=asked.batch_size,
            epochs=asked.epochs,
            seed=asked.seed,
            ratio=asked.ratio,
        )

    def check(self) -> None:
        """Refuse a build that cannot be done."""
        asked = self.settings
        if asked.replayable_by is not None:
            check_replayable(asked.replayable_by, self.augmentation, ratio=asked.ratio)
            if asked.views == "drawn":
                raise InvalidArgumentError(
                    "views in another program's order cannot be drawn again",
                    where=self.pool,
                    hint="keep them (--views stored), or leave out --replayable-by",
                )
        rows = len(self.wanted) * min(asked.batch_size, len(self.table))
        require_room(self.pool, rows, rehearse(self))

    def share_of(self, writer: StagedWriter) -> Sequence[BatchKey]:
        """Return the batches that are this part's, finished or not; refuse a pool that holds more."""
        refuse_surplus(self.pool, writer.keys, self.wanted, self.settings)
        return (self.settings.part or Part()).share(self.wanted)

    def opened_writer(self) -> StagedWriter:
        """Return a writer that knows what is published and sealed by now."""
        with self.published() as published:
            return self.writer(published)

    def commit(self, writer: StagedWriter, published: PoolReader | None) -> Manifest:
        """Publish all that is sealed."""
        return writer.commit(lineage=self._lineage(writer, published))

    @contextmanager
    def published(self) -> Iterator[PoolReader | None]:
        """Open the pool if there is one already; it must be of the same images and hold nothing else."""
        try:
            pool = PoolReader(self.pool)
        except NotAPoolError:
            yield None
            return
        with pool:
            refuse_other_images(pool.images, self.table, self.images)
            refuse_surplus(self.pool, pool.keys, self.wanted, self.settings)
            self.making.refuse_other(self.pool, pool.header.lineage)
            yield pool

    def writer(self, published: PoolReader | None) -> StagedWriter:
        """Open a writer on the pool."""
        header = PoolHeader(
            classes=self.ensemble.classes,
            batch_size=self.settings.batch_size,
            augmentation=self.augmentation,
            seed=self.settings.seed,
            teachers=self.ensemble.descriptions,
            ensemble=self.ensemble.rule,
        )
        return StagedWriter(
            self.pool,
            header=header,
            images=self.table,
            codec=self.codec,
            views=self.settings.views,
            onto=published,
            purpose=self.making.purpose(),
            packed=Packed(self.source) if self.settings.pack else None,
            seal_seconds=self.settings.seal_seconds,
        )

    def _lineage(self, writer: StagedWriter, published: PoolReader | None) -> tuple[LineageStep, ...]:
        """Return the pool's past; a build that finds everything done leaves no trace in it."""
        before = published.header.lineage if published else ()
        if published is not None and len(writer.keys) == len(published):
            return before
        asked = self.settings
        step = LineageStep(
            operation="build",
            parent_digest=published.manifest.content_digest if published else None,
            parameters={
                "ratio": asked.ratio,
                "seed": asked.seed,
                "level": "batch",
                "epochs": asked.epochs,
                "batches": len(self.wanted),
                "torch": torch.__version__,
                "device": torch.device(self.settings.device).type,
                "threads": torch.get_num_threads(),
                "codec": asked.codec,
                "views": asked.views,
                "fewer_classes": asked.fewer_classes,
                "weights": [_public(choice.weights) for choice in asked.teachers],
                **self.making.lineage(),
            },
        )
        return (*before, step)


def _public(weights: str) -> str | None:
    """Return weights that are known by a word; where a file was is nobody's business but its owner's."""
    return weights if weights in (DEFAULT_WEIGHTS, RANDOM_WEIGHTS) else None
