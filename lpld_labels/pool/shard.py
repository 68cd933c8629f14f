"""Shards, the unit of work: a bounded number of batches, written as one views file and one labels file.

A shard is collected in memory. Its files are written into OUT.partial (unfinished.py) under temporary names,
then renamed to their final names in `pool/`, and then its record is written. A shard without a record is
written again. File names depend only on the content, so writing a shard twice does no harm.

A views file has one row per view; a labels file has the payloads, in row groups of complete batches.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lpld_labels.codecs import Codec, EncodedLabels, Payload
from lpld_labels.format import arrow, schema
from lpld_labels.format import views as view_rows
from lpld_labels.format.digests import VIEWS_SHORT, batch_digest, bytes_digest, views_digest
from lpld_labels.format.limits import MAX_GROUP_ROWS
from lpld_labels.format.manifest import FileEntry, FileRole
from lpld_labels.format.records import BatchKey, ViewBatch
from lpld_labels.format.strict_json import from_json, to_json
from lpld_labels.format.views import ViewConstraints
from lpld_labels.io import parquet_files
from lpld_labels.io.storage import DigestingFile, fsync, write_atomically, write_errors
from lpld_labels.pool.pool_files import temporary_path

RECORDS = "records"
POOL = "pool"
Sink: TypeAlias = DigestingFile | pa.NativeFile
_FACTS = b"lpld-labels"
_IMAGES = pa.field("images", pa.list_(pa.int32()))
_DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True, kw_only=True)
class EncodedBatch:
    """An encoded batch. views_digest: 8 bytes. constraints: those that the views meet; None if unchecked."""

    views: ViewBatch
    payload: Payload
    views_digest: bytes
    digest: bytes
    constraints: ViewConstraints | None = None

    @cached_property
    def nbytes(self) -> int:
        return sum([arrow.value_bytes(array) for array in self.payload.values()])

    @property
    def key(self) -> BatchKey:
        return self.views.key

    @staticmethod
    def make(
        views: ViewBatch, encoded: EncodedLabels, constraints: ViewConstraints | None = None
    ) -> EncodedBatch:
        digest = views_digest(views)
        return EncodedBatch(
            views=views,
            payload=encoded.payload,
            views_digest=digest[:VIEWS_SHORT],
            digest=batch_digest(digest, encoded.canonical),
            constraints=constraints,
        )


@dataclass(frozen=True)
class Skipped:
    """Input that a source leaves out because it is damaged or missing, and why."""

    file: str
    why: str


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """A finished shard.

    files: empty if all batches were skipped. components: bytes of the files by component.
    index: rows of the batch index, with shard number 0. images: int32 [rows], the image of each view.
    """

    files: tuple[FileEntry, ...] = ()
    components: Mapping[schema.Component, int] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    index: pa.Table = field(default_factory=schema.BATCH_SCHEMA.empty_table)
    images: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))

    @property
    def keys(self) -> list[BatchKey]:
        epochs, batches = arrow.integers(self.index["epoch"]), arrow.integers(self.index["batch"])
        return [BatchKey(epoch, batch) for epoch, batch in zip(epochs, batches, strict=True)]

    def dump(self) -> bytes:
        """Return the bytes of the record file: a Parquet table, preceded by its SHA-256."""
        offsets = np.concatenate([[0], np.cumsum(self.index["rows"].to_numpy())]).astype(np.int32)
        lists: Any = pa.ListArray
        images = lists.from_arrays(pa.array(offsets), pa.array(self.images, pa.int32()))
        facts = {
            "files": [asdict(entry) for entry in self.files],
            "components": dict(self.components),
            "skipped": [asdict(one) for one in self.skipped],
        }
        table = self.index.append_column(_IMAGES, images).replace_schema_metadata({_FACTS: to_json(facts)})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        data = sink.getvalue().to_pybytes()
        return hashlib.sha256(data).digest() + data

    @staticmethod
    def parse(data: bytes, *, where: str) -> ShardRecord | None:
        """Parse a record file; return None if it is damaged or from an older version of this library."""
        digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if hashlib.sha256(body).digest() != digest:
            return None
        table = pq.read_table(pa.BufferReader(body))
        facts: Any = from_json((table.schema.metadata or {})[_FACTS], where=where)
        if "files" not in facts:
            return None  # Written by an older version: write the shard again.
        images: Any = table["images"].combine_chunks()
        return ShardRecord(
            files=tuple(FileEntry(**entry) for entry in facts["files"]),
            components=facts["components"],
            skipped=tuple(Skipped(**one) for one in facts["skipped"]),
            index=table.drop_columns(["images"]).replace_schema_metadata(None).cast(schema.BATCH_SCHEMA),
            images=images.flatten().to_numpy(),
        )


def record_path(directory: Path, number: int) -> Path:
    """Return the path of a shard's record. directory: OUT.partial."""
    return directory / RECORDS / f"{number:08d}"


