"""Publishing: from finished shards to a pool that readers see.

Every step can be interrupted and done again. A new pool is completed in OUT.partial/pool, its manifest last,
and then renamed to OUT. A pool that grows gets its new files first, then its manifest is replaced, then what
only the old manifest named is deleted. Nothing that a reader sees changes before that one rename.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.codecs import Codec
from lpld_labels.errors import InvalidArgumentError, LabelSourceError, PoolConflictError, PoolCorruptError
from lpld_labels.format import arrow
from lpld_labels.format.digests import bytes_digest, pool_digest
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import (
    FILE_COMPONENTS,
    CodecEntry,
    Counts,
    Coverage,
    FileEntry,
    Manifest,
    PoolHeader,
    readable_text,
)
from lpld_labels.format.records import BatchKey
from lpld_labels.format.schema import (
    BATCH_SCHEMA,
    CODEC_DIRECTORY,
    COMPONENTS,
    IMAGES_FILE,
    LABELS_DIRECTORY,
    MANIFEST_FILE,
    POOL_DIRECTORIES,
    VIEW_SCHEMA,
    VIEWS_DIRECTORY,
    Component,
)
from lpld_labels.io.parquet_files import file_entry, footer_of, image_file, index_file
from lpld_labels.io.storage import TEMPORARY, fsync, refuse_links, write_atomically, write_errors
from lpld_labels.pool.index import count_runs
from lpld_labels.pool.own_files import delete_unnamed, require_own_files
from lpld_labels.pool.plan import PoolPlan
from lpld_labels.pool.pool_files import PoolFiles, read_table
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard import ShardRecord
from lpld_labels.pool.unfinished import PUBLISHED, Unfinished
from lpld_labels.version import __version__


def publish(
    plan: PoolPlan, work: Unfinished, records: Sequence[ShardRecord], *, overwrite: bool = False
) -> Manifest:
    """Publish finished shards, whose files are known to be whole, and return the manifest.

    overwrite: replace the pool that is there.
    """
    base = plan.base
    header = _with_results(plan, records)
    records = [record for record in records if record.files]
    with write_errors(work.directory):
        work.pool.mkdir(exist_ok=True)
        _delete_unrecorded(work.pool, records)
        index = _merged_index(work.out, base, records)
        index_entry = _write_index(work, index)
        if base is None:
            tables = _write_tables(work, plan.codec, plan.images)
        else:
            tables = [*base.files_of("images"), *base.files_of("codec"), *base.files_of("packed")]
        if plan.packed is not None and not (base and base.files_of("packed")):
            tables += plan.packed(work.pool, within=work.directory)
    rows = index["rows"].to_numpy()
    manifest = Manifest(
        header=header,
        views=plan.views,
        codec=CodecEntry(name=plan.codec.name, parameters=plan.codec.parameters()),
        counts=Counts(
            images=len(plan.images),
            epochs=count_runs(index["epoch"].to_numpy()),
            batches=index.num_rows,
            incomplete_batches=int((rows < header.batch_size).sum()),
            rows=int(rows.sum()),
        ),
        coverage=coverage_of(
            _views_per_image(work.out, base, records, len(plan.images)), plan.images.classes
        ),
        components=_components(base, records, [index_entry, *tables]),
        content_digest=pool_digest(
            header,
            codec=plan.codec.name,
            identity=plan.codec.identity(),
            images=plan.images.digest(),
            batches=arrow.binaries(index["digest"]),
        ),
        files=(*_shard_files(base, records), index_entry, *tables),
        created_by=f"lpld-labels {__version__}",
    )
    text = readable_text(manifest, where=work.out)
    size = sum(entry.bytes for entry in manifest.files) + len(text)
    if plan.most_bytes is not None and size > plan.most_bytes:
        raise InvalidArgumentError(
            "the pool is larger than its budget",
            expected=f"at most {plan.most_bytes} bytes",
            got=f"{size} bytes",
            hint="give a slightly larger budget",
        )
    with write_errors(work.out):
        if base is None:
            put_in_place(work, text, overwrite=overwrite)
        else:
            _grow(work, manifest, text)
            work.delete()
    return manifest


def _with_results(plan: PoolPlan, records: Sequence[ShardRecord]) -> PoolHeader:
    """Return the header with the plan's notes and skipped input (`holes`) in its last step of lineage.

    Refuse work of which nothing is left because all of its input had to be skipped.
    """
    skipped = [one for record in records for one in record.skipped]
    if skipped and not any(record.files for record in records):
        raise LabelSourceError(
            f"none of the input can be used: {skipped[0].why}", where=skipped[0].file or plan.out
        )
    if not plan.notes and not skipped:
        return plan.header
    *before, last = plan.header.lineage
    holes = {"holes": [asdict(one) for one in skipped]} if skipped else {}
    step = replace(last, parameters={**last.parameters, **plan.notes, **holes})
    return replace(plan.header, lineage=(*before, step))


def put_in_place(work: Unfinished, text: bytes, *, overwrite: bool) -> None:
    """Complete a new pool and rename it to its place; an old one is moved aside first, and then deleted.

    text: the manifest; all other files are there.
    """
    write_atomically(work.pool / MANIFEST_FILE, text, within=work.directory)
    _mark(work, text)
    if overwrite and (work.out / MANIFEST_FILE).exists():
        require_own_files(work.out)
        work.out.rename(work.directory / f"{TEMPORARY}{uuid.uuid4().hex}")
    try:
        work.pool.rename(work.out)
    except OSError:
        if not work.out.exists():
            raise
        raise PoolConflictError(
            "something is here that is no label pool",
            where=work.out,
            hint="choose another path, or move it away: only what we wrote is ever replaced",
        ) from None
    fsync(work.out.parent)
    work.delete()


def _grow(work: Unfinished, manifest: Manifest, text: bytes) -> None:
    """Move new files into the pool that is there, then replace its manifest."""
    refuse_links(work.out / name for name in POOL_DIRECTORIES)
    for entry in manifest.files:
        source, target = work.pool / entry.path, work.out / entry.path
        if source.exists():
            target.parent.mkdir(exist_ok=True)
            source.replace(target)
    for folder in (*(work.out / name for name in POOL_DIRECTORIES), work.out):
        if folder.is_dir():
            fsync(folder)
    _mark(work, text)
    write_atomically(work.out / MANIFEST_FILE, text, within=work.directory)
    delete_unnamed(work.out, {entry.path for entry in manifest.files})


def _mark(work: Unfinished, text: bytes) -> None:
    """Note which manifest is about to be published, so that a later run recognises it."""
    digest = hashlib.sha256(text).hexdigest().encode()
    write_atomically(work.directory / PUBLISHED, digest, within=work.directory)


def _delete_unrecorded(pool: Path, records: Sequence[ShardRecord]) -> None:
    """Delete files of shards that were begun and never recorded, or made again under another name."""
    named = {entry.path for record in records for entry in record.files}
    for folder in (VIEWS_DIRECTORY, LABELS_DIRECTORY):
        for path in sorted((pool / folder).glob("*")):
            if f"{folder}/{path.name}" not in named:
                path.unlink()


def _shard_files(base: Manifest | None, records: Sequence[ShardRecord]) -> list[FileEntry]:
    files = [*base.files_of("views"), *base.files_of("labels")] if base else []
    files += [entry for record in records for entry in record.files]
    return sorted(files, key=lambda entry: (entry.role != "views", entry.path))


def _merged_index(out: Path, base: Manifest | None, records: Sequence[ShardRecord]) -> pa.Table:
    """Return the batch index of old and new shards in key order; shard numbers follow the labels files."""
    paths = [entry.path for entry in _shard_files(base, records) if entry.role == "labels"]
    number = {path: np.int32(place) for place, path in enumerate(paths)}
    parts = [_renumbered(record.index, number[record.files[-1].path]) for record in records]
    if base is not None:
        index = read_table(PoolFiles(out), base.files_of("batches")[0], BATCH_SCHEMA)
        moved = np.array([number[entry.path] for entry in base.files_of("labels")], np.int32)
        parts.append(_renumbered(index, moved[index["shard"].to_numpy()] if len(moved) else np.int32(0)))
    if not parts:
        return BATCH_SCHEMA.empty_table()
    index = pa.concat_tables(parts)
    keys = index["epoch"].to_numpy().astype(np.int64) << 32 | index["batch"].to_numpy()
    # Sorting imports Arrow's compute functions, which takes as long as copying thirty batches.
    if not (np.diff(keys) > 0).all():
        index = index.sort_by([("epoch", "ascending"), ("batch", "ascending")])
        keys = np.sort(keys)
    twice = np.flatnonzero(np.diff(keys) == 0)
    if len(twice):
        key = BatchKey(int(keys[twice[0]]) >> 32, int(keys[twice[0]]) & 0xFFFFFFFF)
        raise PoolConflictError(f"{key} was written twice", where=out)
    return index


def _renumbered(index: pa.Table, shard: npt.NDArray[np.int32] | np.int32) -> pa.Table:
    numbers = np.ascontiguousarray(np.broadcast_to(shard, (index.num_rows,)))
    place = index.schema.get_field_index("shard")
    renumbered = index.set_column(place, BATCH_SCHEMA.field("shard"), pa.array(numbers))
    return renumbered if renumbered.schema.equals(BATCH_SCHEMA) else renumbered.cast(BATCH_SCHEMA)


def _write_index(work: Unfinished, index: pa.Table) -> FileEntry:
    """Write the batch index under a name of its own, so that an old manifest keeps its old index."""
    data = index_file(index)
    digest = bytes_digest(data)
    path = f"batches-{digest[:8]}.parquet"
    for old in work.pool.glob("batches-*.parquet"):
        old.unlink()
    write_atomically(work.pool / path, data, within=work.directory)
    return file_entry(path, "batches", len(data), digest, footer_of(work.pool / path))


def _write_tables(work: Unfinished, codec: Codec, images: ImageTable) -> list[FileEntry]:
    """Write images.parquet and the codec's tables."""
    data = image_file(images.to_table())
    write_atomically(work.pool / IMAGES_FILE, data, within=work.directory)
    footer = footer_of(work.pool / IMAGES_FILE)
    entries = [file_entry(IMAGES_FILE, "images", len(data), bytes_digest(data), footer)]
    for name, table in sorted(codec.tables().items()):
        path = f"{CODEC_DIRECTORY}/{name}"
        (work.pool / CODEC_DIRECTORY).mkdir(exist_ok=True)
        write_atomically(work.pool / path, table, within=work.directory)
        digest = bytes_digest(table)
        entries.append(FileEntry(path=path, role="codec", bytes=len(table), rows=0, digest=digest))
    return entries


