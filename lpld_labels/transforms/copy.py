"""Copy a pool, merge pools, add images to a pool, or unpack its images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from lpld_labels.errors import InvalidArgumentError, PoolConflictError
from lpld_labels.exec.job import Progress, say_reused
from lpld_labels.format.digests import image_digest
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import LineageStep, Manifest
from lpld_labels.format.probe import PROBE, probes_of
from lpld_labels.format.records import BatchKey
from lpld_labels.io.addresses import Location, is_address
from lpld_labels.io.hub import is_hub
from lpld_labels.io.remote import RemoteStore
from lpld_labels.io.storage import refuse_links, write_atomically, write_errors
from lpld_labels.pool.packing import ImageSource, Packed, PackedImages, carried
from lpld_labels.pool.plan import PoolPlan, cut_by_size, pool_identity, require_alike
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.unfinished import Unfinished, differences, finish, unfinished
from lpld_labels.render.images import AHEAD, THREADS, FolderImages, check_images, find_images, map_ahead
from lpld_labels.transforms.batch_sources import CopiedBatches
from lpld_labels.transforms.outputs import local_directory, pool_path, require_apart
from lpld_labels.transforms.pipeline import require_output, run_plan
from lpld_labels.transforms.remote_output import Copied, destination, fetch_pool, send_pool, writes_pools


def copy_pool(
    pools: Location | Sequence[Location],
    out: Location,
    *,
    images: Location | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    image_progress: Progress | None = None,
) -> Copied:
    """Copy a pool to a directory or an address, or merge pools that have no batch in common.

    images: folder of labelled images to pack into the new pool; every image is checked first.
    overwrite: replace a different pool at `out`. progress: called with (done, total) bytes; with batches
    if pools are merged or images added. image_progress: called with (done, total) images packed.
    """
    locations = [pools] if isinstance(pools, (str, os.PathLike)) else list(pools)
    if not locations:
        raise InvalidArgumentError("nothing to copy", expected="at least one pool")
    with ExitStack() as stack:
        # Batches are visited in file order, so one block of views and two shards at a time are enough.
        readers = [
            stack.enter_context(PoolReader(location, view_cache_bytes=0, open_shards=2))
            for location in locations
        ]
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
        require_apart(out, readers[0].location)
        # What is sent to the hub must be in a directory.
        if not is_address(out) or (is_hub(os.fspath(out)) and is_address(locations[0])):
            with destination(out, overwrite=overwrite) as path:
                return fetch_pool(readers[0], pool_path(path), overwrite=overwrite, progress=progress)
        store = RemoteStore(os.fspath(out))
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
    """Write one pool with the batches of several pools, copied as stored, and return its manifest.

    The pools must have the same images, teachers, settings and codec, and no batch in common.
    images: images to pack into the new pool. A single pool keeps its lineage.
    """
    first = pools[0]
    lineage = first.header.lineage if len(pools) == 1 else (_step(pools),)
    inputs = [pool.location for pool in pools]
    inputs += [str(images.root)] if isinstance(images, FolderImages) else []
    require_output(out, *inputs, overwrite=overwrite, step=lineage[-1] if lineage else None)
    identities = [pool_identity(one.header, one.codec, one.images, one.manifest.views) for one in pools]
    for other, identity in zip(pools, identities, strict=True):
        require_alike(
            identities[0],
            identity,
            where=other.location,
            problem="pools cannot be merged",
            hint="merge pools of the same images, teachers, settings and codec; encode them afterwards",
        )
    probes = [(pool, probe) for pool in pools for probe in probes_of(pool.header)]
    for pool, probe in probes:
        for field, expected, got in differences({PROBE: probes[0][1]}, {PROBE: probe}):
            raise PoolConflictError(
                f"pools cannot be merged: the {field} of their teachers differs",
                where=pool.location,
                expected=expected,
                got=got,
                hint="the teacher's code, normalisation or resizing changed between the builds",
            )
    places = dict(sorted(_places(pools).items()))
    if images is not None:
        check_images(images)
    # The pools have the same images, so copy them from the first pool that contains any.
    in_pools = next(filter(None, map(carried, pools)), None)
    packed = in_pools if images is None else Packed(images, image_progress)
    return run_plan(
        PoolPlan(
            out=pool_path(out),
            header=replace(first.header, lineage=lineage),
            images=first.images,
            codec=first.codec,
            views=first.manifest.views,
            source=CopiedBatches(tuple(pools)),
            shards=cut_by_size(
                list(places),
                np.array([pool.index.rows[number] for pool, number in places.values()], np.int64),
                np.array([pool.index.label_bytes[number] for pool, number in places.values()], np.int64),
            ),
            settings={"copy": [pool.manifest.content_digest for pool in pools]},
            packed=packed,
            content_digest=first.digest_of([pool.index.digest(number) for pool, number in places.values()]),
        ),
        overwrite=overwrite,
        progress=progress,
    )


def _places(pools: Sequence[PoolReader]) -> dict[BatchKey, tuple[PoolReader, int]]:
    """Map each key to (its pool, its batch number in that pool). Refuse a key that two pools have."""
    places: dict[BatchKey, tuple[PoolReader, int]] = {}
    for pool in pools:
        for number, key in enumerate(pool.keys):
            if key in places:
                raise PoolConflictError(
                    f"two pools contain {key}: {places[key][0].location} and {pool.location}",
                    hint="merge pools that have no batch in common",
                )
            places[key] = pool, number
    return places


def _step(pools: Sequence[PoolReader]) -> LineageStep:
    """Return a lineage step that embeds every pool's lineage, because a step has only one parent."""
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


def unpack_images(images: PackedImages, out: Location, *, progress: Progress | None = None) -> int:
    """Write a pool's images to a new folder, via FOLDER.partial; return the number written.

    Paths come from the image table, which allows only paths that stay below the folder on every system.
    """
    folder, table = local_directory(out), images.table
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if _holds(folder, table):
            finish(folder)
            return 0
        raise PoolConflictError("a file or folder is already here", where=folder, hint="choose another path")
    with unfinished(folder) as work:
        work.begin({"unpack": table.digest().hex()})
        written = 0
        rows = range(len(table))
        written_ahead = map_ahead(
            lambda row: _write_image(images, row, work), rows, workers=THREADS, ahead=AHEAD
        )
        for done, new in enumerate(written_ahead, 1):
            written += new
            if progress is not None:
                progress(done, len(rows))
        say_reused(folder, len(rows) - written, len(rows), "images")
        with write_errors(folder):
            work.pool.rename(folder)
            work.delete()
    return written


def _write_image(images: PackedImages, row: int, work: Unfinished) -> bool:
    """Write one image unless it is already there; return whether it was written."""
    path = work.pool / images.table.paths[row]
    refuse_links([path.parent, path])
    if path.is_file() and image_digest(path.read_bytes()) == images.table.digests[row]:
        return False
    data = images.read(row)
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data, within=work.directory)
    return True


def _holds(folder: Path, table: ImageTable) -> bool:
    if not folder.is_dir():
        return False
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if not path.is_dir()}
    expected = dict(zip(table.paths, table.digests, strict=True))
    return found.keys() == expected.keys() and all(
        not path.is_symlink() and image_digest(path.read_bytes()) == expected[name]
        for name, path in found.items()
    )