def write_shard(
    directory: Path,
    number: int,
    batches: Sequence[EncodedBatch],
    *,
    codec: Codec,
    classes: int,
    views: schema.Views,
    skipped: Sequence[Skipped] = (),
) -> None:
    """Write shard `number` durably into `directory` (OUT.partial); write its record last."""
    with write_errors(directory):
        record = ShardRecord()
        if batches:
            ordered = sorted(batches, key=attrgetter("key"))
            record = write_files(directory / POOL, ordered, codec, classes, views)
        path = record_path(directory, number)
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, replace(record, skipped=tuple(skipped)).dump(), within=directory)


def write_files(
    pool: Path | None,
    batches: Sequence[EncodedBatch],
    codec: Codec,
    classes: int,
    views: schema.Views,
) -> ShardRecord:
    """Write the files of batches in key order. pool: `pool/` of OUT.partial; None to write them to memory."""
    first = batches[0].key
    content = bytes_digest(b"".join(batch.digest for batch in batches))
    name = f"{first.epoch:05d}-{first.batch:05d}-{content[:8]}.parquet"
    files: list[FileEntry] = []
    components: Counter[schema.Component] = Counter()

    def add(role: FileRole, path: str, sink: DigestingFile, owners: Mapping[str, schema.Component]) -> bytes:
        footer = parquet_files.footer_of(sink.tail)
        files.append(parquet_files.file_entry(path, role, sink.size, sink.digest, footer))
        chunks = parquet_files.column_chunks(footer)
        components.update(parquet_files.component_bytes(chunks, sink.size, owners))
        return footer

    if views == "stored":
        path = f"{schema.VIEWS_DIRECTORY}/{name}"
        with _new_file(pool, path) as sink:
            write_views(sink, [batch.views for batch in batches])
            add("views", path, sink, parquet_files.VIEW_OWNERS)
    path = f"{schema.LABELS_DIRECTORY}/{name}"
    keys, payloads = [batch.key for batch in batches], [batch.payload for batch in batches]
    rows, sizes = [batch.views.rows for batch in batches], [batch.nbytes for batch in batches]
    with _new_file(pool, path) as sink:
        held = write_labels(sink, keys, payloads, rows, sizes, codec, classes)
        footer = add("labels", path, sink, parquet_files.label_owners(codec.payload_columns(classes)))
    places = _payload_places(footer, held, keys=len(schema.LABEL_KEY_COLUMNS[codec.granularity]))
    return ShardRecord(
        files=tuple(files),
        components=components,
        index=_index_rows(batches, places, drawn=views == "drawn"),
        images=np.concatenate([batch.views.images for batch in batches]).astype(np.int32),
    )


@contextlib.contextmanager
def _new_file(pool: Path | None, path: str) -> Iterator[DigestingFile]:
    """Yield a new file in `pool/` of OUT.partial; rename it to `path` when it is complete and durable."""
    if pool is None:
        with DigestingFile(None) as sink:
            yield sink
        return
    target = pool / path
    target.parent.mkdir(parents=True, exist_ok=True)
    with temporary_path(pool.parent) as temporary:
        with DigestingFile(temporary) as sink:
            yield sink
        temporary.replace(target)
    fsync(target.parent)


def _index_rows(batches: Sequence[EncodedBatch], places: npt.NDArray[np.int64], *, drawn: bool) -> pa.Table:
    """Return index rows with shard number 0. places: int64 [batches, 2], (offset, bytes) of payload pages."""
    count, rows = len(batches), [batch.views.rows for batch in batches]
    sizes = np.array([batch.nbytes for batch in batches])
    strengths = [batch.views.mix.strength if drawn and batch.views.mix else None for batch in batches]
    columns = {
        "epoch": pa.array([batch.key.epoch for batch in batches], pa.int32()),
        "batch": pa.array([batch.key.batch for batch in batches], pa.int32()),
        "rows": pa.array(rows, pa.int32()),
        "shard": pa.array(np.zeros(count, np.int32)),
        "position": pa.array(np.arange(count, dtype=np.int32)),
        "first_row": pa.array(np.cumsum([0, *rows])[:count], pa.int64()),
        "group_offset": pa.array(places[:, 0], pa.int64()),
        "group_bytes": pa.array(places[:, 1], pa.int32()),
        "label_bytes": pa.array(_shares(sizes, places), pa.int32()),
        "mix_strength": pa.array(strengths, pa.float64()),
        "views_digest": pa.array([batch.views_digest for batch in batches], pa.binary(8)),
        "digest": pa.array([batch.digest for batch in batches], pa.binary(16)),
    }
    return pa.table(columns, schema=schema.BATCH_SCHEMA)


