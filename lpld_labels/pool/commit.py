"""The commit: from sealed shards to a published pool.

Every step can be interrupted and done again. Nothing a reader sees changes before the manifest is
renamed into place, and nothing is deleted before that rename is durable. Unfinished files wait in the
staging area, which goes last: a pool without one is finished.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lpld_labels.codecs import Codec
from lpld_labels.errors import DuplicateBatchError, PoolConflictError
from lpld_labels.format.digests import bytes_digest, content_digest
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import CodecEntry, Counts, FileEntry, Manifest, PoolHeader
from lpld_labels.format.records import BatchKey
from lpld_labels.format.schema import BATCH_SCHEMA, CODEC_DIRECTORY, IMAGES_FILE, MANIFEST_FILE
from lpld_labels.pool.index import count_runs
from lpld_labels.pool.locks import locked
from lpld_labels.pool.merge import merge_small_shards
from lpld_labels.pool.shard import SealedShard, read_whole
from lpld_labels.pool.staging import COMMIT_LOCK, StagingArea
from lpld_labels.pool.storage import write_atomically, write_errors
from lpld_labels.version import __version__

log = logging.getLogger(__name__)


def commit_pool(
    staging: StagingArea,
    header: PoolHeader,
    codec: Codec,
    images: ImageTable,
    *,
    shard_bytes: int,
) -> Manifest:
    """Publish all sealed shards together with what the pool already holds.

    shard_bytes: small shards are merged up to this many label bytes.
    """
    with _committing(staging):
        old = _old_manifest(staging.pool)
        shards = _sound_shards(staging, old)
        if old is not None and not shards and header.lineage == old.header.lineage:
            _clean_up(staging, old)
            return old
        shards = merge_small_shards(staging, shards, codec, header.classes, limit=shard_bytes)
        for shard in shards:
            staging.publish(shard)
        manifest = _manifest(staging, old, shards, header, codec, images)
        write_atomically(staging.pool / MANIFEST_FILE, manifest.dump(), within=staging.directory)
        _clean_up(staging, manifest)
        return manifest


def merge_staged(staging: StagingArea, codec: Codec, classes: int, *, shard_bytes: int) -> None:
    """Do the part of a commit that publishes nothing."""
    with _committing(staging):
        shards = _sound_shards(staging, _old_manifest(staging.pool))
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
        named = {entry.path for entry in manifest.files_of("batches")}
        for path in sorted(staging.pool.glob("batches-*.parquet")):
            if path.name not in named:
                path.unlink()
    if not staging.sweep(_shard_names(manifest)):
        log.warning("%s: other writers have sealed work since; commit again to publish it", staging.pool)


def _manifest(
    staging: StagingArea,
    old: Manifest | None,
    shards: Sequence[SealedShard],
    header: PoolHeader,
    codec: Codec,
    images: ImageTable,
) -> Manifest:
    """Write what belongs to the pool beside its shards, and return the manifest of it all."""
    files = list(old.files_of("views") + old.files_of("labels")) if old else []
    for shard in shards:
        files += _shard_files(shard)
    files.sort(key=lambda entry: (entry.role != "views", entry.path))
    index = _merged_index(staging.pool, old, shards, [e.path for e in files if e.role == "views"])
    files.append(_write_index(staging, index))
    # An extended pool keeps its tables: that they are the same was checked when the writer opened.
    files += (
        (old.files_of("images") + old.files_of("codec")) if old else _write_tables(staging, codec, images)
    )
    return Manifest(
        header=header,
        codec=CodecEntry(name=codec.name, parameters=codec.parameters()),
        counts=Counts(
            images=len(images),
            epochs=count_runs(index["epoch"].to_numpy()),
            batches=index.num_rows,
            rows=int(index["rows"].to_numpy().sum()),
        ),
        content_digest=content_digest(
            classes=header.classes,
            label_kind=header.label_kind,
            codec_identity=codec.identity(),
            images_digest=images.digest(),
            batch_digests=index["digest"].to_pylist(),
        ),
        files=tuple(files),
        created_by=f"lpld-labels {__version__}",
    )


def _old_manifest(pool: Path) -> Manifest | None:
    path = pool / MANIFEST_FILE
    return Manifest.parse(path.read_bytes(), where=str(path)) if path.exists() else None


def _old_index(pool: Path, old: Manifest | None) -> pa.Table:
    if old is None:
        return BATCH_SCHEMA.empty_table()
    return read_whole(pool / old.files_of("batches")[0].path)


def _sound_shards(staging: StagingArea, old: Manifest | None) -> list[SealedShard]:
    """Return the staged shards that are not published yet, every byte of them checked."""
    known = _shard_names(old) if old else set()
    staging.discard_replaced()
    shards = [shard for shard in staging.sealed() if shard.name not in known]
    _refuse_duplicates(shards, _old_index(staging.pool, old), staging.pool)
    for shard in shards:
        staging.check(shard)
    return shards


def _shard_names(manifest: Manifest) -> set[str]:
    return {Path(entry.path).stem for entry in manifest.files_of("views")}


def _refuse_duplicates(shards: Sequence[SealedShard], published: pa.Table, pool: Path) -> None:
    owner: dict[BatchKey, str] = {
        BatchKey(e, b): "the published pool"
        for e, b in zip(published["epoch"].to_pylist(), published["batch"].to_pylist(), strict=True)
    }
    for shard in shards:
        for key in shard.keys:
            if key in owner:
                raise DuplicateBatchError(
                    f"two writers wrote {key}: {owner[key]} and staged shard {shard.name}",
                    where=pool,
                    hint=f"delete staging/{shard.name} and run again to redo the rest of its batches",
                )
            owner[key] = f"staged shard {shard.name}"


def _shard_files(shard: SealedShard) -> list[FileEntry]:
    return [
        FileEntry(
            path=f"views/{shard.name}.parquet",
            role="views",
            bytes=shard.views_bytes,
            rows=shard.rows,
            digest=shard.views_digest,
        ),
        FileEntry(
            path=f"labels/{shard.name}.parquet",
            role="labels",
            bytes=shard.labels_bytes,
            rows=shard.label_rows,
            digest=shard.labels_digest,
        ),
    ]


def _merged_index(
    pool: Path, old: Manifest | None, shards: Sequence[SealedShard], view_paths: Sequence[str]
) -> pa.Table:
    """Return the batch index of old and new shards in key order; shard numbers follow `view_paths`."""
    number = {Path(path).stem: i for i, path in enumerate(view_paths)}
    parts = [_renumbered(shard.batches, number[shard.name]) for shard in shards]
    if old is not None:
        index = _old_index(pool, old)
        stems = [Path(entry.path).stem for entry in old.files_of("views")]
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
    sink = io.BytesIO()
    pq.write_table(index, sink, compression="zstd", write_page_checksum=True, use_dictionary=False)
    data = sink.getvalue()
    digest = bytes_digest(data)
    path = f"batches-{digest[:8]}.parquet"
    write_atomically(staging.pool / path, data, within=staging.directory)
    return FileEntry(path=path, role="batches", bytes=len(data), rows=index.num_rows, digest=digest)


def _write_tables(staging: StagingArea, codec: Codec, images: ImageTable) -> list[FileEntry]:
    """Write images.parquet and the codec's tables."""
    entries = []
    data = images.to_parquet()
    write_atomically(staging.pool / IMAGES_FILE, data, within=staging.directory)
    entries.append(
        FileEntry(
            path=IMAGES_FILE, role="images", bytes=len(data), rows=len(images), digest=bytes_digest(data)
        )
    )
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
