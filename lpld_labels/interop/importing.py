"""Import a label folder: detect its layout, plan, run the plan, report."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lpld_labels.errors import InvalidArgumentError, LabelSourceError, StagingMismatchError
from lpld_labels.exec.job import Executor, Progress
from lpld_labels.exec.local import ONE_PROCESS
from lpld_labels.format import arrow
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import LineageStep, Manifest
from lpld_labels.format.records import BatchKey
from lpld_labels.interop.batch_file import parse_batch
from lpld_labels.interop.import_batches import BatchFiles, plan_batches
from lpld_labels.interop.import_images import ImageFiles, plan_images
from lpld_labels.interop.import_target import Request, first_readable
from lpld_labels.interop.layouts import LAYOUTS, LabelFolder, Layout, list_label_folder
from lpld_labels.interop.settings import ImportOptions
from lpld_labels.interop.torch_file import read_torch_file
from lpld_labels.pool.plan import PoolPlan
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard import EncodedBatch
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.pool.unfinished import partial_directory, unfinished
from lpld_labels.render.images import scan_image_folder
from lpld_labels.results import Result
from lpld_labels.transforms import lineage
from lpld_labels.transforms.outputs import OVERWRITE_HINT, pool_path
from lpld_labels.transforms.pipeline import finished_before, require_output, run_plan
from lpld_labels.transforms.remote_output import writes_pools

AUTO = "auto"
_COMPARED = 64  # Finished batches or image groups that a resumed import compares again.


@dataclass(frozen=True, kw_only=True, repr=False)
class ImportReport(Result):
    """Result of an import. found, assumed, odd: facts, assumptions and warnings, one sentence each.

    holes: skipped files, each with the reason. source_bytes: size of the label files.
    """

    format: str
    source: str
    pool: str
    batches: int
    rows: int
    epochs: int
    images: int
    classes: int
    codec: str
    content_digest: str
    source_bytes: int
    pool_bytes: int
    found: tuple[str, ...]
    assumed: tuple[str, ...]
    odd: tuple[str, ...]
    holes: tuple[dict[str, str], ...]


def detect_format(source: str | os.PathLike[str], label_format: str = AUTO) -> str:
    """Return the name of a folder's layout. Raises if the folder cannot be imported; reads no images."""
    return _layout_of(list_label_folder(Path(source).absolute()), label_format).name


def require_importable(
    pool: str | os.PathLike[str], *sources: str | os.PathLike[str], overwrite: bool
) -> None:
    """Raise if an import must not write to the path `pool`, e.g. because it overlaps a source."""
    require_output(pool, *sources, overwrite=overwrite, step=LineageStep(operation="import", parameters={}))


@writes_pools
def import_labels(
    source: str | os.PathLike[str],
    pool: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str] | ImageTable,
    label_format: str = AUTO,
    options: ImportOptions | None = None,
    executor: Executor = ONE_PROCESS,
    skip_bad: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ImportReport:
    """Convert a label folder into a pool. No code in the folder is run.

    label_format: a key of LAYOUTS, or ``auto`` to detect it.
    images: the folder of the images that were labelled (one directory per class), or its `ImageTable`.
    skip_bad: skip damaged and missing files, and record them in the pool.
    overwrite: replace an existing pool.
    """
    out = pool_path(pool)
    require_importable(
        out, *((source,) if isinstance(images, ImageTable) else (source, images)), overwrite=overwrite
    )
    folder = list_label_folder(Path(source).absolute())
    request = Request(
        layout=_layout_of(folder, label_format),
        folder=folder,
        images=images if isinstance(images, ImageTable) else scan_image_folder(images, decode=False),
        options=options or ImportOptions(),
    )
    if folder.unknown:
        shown = ", ".join(folder.unknown[:3])
        request.notes.odd.append(f"{len(folder.unknown)} files that are not label files: {shown}")
    plan_files = plan_batches if request.layout.file else plan_images
    files = plan_files(request, skip_bad=skip_bad)
    shards = files.shards()
    step = lineage.step(
        "import",
        None,
        request.options,
        format=request.layout.name,
        source=folder.root.name,  # The full path is not portable.
        assumed=request.notes.assumed,
        planned_batches=sum(shard.batches for shard in shards),
        **request.notes.results,
    )
    if other := _other_labels(files, out, step):
        if not overwrite:
            problem = f"different labels were imported here earlier: {other}"
            raise StagingMismatchError(problem, where=out, hint=OVERWRITE_HINT)
        with unfinished(out) as work:
            work.delete()
    target = files.target
    plan = PoolPlan(
        out=out,
        header=replace(target.header, lineage=(step,)),
        images=target.images,
        codec=target.codec,
        source=files,
        shards=shards,
        settings={"command": "import"},
        content_digest="of other labels" if other else None,
    )
    manifest = run_plan(plan, executor=executor, overwrite=overwrite, progress=progress)
    return _report(request, out, manifest)