def _shares(size: npt.NDArray[np.int64], places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Split the bytes of each row group's pages among its batches, in proportion to their payloads."""
    changes = np.diff(places[:, 0], prepend=-1) != 0
    starts, group = np.flatnonzero(changes), np.cumsum(changes) - 1
    total = np.maximum(np.add.reduceat(size, starts), 1)[group]
    before = np.cumsum(size) - size
    inside = before - before[starts][group]
    shares: npt.NDArray[np.int64] = (inside + size) * places[:, 1] // total - inside * places[:, 1] // total
    return shares


def label_schema(codec: Codec, classes: int) -> pa.Schema:
    """Return the Arrow schema of a labels file."""
    return schema.arrow_schema(schema.LABEL_KEY_COLUMNS[codec.granularity] + codec.payload_columns(classes))


def write_views(sink: Sink, batches: Sequence[ViewBatch]) -> None:
    """Write a views file of batches in key order."""
    rows = [batch.rows for batch in batches]
    dictionary = [name for name in schema.VIEW_SCHEMA.names if name != "slot"]
    with _parquet_writer(sink, schema.VIEW_SCHEMA, compression="zstd", dictionary=dictionary) as writer:
        for group in _groups(rows, rows, schema.VIEW_ROWS_PER_GROUP):
            table = view_rows.to_table(batches[group])
            writer.write_table(table, row_group_size=table.num_rows)


def _parquet_writer(
    sink: Sink, columns: pa.Schema, *, compression: Literal["zstd", "none"], dictionary: list[str]
) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        cast("pa.NativeFile", sink),
        columns,
        compression=compression,
        use_dictionary=cast("bool", dictionary),
        # Slots count up within a batch, so their differences are constant and take almost no space.
        column_encoding={"slot": "DELTA_BINARY_PACKED"} if "slot" in columns.names else None,
        write_statistics=["epoch", "batch"],
        **parquet_files.page_settings(),
    )


def views_file_bytes(batches: Sequence[ViewBatch]) -> int:
    """Return the size in bytes of a views file of these batches."""
    sink = pa.MockOutputStream()
    write_views(sink, batches)
    return int(sink.size())


def write_labels(
    sink: Sink,
    keys: Sequence[BatchKey],
    payloads: Sequence[Payload],
    rows: Sequence[int],
    sizes: Sequence[int],
    codec: Codec,
    classes: int,
) -> list[int]:
    """Write a labels file of batches in key order; return how many batches each row group has.

    rows: number of views per batch. sizes: bytes per payload.
    """
    columns = label_schema(codec, classes)
    groups = list(_groups(rows, sizes, schema.LABEL_BYTES_PER_GROUP))
    # Payloads are either incompressible or compressed by the codec; keys are a few bytes per group.
    with _parquet_writer(sink, columns, compression="none", dictionary=["epoch", "batch"]) as writer:
        tables = (_label_rows(keys[group], payloads[group], columns) for group in groups)
        # Write row groups of equal size in one call: a call costs as much as the write itself.
        for size, alike in groupby(tables, key=lambda table: table.num_rows):
            writer.write_table(pa.concat_tables(list(alike)), row_group_size=size)
    return [group.stop - group.start for group in groups]


def _payload_places(footer: bytes, held: Sequence[int], *, keys: int) -> npt.NDArray[np.int64]:
    """Return (offset, bytes) of payload pages per batch: int64 [batches, 2]. keys: number of key columns."""
    metadata = parquet_files.footer_metadata(footer)
    places = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = [group.column(place) for place in range(keys, group.num_columns)]
        places.append((chunks[0].data_page_offset, sum(chunk.total_compressed_size for chunk in chunks)))
    return np.repeat(np.array(places, np.int64), held, axis=0)


def _label_rows(keys: Sequence[BatchKey], payloads: Sequence[Payload], fields: pa.Schema) -> pa.Table:
    rows = [len(next(iter(payload.values()))) for payload in payloads]
    epochs, numbers = zip(*keys, strict=True)
    key_columns = {
        "epoch": np.repeat(epochs, rows),
        "batch": np.repeat(numbers, rows),
        "slot": np.concatenate([np.arange(count) for count in rows]),
    }
    columns: list[arrow.Column] = []
    for column in fields:
        if column.name in key_columns:
            parts = [pa.array(key_columns[column.name], column.type)]
        else:
            parts = [payload[column.name] for payload in payloads]
        # Only lists from pages (fixed size) need a cast. A needless cast would take as long as writing.
        kind = column.type
        columns.append(pa.chunked_array([part if part.type == kind else part.cast(kind) for part in parts]))
    return pa.Table.from_arrays(columns, schema=fields)


def _groups(rows: Sequence[int], weights: Sequence[int], limit: int) -> Iterator[slice]:
    """Yield slices of batches. A slice ends at weight `limit`, or if the next batch does not fit."""
    start = weight = held = 0
    for number, (count, more) in enumerate(zip(rows, weights, strict=True)):
        if held + count > MAX_GROUP_ROWS:
            yield slice(start, number)
            start, weight, held = number, 0, 0
        weight += more
        held += count
        if weight >= limit:
            yield slice(start, number + 1)
            start, weight, held = number + 1, 0, 0
    if start < len(rows):
        yield slice(start, len(rows))
