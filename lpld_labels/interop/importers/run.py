"""Importing a foreign label folder: detect, plan, read, commit, report."""

from __future__ import annotations

import os
from pathlib import Path

from lpld_labels.errors import LabelSourceError, StagingMismatchError
from lpld_labels.exec.job import Engine, Progress
from lpld_labels.exec.local import ONE_PROCESS
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import LineageStep, Manifest
from lpld_labels.format.schema import STAGING_DIRECTORY
from lpld_labels.interop.importers.base import ImportOptions, ImportPlan, LabelFormat, Notes
from lpld_labels.interop.importers.formats import AUTO, format_named
from lpld_labels.interop.importers.report import Hole, HoleLog, ImportReport
from lpld_labels.interop.importers.resumed import resumed_batches
from lpld_labels.interop.importers.work import Job
from lpld_labels.interop.label_folder import LabelFolder, list_label_folder
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.pool.staged_writer import StagedWriter
from lpld_labels.render.images import scan_image_folder
from lpld_labels.transforms.destinations import writes_pools
from lpld_labels.transforms.engine import Draft, published, require_free, stage
from lpld_labels.transforms.outputs import delete_pool, require_apart, sole_writer

HOLES_FILE = "holes.jsonl"


def detect_format(source: str | os.PathLike[str], label_format: str = AUTO) -> str:
    """Return the format's name; raise what is wrong with the folder before any image is read."""
    return format_named(label_format, list_label_folder(Path(source).absolute())).name


def require_importable(
    pool: str | os.PathLike[str], *sources: str | os.PathLike[str], overwrite: bool
) -> None:
    """Refuse, before any image is read, a path where no import may write."""
    require_apart(pool, *sources)
    require_free(
        pool,
        lambda found: [step.operation for step in found.header.lineage] == ["import"],
        overwrite=overwrite,
    )


@writes_pools
def import_labels(
    source: str | os.PathLike[str],
    pool: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str] | ImageTable,
    label_format: str = AUTO,
    options: ImportOptions | None = None,
    engine: Engine = ONE_PROCESS,
    skip_bad: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ImportReport:
    """Turn a label folder into a pool without running anything from it.

    label_format: a name of FORMATS, or ``auto`` to find out.
    images: the folder of the images that were labelled (one directory per class), or its table.
    engine: who does the work. skip_bad: go on without files that are damaged or missing, and record them.
    overwrite: replace another pool that is there.
    Interrupted, the same call goes on where it stopped, if the files of what is done are as they were.
    """
    out = Path(pool).absolute()
    inputs = (source,) if isinstance(images, ImageTable) else (source, images)
    require_importable(out, *inputs, overwrite=overwrite)
    folder = list_label_folder(Path(source).absolute())
    kind = format_named(label_format, folder)
    notes = Notes()
    if folder.strangers:
        shown = ", ".join(folder.strangers[:3])
        notes.odd.append(f"{len(folder.strangers)} names that are no label files: {shown}")
    table = images if isinstance(images, ImageTable) else scan_image_folder(images, decode=False)
    plan = kind.plan(folder, table, options or ImportOptions(), notes)
    _refuse_missing(plan, skip_bad)
    log = HoleLog(out / STAGING_DIRECTORY / HOLES_FILE) if skip_bad else None
    job = Job(format=kind.name, source=folder.root, target=plan.target, log=log)
    purpose = {"import": folder.root.name, "format": kind.name, **plan.parameters}
    draft = job.draft(out, plan, purpose)

    def is_ours(found: Manifest) -> bool:
        return _is_import(found, kind) and job.made(out, plan)

    with sole_writer(out):
        manifest = published(out, is_ours, purpose=purpose, overwrite=overwrite)
        if manifest is not None:
            parameters = manifest.header.lineage[-1].parameters
            holes = tuple(Hole(file=hole["file"], why=hole["why"], key=None) for hole in parameters["holes"])
            return _report(folder, out, kind, manifest, notes, holes, manifest.counts.batches)
        resumed = _resumed(draft, job, plan, engine, progress, overwrite=overwrite)
        writer = stage(draft, engine=engine, progress=progress)
        holes = _holes(job, writer)
        step = LineageStep(operation="import", parameters=_lineage(kind, folder, plan, notes, holes))
        manifest = writer.commit(lineage=(step,))
    return _report(folder, out, kind, manifest, notes, holes, resumed)


def _resumed(
    draft: Draft, job: Job, plan: ImportPlan, engine: Engine, progress: Progress | None, *, overwrite: bool
) -> int:
    """Return how many batches are done already; those of another import are refused, or deleted."""
    try:
        return resumed_batches(draft, job, plan.units(), engine=engine, progress=progress)
    except StagingMismatchError:
        if not overwrite:
            raise
    delete_pool(draft.out)
    return 0


def _is_import(manifest: Manifest, kind: LabelFormat) -> bool:
    """Whether a pool was imported from such a folder and not changed since."""
    lineage = manifest.header.lineage
    return [(step.operation, step.parameters.get("format")) for step in lineage] == [("import", kind.name)]


def _refuse_missing(plan: ImportPlan, skip_bad: bool) -> None:
    if plan.missing and not skip_bad:
        raise LabelSourceError(
            f"{len(plan.missing)} of {plan.batches} label files are missing",
            where=plan.missing[0],
            hint="copy the folder again, or go on without them with --skip-bad",
        )


def _holes(job: Job, writer: StagedWriter) -> tuple[Hole, ...]:
    """Return what is missing from the pool; a file that was repaired since is no hole any more."""
    if job.log is None:
        return ()
    holes = tuple(hole for hole in job.log.read() if hole.key is None or hole.key not in writer)
    if not writer.keys:
        raise LabelSourceError(
            f"none of the label files can be imported: {holes[0].why if holes else 'there are none'}",
            where=job.source,
        )
    return holes


def _lineage(
    kind: LabelFormat, folder: LabelFolder, plan: ImportPlan, notes: Notes, holes: tuple[Hole, ...]
) -> dict[str, object]:
    """Return what the pool remembers of its import. Folder names, not paths: pools travel."""
    return {
        "format": kind.name,
        "source": folder.root.name,
        "assumed": list(notes.assumed),
        "holes": [{"file": hole.file, "why": hole.why} for hole in holes],
        **plan.parameters,
    }


def _report(
    folder: LabelFolder,
    out: Path,
    kind: LabelFormat,
    manifest: Manifest,
    notes: Notes,
    holes: tuple[Hole, ...],
    resumed: int,
) -> ImportReport:
    files = [*folder.by_epoch.values(), *folder.numbered.values(), *folder.by_image.values()]
    return ImportReport(
        format=kind.name,
        source=str(folder.root),
        pool=str(out),
        batches=manifest.counts.batches,
        rows=manifest.counts.rows,
        epochs=manifest.counts.epochs,
        images=manifest.counts.images,
        classes=manifest.header.classes,
        codec=manifest.codec.name,
        content_digest=manifest.content_digest,
        source_bytes=sum(path.stat().st_size for path in files),
        pool_bytes=pool_bytes(manifest),
        resumed=resumed,
        found=tuple(notes.found),
        assumed=tuple(notes.assumed),
        odd=tuple(notes.odd),
        holes=holes,
    )
