"""Copy pools: one as it is, several into one, or with the images added."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from lpld_labels.errors import InvalidArgumentError, PoolConflictError
from lpld_labels.exec.job import Progress
from lpld_labels.format.manifest import LineageStep, Manifest
from lpld_labels.format.records import BatchKey
from lpld_labels.io.addresses import Location, is_address
from lpld_labels.io.remote import RemoteStore
from lpld_labels.pool.packing import ImageCarrier, Packed, carried
from lpld_labels.pool.plan import PoolPlan, cut_by_size, pool_identity, require_alike
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard import EncodedBatch
from lpld_labels.render.images import FolderImages, ImageSource, check_images, find_images
from lpld_labels.transforms.batch_sources import CopiedBatches
from lpld_labels.transforms.outputs import require_apart
from lpld_labels.transforms.pipeline import pool_path, require_output, run_plan
from lpld_labels.transforms.remote_output import writes_pools
from lpld_labels.transforms.transfer import Copied, fetch_pool, send_pool


def copy_pool(
    pools: Location | Sequence[Location],
    out: Location,
    *,
    images: Location | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    image_progress: Progress | None = None,
) -> Copied:
    """Copy a pool to a directory or an address; or several into one, if they have no batch in common.

    images: the labelled image folder, which the new pool then carries; every image is checked first.
    overwrite: replace another pool that is there. progress: called with (done, total) bytes of files, or
    batches where shards are written anew. image_progress: called with (done, total) images packed.
    """
    locations = [pools] if isinstance(pools, (str, os.PathLike)) else list(pools)
    if not locations:
        raise InvalidArgumentError("nothing to copy", expected="a pool or more")
    with ExitStack() as stack:
        # Batches are visited in file order, so one block of views and two shards at a time are enough.
        opened = (PoolReader(location, view_cache_bytes=0, open_shards=2) for location in locations)
        readers = [stack.enter_context(reader) for reader in opened]
        if len(readers) > 1 or images is not None:
            source = None if images is None else find_images(readers[0], images)
            manifest = merge_pools(
                readers,
                out,
                images=source,
                overwrite=overwrite,
                progress=progress,
                image_progress=image_progress,
            )
            size = sum(entry.bytes for entry in manifest.files)
            return Copied(manifest=manifest, files=len(manifest.files), sent=size, found=0)
        if not is_address(out):
            require_apart(out, readers[0].location)
            return fetch_pool(readers[0], pool_path(out), overwrite=overwrite, progress=progress)
        store = RemoteStore(os.fspath(out))
        if is_address(locations[0]) and store.address == RemoteStore(os.fspath(locations[0])).address:
            raise InvalidArgumentError("source and target are the same", where=store.shown)
        return send_pool(readers[0].files, store, overwrite=overwrite, progress=progress)


@writes_pools
def merge_pools(
    pools: Sequence[PoolReader],
    out: Location,
    *,
    images: ImageSource | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    image_progress: Progress | None = None,
) -> Manifest:
    """Write a pool of all batches of some pools, copied as they are, and return its manifest.

    The pools are of the same images, teachers, settings and codec, and no two hold the same batch.
    images: that the new pool carries. A single pool keeps its lineage.
    """
    first = pools[0]
    lineage = first.header.lineage if len(pools) == 1 else (_step(pools),)
    inputs = [pool.location for pool in pools]
    inputs += [str(images.root)] if isinstance(images, FolderImages) else []
    require_output(out, *inputs, overwrite=overwrite, step=lineage[-1] if lineage else None)
    for other in pools[1:]:
        require_alike(
            _identity(first),
            _identity(other),
            where=other.location,
            problem="pools cannot be merged",
            hint="merge pools of the same images, teachers, settings and codec; encode them afterwards",
        )
    owners = _owners(pools)
    if images is not None:
        check_images(images)
    keys = sorted(owners)
    places = [(owners[key].index, owners[key].find(key)) for key in keys]
    return run_plan(
        PoolPlan(
            out=pool_path(out),
            header=replace(first.header, lineage=lineage),
            images=first.images,
            codec=first.codec,
            views=first.manifest.views,
            source=_OfSeveral(tuple(pools)),
            shards=cut_by_size(
                keys,
                np.array([index.rows[number] for index, number in places], np.int64),
                np.array([index.label_bytes[number] for index, number in places], np.int64),
            ),
            settings={"copy": [pool.manifest.content_digest for pool in pools]},
            packed=_carrier(pools, images, image_progress),
            content_digest=first.digest_of([index.digest(number) for index, number in places]),
        ),
        overwrite=overwrite,
        progress=progress,
    )


def _carrier(
    pools: Sequence[PoolReader], images: ImageSource | None, progress: Progress | None
) -> ImageCarrier | None:
    if images is not None:
        return Packed(images, progress)
    # One that carries the images is enough: they are the same images.
    return next((found for found in map(carried, pools) if found is not None), None)


@dataclass(frozen=True)
class _OfSeveral:
    """Batches that lie in one of several pools; items are keys."""

    pools: tuple[PoolReader, ...]

    def __call__(self, keys: Sequence[BatchKey]) -> Iterator[EncodedBatch]:
        for pool in self.pools:
            yield from CopiedBatches(pool)([key for key in keys if key in pool])


def _identity(pool: PoolReader) -> dict[str, Any]:
    return pool_identity(pool.header, pool.codec, pool.images, pool.manifest.views)


def _owners(pools: Sequence[PoolReader]) -> dict[BatchKey, PoolReader]:
    owners: dict[BatchKey, PoolReader] = {}
    for pool in pools:
        for key in pool.keys:
            if key in owners:
                raise PoolConflictError(
                    f"two pools hold {key}: {owners[key].location} and {pool.location}",
                    hint="merge pools that have no batch in common",
                )
            owners[key] = pool
    return owners


def _step(pools: Sequence[PoolReader]) -> LineageStep:
    """Return what lineage says: the past of every pool, for only one could come before this step."""
    return LineageStep(
        operation="merge",
        parent_digest=pools[0].manifest.content_digest,
        parameters={
            "pools": [
                {
                    "content_digest": pool.manifest.content_digest,
                    "batches": len(pool),
                    "lineage": [asdict(step) for step in pool.header.lineage],
                }
                for pool in pools
            ]
        },
    )
