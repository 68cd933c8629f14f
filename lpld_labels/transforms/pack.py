"""Pools that carry their images: putting them in. `unpack` has the way back.

Packing changes no label: the files of the pool are copied as they are, and packed images come beside them.
Lineage says how labels came to be, so it does not speak of packing.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from lpld_labels.exec.job import Progress
from lpld_labels.format.files import FILE_COMPONENTS
from lpld_labels.format.manifest import Manifest, readable_text
from lpld_labels.format.schema import MANIFEST_FILE
from lpld_labels.io.storage import write_atomically
from lpld_labels.pool.commit import finish_commit
from lpld_labels.pool.copying import copy_file
from lpld_labels.pool.packing import Packed
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.staging import StagingArea
from lpld_labels.render.images import FolderImages, ImageSource, check_images
from lpld_labels.transforms.destinations import writes_pools
from lpld_labels.transforms.engine import published, require_free, same_lineage
from lpld_labels.transforms.outputs import require_apart, sole_writer


@writes_pools
def pack_pool(
    pool: PoolReader,
    out: str | os.PathLike[str],
    images: ImageSource,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    check_progress: Progress | None = None,
    image_progress: Progress | None = None,
) -> Manifest:
    """Write a pool to `out` that has the same labels and carries its images; return its manifest.

    images: where they come from; all are compared with their digests before anything is written.
    overwrite: replace another pool that is there. check_progress, progress, image_progress: called with
    (done, total) images compared, bytes of the pool's files copied, images packed.
    """
    path = Path(out).absolute()
    require_apart(path, pool.location, *([images.root] if isinstance(images, FolderImages) else []))

    def is_ours(found: Manifest) -> bool:
        same = found.content_digest == pool.manifest.content_digest
        return (
            same
            and bool(found.files_of("packed"))
            and same_lineage(found.header.lineage, pool.header.lineage)
        )

    require_free(path, is_ours, overwrite=overwrite)
    purpose = {"pack": pool.manifest.content_digest}
    check_images(images, progress=check_progress)
    with sole_writer(path):
        found = published(path, is_ours, purpose=purpose, overwrite=overwrite)
        if found is not None:
            return found
        staging = StagingArea(path)
        staging.prepare(pool.header, pool.codec, pool.images, views=pool.manifest.views, purpose=purpose)
        _copy_files(pool, path, staging.directory, progress)
        packed = Packed(images, image_progress)(path, within=staging.directory)
        others = [entry for entry in pool.manifest.files if entry.role != "packed"]
        weight = {FILE_COMPONENTS["packed"]: sum(entry.bytes for entry in packed)}
        manifest = replace(
            pool.manifest, files=(*others, *packed), components={**pool.manifest.components, **weight}
        )
        text = readable_text(manifest, where=path)
        write_atomically(path / MANIFEST_FILE, text, within=staging.directory)
        finish_commit(path, manifest)
        return manifest


def _copy_files(pool: PoolReader, out: Path, within: Path, progress: Progress | None) -> None:
    entries = [entry for entry in pool.manifest.files if entry.role != "packed"]
    done, total = 0, sum(entry.bytes for entry in entries)
    for entry in entries:
        copy_file(pool.files, entry, out, within=within)
        done += entry.bytes
        if progress is not None:
            progress(done, total)
