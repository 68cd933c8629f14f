"""Build a pool: choose its batches and label the missing ones.

A batch depends only on (seed, epoch, batch), not on the order of work, the processes or interruptions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from lpld_core.relabel.source import TeacherLabels, Trial, load_teachers, require_room, try_out
from lpld_core.settings import DEFAULT_WEIGHTS, RANDOM_WEIGHTS, BuildSettings, TeacherChoice
from lpld_core.teachers.ensemble import Ensemble
from lpld_labels.codecs import codec_named
from lpld_labels.errors import ImageMismatchError, InvalidArgumentError, NotAPoolError, PoolConflictError
from lpld_labels.exec.job import Executor, Progress, require_listable, reuse
from lpld_labels.exec.local import ONE_PROCESS
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import Augmentation, LineageStep, Manifest, PoolHeader
from lpld_labels.format.probe import PROBE, TOLERANCE, probe_difference
from lpld_labels.format.random_streams import lowest_ranked
from lpld_labels.format.records import BatchKey
from lpld_labels.pool.packing import Packed
from lpld_labels.pool.plan import PoolPlan, cut_evenly, pool_identity, raw_batches_per_shard, require_alike
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.pool.unfinished import finish
from lpld_labels.render import batches_per_epoch
from lpld_labels.render.images import FolderImages, scan_image_folder
from lpld_labels.results import Result
from lpld_labels.transforms.outputs import OVERWRITE_HINT, pool_path, require_apart
from lpld_labels.transforms.pipeline import SETTINGS, lineage_step, run_part, settings_json
from lpld_labels.transforms.prune import kept_count

SHARD_SECONDS = 60.0
"""Target time that a worker spends on a shard; an interruption loses about this much work."""
AS_BUILT = "run the command the pool was built with, choose another path, or replace the pool (--overwrite)"


@dataclass(frozen=True, kw_only=True, repr=False)
class BuildResult(Result):
    """labelled: number of new batches. manifest: None if none is published. cost: None unless a dry run."""

    labelled: int
    manifest: Manifest | None
    image_classes: int | None = None
    cost: dict[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        made = self.manifest
        return self.cost or {
            "labelled_batches": self.labelled,
            "image_classes": self.image_classes,
            "published": made is not None,
            "batches": made and made.counts.batches,
            "rows": made and made.counts.rows,
            "bytes": made and pool_bytes(made),
            "content_digest": made and made.content_digest,
        }


@dataclass(frozen=True, kw_only=True)
class Build:
    """A build that is ready to run. table: list of the images. trial: measured time and size per label."""

    images: Path
    pool: Path
    settings: BuildSettings
    ensemble: Ensemble
    table: ImageTable
    trial: Trial = field(default_factory=Trial)

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
        """Load a missing ensemble or table. Refuse invalid settings before writing. device: for teachers."""
        if settings.image_cache is not None:
            require_apart(settings.image_cache, images)
            require_apart(pool, settings.image_cache)
        codec_named(settings.codec)  # refuses an unknown name before the teacher is loaded
        if ensemble is None:
            ensemble = load_teachers(images, replace(settings, device=device or settings.device))
        if table is None:
            table = scan_image_folder(images, progress=image_progress)
        build = cls(images=images, pool=pool_path(pool), settings=settings, ensemble=ensemble, table=table)
        if settings.replayable_by is not None:
            _require_replayable(settings, build.augmentation)
        trial = try_out(build.source, ensemble)
        rows = len(build.wanted) * min(settings.batch_size, len(table))
        require_room(pool, rows, trial.row_bytes)
        return replace(build, trial=trial)

    @cached_property
    def augmentation(self) -> Augmentation:
        return self.settings.augmentation(self.ensemble.input_size)

    @cached_property
    def header(self) -> PoolHeader:
        return PoolHeader(
            classes=self.ensemble.classes,
            batch_size=self.settings.batch_size,
            augmentation=self.augmentation,
            seed=self.settings.seed,
            teachers=self.ensemble.descriptions,
            ensemble=self.ensemble.rule,
        )

    @cached_property
    def source(self) -> TeacherLabels:
        return TeacherLabels(
            images=FolderImages(self.images, self.table),
            settings=self.settings,
            header=self.header,
            codec=codec_named(self.settings.codec),
            ensemble=self.ensemble,
        )

    @cached_property
    def probe(self) -> list[float]:
        return self.ensemble.probe(self.ensemble.input_size)

    @cached_property
    def wanted(self) -> list[BatchKey]:
        return wanted_batches(len(self.table), self.settings)

    @cached_property
    def recorded_settings(self) -> BuildSettings:
        """The settings that determine the pool's content. Lineage and unfinished work record them."""
        public = [
            choice.weights if choice.weights in (DEFAULT_WEIGHTS, RANDOM_WEIGHTS) else ""
            for choice in self.settings.teachers
        ] or [""] * len(self.ensemble.teachers)
        teachers = tuple(
            TeacherChoice(
                name=teacher.name,
                weights=weights,
                input_size=self.ensemble.input_size,
                mean=teacher.mean,
                std=teacher.std,
            )
            for teacher, weights in zip(self.ensemble.descriptions, public, strict=True)
        )
        return replace(
            self.settings,
            teachers=teachers,
            amp=self.ensemble.amp,
            device=torch.device(self.settings.device).type,
            threads=None,
            workers=1,
            image_cache=None,
            part=None,
        )

    def base(self) -> tuple[Manifest | None, set[BatchKey]]:
        """Return the existing pool's manifest and batch keys; refuse a pool that this build cannot extend."""
        try:
            pool = PoolReader(self.pool)
        except NotAPoolError:
            return None, set()
        with pool:
            _refuse_other_images(pool.images, self.table, self.images)
            present = set(pool.keys)
            _refuse_surplus(self.pool, present, self.wanted, self.settings)
            views = self.settings.views
            require_alike(
                pool_identity(pool.header, pool.codec, pool.images, pool.manifest.views),
                pool_identity(self.header, self.source.codec, self.table, views),
                where=self.pool,
                problem="a different pool is already here",
                hint=OVERWRITE_HINT,
            )
            self._refuse_other_making(pool.header.lineage)
            return pool.manifest, present

    def _refuse_other_making(self, steps: Iterable[LineageStep]) -> None:
        """Refuse a pool whose lineage records a different image order, precision or teacher output."""
        ours = self.recorded_settings
        for known in (step.parameters for step in steps if step.operation == "build"):
            difference = probe_difference(known[PROBE], self.probe) if PROBE in known else 0.0
            if difference > TOLERANCE:
                raise PoolConflictError(
                    "the teacher has the same weights as the pool's teacher, but different outputs",
                    where=self.pool,
                    expected="the same outputs on random images",
                    got=f"outputs that differ by {difference:.0%}",
                    hint="the teacher's code, normalisation or resizing changed; " + AS_BUILT,
                )
            recorded = known.get(SETTINGS) or {}
            for name, now in (("replayable_by", ours.replayable_by), ("amp", ours.amp)):
                if recorded.get(name, now) != now:
                    raise PoolConflictError(
                        f"the pool was built with different settings: '{name}' differs",
                        where=self.pool,
                        expected=recorded[name],
                        got=now,
                        hint=AS_BUILT,
                    )

    def plan(self, base: Manifest | None, present: Collection[BatchKey], executor: Executor) -> PoolPlan:
        settings = self.recorded_settings
        parent = base.content_digest if base else None
        step = lineage_step("build", parent, settings, batches=len(self.wanted), **{PROBE: self.probe})
        before = base.header.lineage if base else ()
        missing = [key for key in self.wanted if key not in present]
        workers = executor.workers * (self.settings.part.of if self.settings.part else 1)
        batch_seconds = self.trial.row_seconds * self.settings.batch_size
        size = min(
            raw_batches_per_shard(self.header),
            math.ceil(len(missing) / workers),
            int(SHARD_SECONDS / batch_seconds),
        )
        return PoolPlan(
            out=self.pool,
            header=replace(self.header, lineage=(*before, step)),
            images=self.table,
            codec=self.source.codec,
            views=settings.views,
            # Workers on other machines are sent the weights; workers on this machine read the weights files.
            source=replace(self.source, sent=not (executor.on_this_machine and self.settings.teachers)),
            shards=cut_evenly(missing, max(1, size)),
            settings={"build": settings_json(settings)},
            base=base,
            packed=Packed(self.source.images) if settings.pack else None,
            notes={
                "torch": torch.__version__,
                "device": torch.device(self.settings.device).type,
                "threads": torch.get_num_threads(),
            },
        )