def _views_per_image(
    out: Path, base: Manifest | None, records: Sequence[ShardRecord], images: int
) -> npt.NDArray[np.int64]:
    """Return how many views each image has, in what is published and what is about to be."""
    views = np.zeros(images, np.int64)
    if base is not None:
        with PoolReader(out) as pool:
            views += views_per_image(pool)
    for record in records:
        views += np.bincount(record.images, minlength=images)
    return views


def _components(
    base: Manifest | None, records: Sequence[ShardRecord], others: Sequence[FileEntry]
) -> dict[Component, int]:
    """Return the bytes of all files by component. others: than those of shards."""
    components: dict[Component, int] = dict.fromkeys(COMPONENTS, 0)
    for part in (base.components if base else {}, *(record.components for record in records)):
        for name, size in part.items():
            components[name] += size
    for entry in base.files if base else ():
        if entry.role in FILE_COMPONENTS:
            components[FILE_COMPONENTS[entry.role]] -= entry.bytes
    for entry in others:
        components[FILE_COMPONENTS[entry.role]] += entry.bytes
    return components


def views_per_image(pool: PoolReader, numbers: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.int64]:
    """Return how many views each image has, as itself and not as a partner: int64 [images].

    numbers: of the batches to count; None for all. Reads one small column of the views.
    """
    counted = np.ones(len(pool), np.bool_)
    if numbers is not None:
        counted[:] = False
        counted[numbers] = True
    views = np.zeros(len(pool.images), np.int64)
    if pool.manifest.views == "drawn":
        for number in np.flatnonzero(counted).tolist():
            views[pool.images_at(number)] += 1
        return views
    for shard, entry in enumerate(pool.manifest.files_of("views")):
        file = pool.open_parquet(entry, VIEW_SCHEMA)
        for group in range(file.groups):
            inside = pool.index.in_rows(shard, file.starts[group], file.starts[group + 1])
            wanted = np.repeat(counted[inside], pool.index.rows[inside])
            images = file.read(group, ["image"])["image"].to_numpy()
            if len(images) != len(wanted) or not _all_below(images, len(views)):
                raise PoolCorruptError("column 'image' is wrong", where=file.where)
            views += np.bincount(images[wanted], minlength=len(views))
    return views


def coverage_of(views: npt.NDArray[np.int64], classes: npt.NDArray[np.int32]) -> Coverage:
    """Return how often images are shown. views: int64 [images]. classes: of the same images."""
    if not len(views):
        return Coverage(minimum=0, median=0.0, maximum=0, images=0, classes=0)
    return Coverage(
        minimum=int(views.min()),
        median=float(np.median(views)),
        maximum=int(views.max()),
        images=int((views > 0).sum()),
        classes=len(np.unique(classes[views > 0])),
    )


def _all_below(values: npt.NDArray[np.int32], limit: int) -> bool:
    return len(values) == 0 or (int(values.min()) >= 0 and int(values.max()) < limit)
