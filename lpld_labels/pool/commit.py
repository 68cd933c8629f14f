"""The commit: from sealed shards to a published pool.

Every step can be interrupted and done again. Nothing a reader sees changes before the manifest is
renamed into place, and nothing is deleted before that rename is durable. Unfinished files wait in the
staging area, which goes last: a pool without one is finished.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.codecs import Codec
from lpld_labels.errors import PoolConflictError
from lpld_labels.format import arrow
from lpld_labels.format.digests import bytes_digest, pool_digest
from lpld_labels.format.files import FILE_COMPONENTS, CodecEntry, Counts, FileEntry
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import Manifest, PoolHeader, readable_text
from lpld_labels.format.schema import (
    BATCH_SCHEMA,
    CODEC_DIRECTORY,
    COMPONENTS,
    IMAGES_FILE,
    MANIFEST_FILE,
    VIEW_SCHEMA,
    Component,
)
from lpld_labels.io.locks import locked
from lpld_labels.io.parquet_files import FileFacts, image_file, index_file
from lpld_labels.io.random_access import open_file
from lpld_labels.io.storage import write_atomically, write_errors
from lpld_labels.io.verified_parquet import VerifiedParquet
from lpld_labels.pool.duplicates import without_duplicates
from lpld_labels.pool.index import count_runs
from lpld_labels.pool.merge import merge_small_shards
from lpld_labels.pool.own_files import COMMIT_LOCK, delete_unnamed
from lpld_labels.pool.packing import ImageCarrier
from lpld_labels.pool.pool_files import LocalFiles, read_table
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.staged_shard import VIEWS, SealedShard
from lpld_labels.pool.staging import StagingArea
from lpld_labels.pool.staging_plan import describe, require_same_plan
from lpld_labels.pool.view_counts import coverage_of, views_per_image
from lpld_labels.version import __version__

log = logging.getLogger(__name__)

CHECKS_AT_ONCE = 8
"""Staged shards that are read at the same time to prove their digests."""


def commit_pool(
    staging: StagingArea,
    header: PoolHeader,
    codec: Codec,
    images: ImageTable,
    *,
    shard_bytes: int,
    packed: ImageCarrier | None = None,
) -> Manifest:
    """Publish all sealed shards together with what the pool already holds.

    shard_bytes: small shards are merged up to this many label bytes.
    packed: brings the image files that the pool is to carry; a pool that carries them keeps them.
    """
    with _committing(staging):
        old = _old_manifest(staging.pool)
        if old is not None:
            _require_same_pool(staging.pool, old, header, codec, images)
        shards = _sound_shards(staging, old, codec, header.classes)
        packs = packed is not None and not (old and old.files_of("packed"))
        if old is not None and not shards and not packs and header.lineage == old.header.lineage:
            _clean_up(staging, old)
            return old
        shards = merge_small_shards(staging, shards, codec, header.classes, limit=shard_bytes)
        for shard in shards:
            staging.publish(shard)
        images_inside = old.files_of("packed") if old else ()
        if packed is not None and packs:
            images_inside = packed(staging.pool, within=staging.directory)
        manifest = _manifest(staging, old, shards, header, codec, images, images_inside)
        text = readable_text(manifest, where=staging.pool)
        write_atomically(staging.pool / MANIFEST_FILE, text, within=staging.directory)
        _clean_up(staging, manifest)
        return manifest


def merge_staged(staging: StagingArea, codec: Codec, classes: int, *, shard_bytes: int) -> None:
    """Do the part of a commit that publishes nothing."""
    with _committing(staging):
        shards = _sound_shards(staging, _old_manifest(staging.pool), codec, classes)
        merge_small_shards(staging, shards, codec, classes, limit=shard_bytes)


def finish_commit(pool: Path, manifest: Manifest) -> None:
    """Clear away what a commit left that was interrupted after it had published."""
    staging = StagingArea(pool)
    if staging.directory.exists():
        with _committing(staging):
            _clean_up(staging, manifest)


@contextlib.contextmanager
def _committing(staging: StagingArea) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        with write_errors(staging.directory):
            try:
                stack.enter_context(locked(staging.directory / COMMIT_LOCK, wait=False))
            except BlockingIOError:
                raise PoolConflictError(
                    "another process is committing this pool", where=staging.pool, hint="let it finish"
                ) from None
        yield


def _clean_up(staging: StagingArea, manifest: Manifest) -> None:
    """Delete what the published pool does not need; the staging area last, for it says there is work."""
    with write_errors(staging.pool):
        delete_unnamed(staging.pool, {entry.path for entry in manifest.files})
    if not staging.sweep(_shard_names(manifest)):
        log.warning("%s: other writers have sealed work since; commit again to publish it", staging.pool)


def _manifest(
    staging: StagingArea,
    old: Manifest | None,
    shards: Sequence[SealedShard],
    header: PoolHeader,
    codec: Codec,
    images: ImageTable,
    packed: Sequence[FileEntry],
) -> Manifest:
    """Write what belongs to the pool beside its shards, and return the manifest of it all."""
    drawn = staging.drawn if old is None else old.views == "drawn"
    files = list(old.files_of("views") + old.files_of("labels")) if old else []
    for shard in shards:
        files += _shard_files(shard, drawn=drawn)
    files.sort(key=lambda entry: (entry.role != "views", entry.path))
    index = _merged_index(staging.pool, old, shards, [e.path for e in files if e.role == "labels"])
    index_entry = _write_index(staging, index)
    files.append(index_entry)
    # An extended pool keeps its tables: that they are the same was checked when the writer opened.
    tables = [
        *((old.files_of("images") + old.files_of("codec")) if old else _write_tables(staging, codec, images)),
        *packed,
    ]
    return Manifest(
        header=header,
        views="drawn" if drawn else "stored",
        codec=CodecEntry(name=codec.name, parameters=codec.parameters()),
        counts=Counts(
            images=len(images),
            epochs=count_runs(index["epoch"].to_numpy()),
            batches=index.num_rows,
            incomplete_batches=int((index["rows"].to_numpy() < header.batch_size).sum()),
            rows=int(index["rows"].to_numpy().sum()),
        ),
        coverage=coverage_of(_views_per_image(staging, old, shards, len(images)), images.classes),
        components=_components(old, shards, [index_entry, *tables], drawn=drawn),
        content_digest=pool_digest(
            header,
            codec=codec.name,
            identity=codec.identity(),
            images=images.digest(),
            batches=arrow.binaries(index["digest"]),
        ),
        files=(*files, *tables),
        created_by=f"lpld-labels {__version__}",
    )


def _views_per_image(
    staging: StagingArea, old: Manifest | None, shards: Sequence[SealedShard], images: int
) -> npt.NDArray[np.int64]:
    """Return how many views each image has, in what is published and what is about to be."""
    views = np.zeros(images, np.int64)
    if old is not None:
        with PoolReader(staging.pool) as pool:
            views += views_per_image(pool)
    for shard in shards:
        file = open_file(str(staging.file(shard, VIEWS)))
        table = VerifiedParquet(file, shard.views.entry(VIEWS, "views"), VIEW_SCHEMA).read_all(["image"])
        shown = table["image"].to_numpy()
        views += np.bincount(shown, minlength=images)
    return views


def _components(
    old: Manifest | None, shards: Sequence[SealedShard], others: Sequence[FileEntry], *, drawn: bool
) -> dict[Component, int]:
    """Return the bytes of all files by component. others: than those of shards."""
    components: dict[Component, int] = dict.fromkeys(COMPONENTS, 0)
    parts = [shard.labels.components for shard in shards]
    parts += [] if drawn else [shard.views.components for shard in shards]
    if old is not None:
        parts.append(old.components)
        for role, owner in FILE_COMPONENTS.items():
            components[owner] -= sum(entry.bytes for entry in old.files_of(role))
    for part in parts:
        for name, size in part.items():
            components[name] += size
    for entry in others:
        components[FILE_COMPONENTS[entry.role]] += entry.bytes
    return components


def _old_manifest(pool: Path) -> Manifest | None:
    path = pool / MANIFEST_FILE
    return Manifest.parse(path.read_bytes(), where=str(path)) if path.exists() else None


def _old_index(pool: Path, old: Manifest | None) -> pa.Table:
    if old is None:
        return BATCH_SCHEMA.empty_table()
    return read_table(LocalFiles(pool), old.files_of("batches")[0], BATCH_SCHEMA)


def _require_same_pool(
    pool: Path, old: Manifest, header: PoolHeader, codec: Codec, images: ImageTable
) -> None:
    """Refuse to add to a pool that has been replaced by another since this writer opened it.

    Settings that no digest binds are compared one by one, everything else by the content digest.
    """
    where = str(pool / MANIFEST_FILE)
    found, wanted = (describe(one, codec, images.digest(), old.views) for one in (old.header, header))
    require_same_plan(found, wanted, where=where)
    digest = pool_digest(
        header,
        codec=codec.name,
        identity=codec.identity(),
        images=images.digest(),
        batches=arrow.binaries(_old_index(pool, old)["digest"]),
    )
    if digest != old.content_digest:
        raise PoolConflictError(
            "the pool here has other images or another codec than the one that was to grow",
            where=where,
            hint="choose another path, or replace it (--overwrite)",
        )


def _sound_shards(
    staging: StagingArea, old: Manifest | None, codec: Codec, classes: int
) -> list[SealedShard]:
    """Return the staged shards that are not published yet, every byte of them checked, each batch once."""
    known = _shard_names(old) if old else set()
    shards = [shard for shard in staging.discard_replaced() if shard.name not in known]
    with ThreadPoolExecutor(CHECKS_AT_ONCE, thread_name_prefix="check") as threads:
        for _ in threads.map(staging.check, shards):
            pass
    return without_duplicates(staging, shards, _old_index(staging.pool, old), codec, classes)


def _shard_names(manifest: Manifest) -> set[str]:
    return {Path(entry.path).stem for entry in manifest.files_of("labels")}


def _shard_files(shard: SealedShard, *, drawn: bool) -> list[FileEntry]:
    labels = shard.labels.entry(f"labels/{shard.name}.parquet", "labels")
    return [labels] if drawn else [shard.views.entry(f"views/{shard.name}.parquet", "views"), labels]


def _merged_index(
    pool: Path, old: Manifest | None, shards: Sequence[SealedShard], paths: Sequence[str]
) -> pa.Table:
    """Return the batch index of old and new shards in key order; shard numbers follow `paths`."""
    number = {Path(path).stem: i for i, path in enumerate(paths)}
    parts = [_renumbered(shard.batches, number[shard.name]) for shard in shards]
    if old is not None:
        index = _old_index(pool, old)
        stems = [Path(entry.path).stem for entry in old.files_of("labels")]
        moved = np.array([number[stem] for stem in stems], np.int32)
        parts.append(_renumbered(index, moved[index["shard"].to_numpy()] if stems else 0))
    if not parts:
        return BATCH_SCHEMA.empty_table()
    index = pa.concat_tables(parts)
    keys = index["epoch"].to_numpy().astype(np.int64) << 32 | index["batch"].to_numpy()
    # One writer seals its shards in order. Sorting would first import Arrow's compute functions, which takes
    # as long as importing thirty batches.
    if (np.diff(keys) > 0).all():
        return index
    return index.sort_by([("epoch", "ascending"), ("batch", "ascending")])


def _renumbered(index: pa.Table, shard: int | np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> pa.Table:
    numbers = np.broadcast_to(np.asarray(shard, np.int32), (index.num_rows,))
    place = index.schema.get_field_index("shard")
    column = pa.array(np.ascontiguousarray(numbers))
    renumbered = index.set_column(place, BATCH_SCHEMA.field("shard"), column)
    return renumbered if renumbered.schema.equals(BATCH_SCHEMA) else renumbered.cast(BATCH_SCHEMA)


def _write_index(staging: StagingArea, index: pa.Table) -> FileEntry:
    """Write the batch index under a name of its own, so that the old manifest keeps its old index."""
    data = index_file(index)
    facts = FileFacts.of(data)
    path = f"batches-{facts.digest[:8]}.parquet"
    write_atomically(staging.pool / path, data, within=staging.directory)
    return facts.entry(path, "batches")


def _write_tables(staging: StagingArea, codec: Codec, images: ImageTable) -> list[FileEntry]:
    """Write images.parquet and the codec's tables."""
    entries = []
    data = image_file(images.to_table())
    write_atomically(staging.pool / IMAGES_FILE, data, within=staging.directory)
    entries.append(FileFacts.of(data).entry(IMAGES_FILE, "images"))
    for name, table in sorted(codec.tables().items()):
        path = staging.pool / CODEC_DIRECTORY / name
        with write_errors(path):
            path.parent.mkdir(exist_ok=True)
        write_atomically(path, table, within=staging.directory)
        entries.append(
            FileEntry(
                path=f"{CODEC_DIRECTORY}/{name}",
                role="codec",
                bytes=len(table),
                rows=0,
                digest=bytes_digest(table),
            )
        )
    return entries