def build_pool(
    images: Path,
    pool: Path,
    settings: BuildSettings,
    *,
    ensemble: Ensemble | None = None,
    table: ImageTable | None = None,
    progress: Progress | None = None,
) -> BuildResult:
    """Label an image folder in this process and publish the pool; resume or extend an existing pool."""
    build = Build.prepare(images, pool, settings, ensemble=ensemble, table=table)
    return run_build(build, progress=progress)


def run_build(
    build: Build,
    executor: Executor = ONE_PROCESS,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> BuildResult:
    """Label missing batches; the last part to finish publishes. overwrite: replace output of other builds."""
    part = build.settings.part
    finish(build.pool, shared=part is not None)
    try:
        base, present = build.base()
    except (PoolConflictError, ImageMismatchError):
        if not overwrite:
            raise
        base, present = None, set()
    plan = build.plan(base, present, executor)
    if base is not None and not plan.shards and (plan.packed is None or base.files_of("packed")):
        return BuildResult(labelled=0, manifest=base)
    if base is not None:
        before, after, what = base.counts.epochs, len({key.epoch for key in build.wanted}), "epochs"
        if before == after:
            before, after, what = len(present), len(build.wanted), "batches"
        reuse.info("extends %s from %d to %d %s: %d reused", build.pool, before, after, what, before)
    share = (0, 1) if part is None else (part.number - 1, part.of)
    manifest = run_part(plan, share, executor=executor, overwrite=overwrite, progress=progress)
    labelled = sum(shard.batches for shard in plan.shards[share[0] :: share[1]])
    return BuildResult(labelled=labelled, manifest=manifest)


def wanted_batches(images: int, settings: BuildSettings) -> list[BatchKey]:
    """Return the keys of the batches that random pruning to `settings.ratio` keeps, in key order."""
    epochs, count = range(settings.epochs), batches_per_epoch(images, settings.batch_size)
    require_listable(len(epochs) * count, what="label batches", hint="use fewer epochs or larger batches")
    if settings.ratio == 1:
        return [BatchKey(epoch, batch) for epoch in epochs for batch in range(count)]
    # Pruning keeps complete batches, or any if none is complete.
    candidates = range(images // settings.batch_size or count)
    keys = [BatchKey(epoch, batch) for epoch in epochs for batch in candidates]
    return lowest_ranked(settings.seed, keys, kept_count(len(keys), settings.ratio))


def _refuse_other_images(labelled: ImageTable, found: ImageTable, folder: Path) -> None:
    before = zip(labelled.paths, labelled.digests, strict=True)
    now = zip(found.paths, found.digests, strict=True)
    for (path, digest), (other, other_digest) in zip_longest(before, now, fillvalue=("no more images", None)):
        changed = digest is not None and other_digest is not None and digest != other_digest
        if path != other or changed:
            raise ImageMismatchError(
                "image has changed since the pool was built"
                if path == other
                else "not the images the pool was built from",
                where=folder / path if path == other else folder,
                expected=path if path != other or digest is None else f"digest {digest.hex()}",
                got=other if path != other or other_digest is None else other_digest.hex(),
                hint="restore the labelled images, or build a new pool from these",
            )


def _refuse_surplus(
    pool: Path, present: set[BatchKey], wanted: Sequence[BatchKey], settings: BuildSettings
) -> None:
    """Refuse a pool with batches that are not wanted: a build only adds batches."""
    surplus = present.difference(wanted)
    if not surplus:
        return
    epochs = max(key.epoch for key in surplus) + 1
    way = f"prune it to ratio {settings.ratio:g} instead"
    if epochs > settings.epochs:
        way = f"build with at least {epochs} epochs"
    raise PoolConflictError(
        f"the pool holds {len(surplus)} batches that this build leaves out, e.g. {min(surplus)}",
        where=pool,
        hint=f"{way}, or choose another path",
    )


def _require_replayable(settings: BuildSettings, augmentation: Augmentation) -> None:
    """Refuse settings with which the trainer of SRe2L or LPLD could not replay the exported views."""
    program = settings.replayable_by
    problems = {
        f"resizing by {augmentation.resize}, because it uses Pillow": augmentation.resize != "pil",
        "shuffled patches, which its folders cannot store": augmentation.patch_grid is not None,
        "views that are not square": augmentation.output_height != augmentation.output_width,
        # SRe2L has no cut-outs. Cut-outs of LPLD (ImageNet-21K) cover one more row and column than ours.
        "cut-outs, which it draws differently or not at all": augmentation.cutout_fraction is not None,
        "a pruned pool, whose image ids its folders do not store": settings.ratio != 1 and program == "sre2l",
        "views that readers draw, in our own image order (--views drawn)": settings.views == "drawn",
    }
    for problem, is_so in problems.items():
        if is_so:
            raise InvalidArgumentError(f"{program} cannot replay {problem}", where="--replayable-by")
