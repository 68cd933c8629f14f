"""The same pool with its views in files, or left out to be drawn again; labels are copied as they are."""

from __future__ import annotations

import os
from pathlib import Path

from lpld_labels.exec.job import Engine, Progress
from lpld_labels.exec.local import ONE_PROCESS
from lpld_labels.format.manifest import LineageStep, Manifest
from lpld_labels.format.schema import Views
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.staging_plan import deciding
from lpld_labels.pool.views_source import require_drawn
from lpld_labels.transforms.destinations import writes_pools
from lpld_labels.transforms.engine import published, require_possible, same_lineage, stage
from lpld_labels.transforms.outputs import sole_writer
from lpld_labels.transforms.sources import Selection


@writes_pools
def change_views(
    pool: PoolReader,
    out: str | os.PathLike[str],
    views: Views,
    *,
    engine: Engine = ONE_PROCESS,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Write the pool to `out` with views stored or drawn; no label is decoded. Returns its manifest.

    overwrite: replace another pool that is there. progress: called with (done, total) batches.
    """
    require_possible(out, pool, overwrite=overwrite)
    require_drawable(pool, views)
    digest = pool.manifest.content_digest
    step = LineageStep(operation="encode", parent_digest=digest, parameters={"views": views})
    lineage = (*pool.header.lineage, step)

    def is_ours(manifest: Manifest) -> bool:
        return manifest.content_digest == digest and same_lineage(manifest.header.lineage, lineage)

    purpose = deciding("encode", pool=digest, views=views)
    with sole_writer(out):
        found = published(out, is_ours, purpose=purpose, overwrite=overwrite)
        if found is not None:
            return found
        draft = Selection(pool=pool, keys=pool.keys).draft(Path(out).absolute(), purpose, views=views)
        return stage(draft, engine=engine, progress=progress).commit(lineage=lineage)


def require_drawable(pool: PoolReader, views: Views | None) -> None:
    """Refuse at once, before anything is written, to leave out views that were not drawn from the seed."""
    if views == "drawn" and pool.manifest.views == "stored" and len(pool):
        require_drawn(pool.views_at(0), pool.header, pool.images)
