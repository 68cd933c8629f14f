"""Importing a label folder: find its layout, plan, run the plan, report."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lpld_labels.errors import (
    InvalidArgumentError,
    LabelSourceError,
    StagingMismatchError,
)
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
from lpld_labels.interop.label_folder import LabelFolder, list_label_folder
from lpld_labels.interop.layouts import LAYOUTS, Layout
from lpld_labels.interop.settings import ImportOptions
from lpld_labels.interop.torch_file import read_torch_file
from lpld_labels.pool.plan import PoolPlan
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard import EncodedBatch
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.pool.unfinished import partial_directory, unfinished
from lpld_labels.render.images import scan_image_folder
from lpld_labels.transforms import lineage
from lpld_labels.transforms.outputs import OVERWRITE_HINT
from lpld_labels.transforms.pipeline import finished_before, pool_path, require_output, run_plan
from lpld_labels.transforms.remote_output import writes_pools

AUTO = "auto"
_COMPARED = 64
"""Label files that are read again to see whether an earlier run imported the same labels."""


@dataclass(frozen=True, kw_only=True)
class ImportReport:
    """What was imported, and what a reader must know to trust it.

    found, assumed, odd: one sentence each. holes: files that were left out, and why.
    source_bytes: size of the label files.
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

    def as_json(self) -> dict[str, Any]:
        """Return the report as a JSON document."""
        return asdict(self)


def detect_format(source: str | os.PathLike[str], label_format: str = AUTO) -> str:
    """Return the name of a folder's layout; raise what is wrong with the folder before any image is read."""
    return _layout_of(list_label_folder(Path(source).absolute()), label_format).name


def require_importable(
    pool: str | os.PathLike[str], *sources: str | os.PathLike[str], overwrite: bool
) -> None:
    """Refuse, before any image is read, a path where no import may write."""
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
    """Turn a label folder into a pool without running anything from it.

    label_format: a name of LAYOUTS, or ``auto`` to find out.
    images: the folder of the images that were labelled (one directory per class), or its table.
    executor: runs the work. skip_bad: leave out files that are damaged or missing, and record them.
    overwrite: replace another pool that is there.
    """
    out = pool_path(pool)
    require_importable(
        out, source, *(() if isinstance(images, ImageTable) else (images,)), overwrite=overwrite
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
        request.notes.odd.append(f"{len(folder.unknown)} names that are no label files: {shown}")
    planned = plan_batches if request.layout.file else plan_images
    files, results = planned(request, skip_bad=skip_bad)
    shards = files.shards()
    step = lineage.step(
        "import",
        None,
        request.options,
        format=request.layout.name,
        source=folder.root.name,  # Not its path: pools travel.
        assumed=request.notes.assumed,
        planned_batches=sum(shard.batches for shard in shards),
        **results,
    )
    other = _other_labels(files, out, step)
    if other and not overwrite:
        raise StagingMismatchError(
            f"other labels were imported here: {other}", where=out, hint=OVERWRITE_HINT
        )
    if other:
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
    """Return a layout by name; ``auto`` finds the first that a folder and one of its files fit."""
    if name != AUTO and name not in LAYOUTS:
        raise InvalidArgumentError("unknown label format", expected=", ".join(LAYOUTS), got=name)
    if name != AUTO:
        return LAYOUTS[name]
    if not any(folder.files(layout) for layout in LAYOUTS.values()):
        raise LabelSourceError(
            "no label files of a known layout",
            where=folder.root,
            expected="epoch_E/batch_B.tar, batch_N.tar or CLASS/IMAGE.tar",
            got=", ".join(folder.unknown[:3]) or "nothing",
        )
    layouts = [layout for layout in LAYOUTS.values() if _may_be(folder, layout)]
    if not layouts[0].file:
        return layouts[0]

    def fitting(path: Path) -> Layout:
        saved = read_torch_file(path)

        def fit(layout: Layout) -> Layout:
            parse_batch(saved, layout.items, where=path)
            return layout

        return first_readable(layouts, fit)

    return first_readable(folder.files(layouts[0]), fitting)


def _may_be(folder: LabelFolder, layout: Layout) -> bool:
    """Whether a folder's files are named as a layout says."""
    if not folder.files(layout):
        return False
    if layout.ids == "sampler":
        others = (other for other in LAYOUTS.values() if other.ids_file and other.file == layout.file)
        return not any(folder.has_ids(other) for other in others)
    return layout.ids != "epoch lists" or folder.has_ids(layout)


def _other_labels(files: BatchFiles | ImageFiles, out: Path, step: LineageStep) -> str:
    """Return how the label files differ from what an earlier run of this command imported, if they do.

    Nothing in a label folder says whose labels it holds: another teacher's has files of the same names and
    sizes. So some of the files that are done are read again and compared.
    """
    done: dict[BatchKey, bytes] = {}
    found = finished_before(out, step)
    if found is not None:
        if found.header.lineage[-1].parameters.get("holes") and not files.skip_bad:
            return "files that were damaged or missing then were left out"
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
            return f"{batch.key} is not what the label files give now"
    return ""


def _report(request: Request, out: Path, manifest: Manifest) -> ImportReport:
    folder, notes = request.folder, request.notes
    return ImportReport(
        format=request.layout.name,
        source=str(folder.root),
        pool=str(out),
        batches=manifest.counts.batches,
        rows=manifest.counts.rows,
        epochs=manifest.counts.epochs,
        images=manifest.counts.images,
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
