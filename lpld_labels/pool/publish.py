"""Publish finished shards as a pool.

Every step can be interrupted and repeated. A new pool is completed in OUT.partial/pool, where its manifest is
written last, and then renamed to OUT. To extend a pool, new files are moved in, its manifest is replaced,
and files that only the old manifest names are deleted. Readers see no change until the manifest is replaced.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.codecs import restore_codec
from lpld_labels.errors import InvalidArgumentError, LabelSourceError, PoolConflictError, PoolCorruptError
from lpld_labels.format import arrow, schema
from lpld_labels.format.digests import bytes_digest, pool_digest
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
from lpld_labels.io.parquet_files import image_file, index_file, table_entry
from lpld_labels.io.storage import TEMPORARY, fsync, refuse_links, write_atomically, write_errors
from lpld_labels.pool.index import BatchIndex, count_runs
from lpld_labels.pool.own_files import delete_unnamed, not_a_pool, require_own_files
from lpld_labels.pool.plan import PoolPlan
from lpld_labels.pool.pool_files import PoolFiles, read_table
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard import ShardRecord
from lpld_labels.pool.unfinished import PUBLISHED, Unfinished
from lpld_labels.version import __version__


def publish(
    plan: PoolPlan, work: Unfinished, records: Sequence[ShardRecord], *, overwrite: bool = False
) -> Manifest:
    """Publish shards whose files were verified. overwrite: replace a different pool at `plan.out`."""
    base = plan.base
    plan = replace(plan, header=_with_results(plan, records))
    records = [record for record in records if record.files]
    others = [entry for entry in base.files if entry.role in ("images", "codec", "packed")] if base else []
    with write_errors(work.directory):
        work.pool.mkdir(exist_ok=True)
        _delete_unrecorded(work.pool, records)
        index = _merged_index(plan, records)
        for old in work.pool.glob("batches-*.parquet"):
            old.unlink()
        tables = _tables(plan, index)
        for entry, data in tables:
            (work.pool / entry.path).parent.mkdir(exist_ok=True)
            write_atomically(work.pool / entry.path, data, within=work.directory)
        if plan.packed is not None and not (base and base.files_of("packed")):
            others += plan.packed(work.pool, within=work.directory)
    manifest = _manifest(plan, records, index, [*(entry for entry, _ in tables), *others])
    text = readable_text(manifest, where=work.out)
    # Run the checks that opening the pool would run.
    where, tables_of, kind = str(work.out), plan.codec.tables(), plan.header.label_kind
    BatchIndex(index, manifest, where).check_label_rows(manifest, by_view=plan.codec.granularity == "view")
    restore_codec(manifest.codec, tables_of, classes=plan.header.classes, label_kind=kind, where=where)
    size = sum(entry.bytes for entry in manifest.files) + len(text)
    if plan.most_bytes is not None and size > plan.most_bytes:
        raise InvalidArgumentError(
            "the pool is larger than its budget",
            expected=f"at most {plan.most_bytes} bytes",
            got=f"{size} bytes",
            hint="choose a slightly larger budget",
        )
    if base is None:
        put_in_place(work, text, overwrite=overwrite)
    else:
        with write_errors(work.out):
            _grow(work, manifest, text)
            work.delete()
    return manifest


def draft_manifest(
    plan: PoolPlan, records: Sequence[ShardRecord], packed: Sequence[FileEntry] = ()
) -> Manifest:
    """Return the manifest of a new pool, without writing anything. packed: entries of packed images."""
    index = _merged_index(plan, records)
    return _manifest(plan, records, index, [*(entry for entry, _ in _tables(plan, index)), *packed])


def _manifest(
    plan: PoolPlan, records: Sequence[ShardRecord], index: pa.Table, others: Sequence[FileEntry]
) -> Manifest:
    base, header = plan.base, plan.header
    rows = index["rows"].to_numpy()
    views = np.zeros(len(plan.images), np.int64)
    if base is not None:
        with PoolReader(plan.out) as pool:
            views += views_per_image(pool)
    for record in records:
        views += np.bincount(record.images, minlength=len(views))
    return Manifest(
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
        coverage=coverage_of(views, plan.images.classes),
        components=_components(base, records, others),
        content_digest=pool_digest(
            header,
            codec=plan.codec.name,
            identity=plan.codec.identity(),
            images=plan.images.digest(),
            batches=arrow.binaries(index["digest"]),
        ),
        files=(*_shard_files(base, records), *others),
        created_by=f"lpld-labels {__version__}",
    )


def _with_results(plan: PoolPlan, records: Sequence[ShardRecord]) -> PoolHeader:
    """Add notes and skipped input (`holes`) to the last lineage step; refuse if all input was skipped."""
    skipped = [one for record in records for one in record.skipped]
    if skipped and not any(record.files for record in records):
        raise LabelSourceError(
            f"all input was skipped, first: {skipped[0].why}", where=skipped[0].file or plan.out
        )
    if not plan.notes and not skipped:
        return plan.header
    *before, last = plan.header.lineage
    holes = {"holes": [asdict(one) for one in skipped]} if skipped else {}
    step = replace(last, parameters={**last.parameters, **plan.notes, **holes})
    return replace(plan.header, lineage=(*before, step))


def put_in_place(work: Unfinished, text: bytes, *, overwrite: bool) -> None:
    """Complete a new pool, rename it into place, then delete the old pool. text: new content of pool.json."""
    with write_errors(work.out):
        write_atomically(work.pool / schema.MANIFEST_FILE, text, within=work.directory)
        _mark(work, text)
        if overwrite and (work.out / schema.MANIFEST_FILE).exists():
            require_own_files(work.out)
            work.out.rename(work.directory / f"{TEMPORARY}{uuid.uuid4().hex}")
        try:
            work.pool.rename(work.out)
        except OSError:
            if not work.out.exists():
                raise
            raise not_a_pool(work.out) from None
        fsync(work.out.parent)
        work.delete()


def _grow(work: Unfinished, manifest: Manifest, text: bytes) -> None:
    refuse_links(work.out / name for name in schema.POOL_DIRECTORIES)
    for entry in manifest.files:
        source, target = work.pool / entry.path, work.out / entry.path
        if source.exists():
            target.parent.mkdir(exist_ok=True)
            source.replace(target)
    for folder in (*(work.out / name for name in schema.POOL_DIRECTORIES), work.out):
        if folder.is_dir():
            fsync(folder)
    _mark(work, text)
    write_atomically(work.out / schema.MANIFEST_FILE, text, within=work.directory)
    delete_unnamed(work.out, {entry.path for entry in manifest.files})


def _mark(work: Unfinished, text: bytes) -> None:
    """Record which manifest is about to be published, for runs after an interruption."""
    write_atomically(work.directory / PUBLISHED, bytes_digest(text).encode(), within=work.directory)


def _delete_unrecorded(pool: Path, records: Sequence[ShardRecord]) -> None:
    named = {entry.path for record in records for entry in record.files}
    for folder in (schema.VIEWS_DIRECTORY, schema.LABELS_DIRECTORY):
        for path in sorted((pool / folder).glob("*")):
            if f"{folder}/{path.name}" not in named:
                path.unlink()


def _shard_files(base: Manifest | None, records: Sequence[ShardRecord]) -> list[FileEntry]:
    files = [*base.files_of("views"), *base.files_of("labels")] if base else []
    files += [entry for record in records for entry in record.files]
    return sorted(files, key=lambda entry: (entry.role != "views", entry.path))


def _merged_index(plan: PoolPlan, records: Sequence[ShardRecord]) -> pa.Table:
    """Return the index of old and new batches in key order. Shards are numbered in order of file paths."""
    out, base = plan.out, plan.base
    paths = [entry.path for entry in _shard_files(base, records) if entry.role == "labels"]
    number = {path: np.int32(place) for place, path in enumerate(paths)}
    parts = [_renumbered(record.index, number[record.files[-1].path]) for record in records]
    if base is not None:
        index = read_table(PoolFiles(out), base.files_of("batches")[0], schema.BATCH_SCHEMA)
        moved = np.array([number[entry.path] for entry in base.files_of("labels")], np.int32)
        parts.append(_renumbered(index, moved[index["shard"].to_numpy()]))
    if not parts:
        return schema.BATCH_SCHEMA.empty_table()
    index = pa.concat_tables(parts)
    keys = index["epoch"].to_numpy().astype(np.int64) << 32 | index["batch"].to_numpy()
    # Sort only if necessary: importing Arrow's compute functions takes as long as copying thirty batches.
    if not (np.diff(keys) > 0).all():
        index = index.sort_by([("epoch", "ascending"), ("batch", "ascending")])
        keys = np.sort(keys)
    twice = np.flatnonzero(np.diff(keys) == 0)
    if len(twice):
        key = BatchKey(int(keys[twice[0]]) >> 32, int(keys[twice[0]]) & 0xFFFFFFFF)
        raise PoolConflictError(f"{key} was written twice", where=out)
    return index


def _renumbered(index: pa.Table, shard: npt.NDArray[np.int32] | np.int32) -> pa.Table:
    numbers = pa.array(np.full(index.num_rows, shard, np.int32))
    return index.set_column(
        index.schema.get_field_index("shard"), schema.BATCH_SCHEMA.field("shard"), numbers
    )


def _tables(plan: PoolPlan, index: pa.Table) -> list[tuple[FileEntry, bytes]]:
    """Return the batch index, and for a new pool the image table and the codec's tables, with their entries.

    The index file gets a new name, so that the file to which the old manifest refers stays in place.
    """
    data = index_file(index)
    files = [(table_entry(f"batches-{bytes_digest(data)[:8]}.parquet", "batches", data), data)]
    if plan.base is None:
        data = image_file(plan.images.to_table())
        files.append((table_entry(schema.IMAGES_FILE, "images", data), data))
        for name, table in sorted(plan.codec.tables().items()):
            path, digest = f"{schema.CODEC_DIRECTORY}/{name}", bytes_digest(table)
            entry = FileEntry(path=path, role="codec", bytes=len(table), rows=0, digest=digest)
            files.append((entry, table))
    return files


def _components(
    base: Manifest | None, records: Sequence[ShardRecord], others: Sequence[FileEntry]
) -> dict[schema.Component, int]:
    """Return the bytes of all files by component. others: files that do not belong to shards."""
    components: Counter[schema.Component] = Counter(dict.fromkeys(schema.COMPONENTS, 0))
    for record in records:
        components.update(record.components)
    for entry in others:
        components[FILE_COMPONENTS[entry.role]] += entry.bytes
    if base is not None:
        components.update(base.components)
        for entry in base.files:
            if entry.role in FILE_COMPONENTS:
                components[FILE_COMPONENTS[entry.role]] -= entry.bytes
    return dict(components)


def views_per_image(pool: PoolReader, numbers: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.int64]:
    """Count views per image, without mixing partners: int64 [images]. numbers: index rows; None: all."""
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
        file = pool.open_parquet(entry, schema.VIEW_SCHEMA)
        for group in range(file.groups):
            inside = pool.index.in_rows(shard, file.starts[group], file.starts[group + 1])
            wanted = np.repeat(counted[inside], pool.index.rows[inside])
            images = file.read(group, ["image"])["image"].to_numpy()
            if len(images) != len(wanted) or ((images < 0) | (images >= len(views))).any():
                raise PoolCorruptError("column 'image' has wrong values or length", where=file.where)
            views += np.bincount(images[wanted], minlength=len(views))
    return views


def coverage_of(views: npt.NDArray[np.int64], classes: npt.NDArray[np.int32]) -> Coverage:
    """Return the coverage of n images. views, classes: [n], number of views and class of each image."""
    if not len(views):
        return Coverage(minimum=0, median=0.0, maximum=0, images=0, classes=0)
    return Coverage(
        minimum=int(views.min()),
        median=float(np.median(views)),
        maximum=int(views.max()),
        images=int((views > 0).sum()),
        classes=len(np.unique(classes[views > 0])),
    )