def _layout_of(folder: LabelFolder, name: str) -> Layout:
    """Return a layout by name; ``auto`` detects it from file names and one file."""
    if name in LAYOUTS:
        return LAYOUTS[name]
    if name != AUTO:
        raise InvalidArgumentError("unknown label format", expected=", ".join(LAYOUTS), got=name)
    layouts = [
        layout
        for layout in LAYOUTS.values()
        if folder.files(layout) and (layout.ids != "epoch lists" or folder.has_ids(layout))
    ]
    if not layouts:
        raise LabelSourceError(
            "no label files of a known layout",
            where=folder.root,
            expected="epoch_E/batch_B.tar, batch_N.tar or CLASS/IMAGE.tar",
            got=", ".join(folder.unknown[:3]) or "nothing",
        )
    if not layouts[0].file:
        return layouts[0]

    def fitting(path: Path) -> Layout:
        saved = read_torch_file(path)

        def fit(layout: Layout) -> Layout:
            parse_batch(saved, layout.items, where=path)
            return layout

        return first_readable(layouts, fit)

    return first_readable(folder.files(layouts[0]), fitting)


def _other_labels(files: BatchFiles | ImageFiles, out: Path, step: LineageStep) -> str:
    """Return how the labels differ from labels imported earlier; "" if they are the same or none exist."""
    done: dict[BatchKey, bytes] = {}
    found = finished_before(out, step)
    if found is not None:
        if found.header.lineage[-1].parameters.get("holes") and not files.skip_bad:
            return "damaged or missing files were skipped"
        with PoolReader(out) as pool:
            done = dict(zip(pool.keys, pool.index.digests(), strict=True))
    elif partial_directory(out).is_dir():
        with unfinished(out) as work:
            for record in work.records(work.numbers(), checked=False).values():
                if not record.skipped:
                    done |= zip(record.keys, arrow.binaries(record.index["digest"]), strict=True)
    items: list[Any] = sorted({files.item(key) for key in done})
    reader = replace(files, skip_bad=True)
    for batch in reader(items[:: max(1, len(items) // _COMPARED)]):
        if isinstance(batch, EncodedBatch) and done.get(batch.key, batch.digest) != batch.digest:
            return f"{batch.key} differs from the label files"
    return ""


def _report(request: Request, out: Path, manifest: Manifest) -> ImportReport:
    folder, notes, counts = request.folder, request.notes, manifest.counts
    return ImportReport(
        format=request.layout.name,
        source=str(folder.root),
        pool=str(out),
        batches=counts.batches,
        rows=counts.rows,
        epochs=counts.epochs,
        images=counts.images,
        classes=manifest.header.classes,
        codec=manifest.codec.name,
        content_digest=manifest.content_digest,
        source_bytes=sum(path.stat().st_size for path in folder.files(request.layout)),
        pool_bytes=pool_bytes(manifest),
        found=tuple(notes.found),
        assumed=tuple(notes.assumed),
        odd=tuple(notes.odd),
        holes=tuple(manifest.header.lineage[-1].parameters.get("holes", ())),
    )
