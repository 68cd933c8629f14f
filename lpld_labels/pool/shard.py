"""Shards: the unit of work. A bounded number of batches, written as one views file and one labels file.

A shard is collected in memory, already encoded, and written below OUT.partial (unfinished.py) in this order:
its files under temporary names, their final names in `pool/`, and last its record. A shard with a record is
done; without one it is written again. File names follow from the content, so writing twice does no harm.

A views file has one row per view; a labels file has the payloads, in row groups of whole batches.
"""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lpld_labels.codecs import Codec, EncodedLabels, Payload
from lpld_labels.format import arrow
from lpld_labels.format import views as view_rows
from lpld_labels.format.digests import VIEWS_SHORT, batch_digest, bytes_digest, views_digest
from lpld_labels.format.limits import MAX_GROUP_ROWS
from lpld_labels.format.manifest import FileEntry, FileRole
from lpld_labels.format.records import BatchKey, ViewBatch
from lpld_labels.format.schema import (
    BATCH_SCHEMA,
    COMPONENTS,
    LABEL_BYTES_PER_GROUP,
    LABEL_KEY_COLUMNS,
    LABELS_DIRECTORY,
    VIEW_ROWS_PER_GROUP,
    VIEW_SCHEMA,
    VIEWS_DIRECTORY,
    Component,
    Views,
    arrow_schema,
)
from lpld_labels.format.strict_json import from_json, to_json
from lpld_labels.format.views import ViewConstraints
from lpld_labels.io.parquet_files import (
    VIEW_OWNERS,
    column_chunks,
    component_bytes,
    file_entry,
    footer_metadata,
    footer_of,
    label_owners,
    page_settings,
)
from lpld_labels.io.storage import TEMPORARY, DigestingFile, fsync, write_atomically, write_errors

RECORDS = "records"
POOL = "pool"
Sink: TypeAlias = DigestingFile | pa.NativeFile
_FACTS = b"lpld-labels"
_IMAGES = pa.field("images", pa.list_(pa.int32()))
_DIGEST_BYTES = hashlib.sha256().digest_size
# Slots count up within a batch, so their differences are constant and cost next to nothing.
_SLOT_ENCODING = {"slot": "DELTA_BINARY_PACKED"}


@dataclass(frozen=True, kw_only=True)
class EncodedBatch:
    """A batch ready for disk: its views, its payload and its digests.

    views_digest: the first 8 bytes of its views' digest. constraints: those that the
    views were checked against, or None if they are unchecked.
    """

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
    """What is known of a finished shard.

    files: as the manifest lists them; none if all its batches were skipped. components: bytes of the files
    by component. index: its slice of the batch index, shard numbers still 0.
    images: int32 [rows], the image of each view.
    """

    files: tuple[FileEntry, ...]
    components: Mapping[Component, int]
    skipped: tuple[Skipped, ...]
    index: pa.Table
    images: npt.NDArray[np.int32]

    @property
    def keys(self) -> list[BatchKey]:
        epochs, batches = arrow.integers(self.index["epoch"]), arrow.integers(self.index["batch"])
        return [BatchKey(epoch, batch) for epoch, batch in zip(epochs, batches, strict=True)]

    def dump(self) -> bytes:
        """Return the record's file: the SHA-256 of the rest, then a Parquet table."""
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
        """Return the record in a file's bytes, or None if they are damaged."""
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
            index=table.drop_columns(["images"]).replace_schema_metadata(None).cast(BATCH_SCHEMA),
            images=images.flatten().to_numpy(),
        )


def record_path(directory: Path, number: int) -> Path:
    """Return where the record of shard `number` is, in a directory of unfinished work."""
    return directory / RECORDS / f"{number:08d}"


def write_shard(
    directory: Path,
    number: int,
    batches: Sequence[EncodedBatch],
    *,
    codec: Codec,
    classes: int,
    views: Views,
    skipped: Sequence[Skipped] = (),
) -> None:
    """Write shard `number` into a directory of unfinished work, durably, its record last."""
    with write_errors(directory):
        ordered = sorted(batches, key=attrgetter("key"))
        record = _write_files(directory / POOL, ordered, codec, classes, views, tuple(skipped))
        path = record_path(directory, number)
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, record.dump(), within=directory)


def _write_files(
    pool: Path,
    batches: Sequence[EncodedBatch],
    codec: Codec,
    classes: int,
    views: Views,
    skipped: tuple[Skipped, ...],
) -> ShardRecord:
    """Write the files of a shard and return its record."""
    components: dict[Component, int] = dict.fromkeys(COMPONENTS, 0)
    index, images = BATCH_SCHEMA.empty_table(), np.zeros(0, np.int32)
    if not batches:
        return ShardRecord(files=(), components=components, skipped=skipped, index=index, images=images)
    first = batches[0].key
    content = bytes_digest(b"".join(batch.digest for batch in batches))
    name = f"{first.epoch:05d}-{first.batch:05d}-{content[:8]}.parquet"
    files = []

    def add(role: FileRole, path: str, sink: DigestingFile, owners: Mapping[str, Component]) -> bytes:
        footer = footer_of(pool / path)
        files.append(file_entry(path, role, sink.size, sink.digest, footer))
        for component, size in component_bytes(column_chunks(footer), sink.size, owners).items():
            components[component] += size
        return footer

    if views == "stored":
        with _new_file(pool, f"{VIEWS_DIRECTORY}/{name}") as sink:
            write_views(sink, [batch.views for batch in batches])
        add("views", f"{VIEWS_DIRECTORY}/{name}", sink, VIEW_OWNERS)
    rows = [batch.views.rows for batch in batches]
    with _new_file(pool, f"{LABELS_DIRECTORY}/{name}") as sink:
        payloads = [batch.payload for batch in batches]
        sizes = [batch.nbytes for batch in batches]
        held = write_labels(sink, [batch.key for batch in batches], payloads, rows, sizes, codec, classes)
    footer = add("labels", f"{LABELS_DIRECTORY}/{name}", sink, label_owners(codec.payload_columns(classes)))
    return ShardRecord(
        files=tuple(files),
        components=components,
        skipped=skipped,
        index=_index_slice(
            batches,
            rows,
            _payload_places(footer, held, keys=len(LABEL_KEY_COLUMNS[codec.granularity])),
            drawn=views == "drawn",
        ),
        images=np.concatenate([batch.views.images for batch in batches]).astype(np.int32),
    )


@contextlib.contextmanager
def _new_file(pool: Path, path: str) -> Iterator[DigestingFile]:
    """Open a file below `pool/` of unfinished work, which gets its name when it is whole and durable."""
    target, temporary = pool / path, pool.parent / f"{TEMPORARY}{uuid.uuid4().hex}"
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with DigestingFile(temporary) as sink:
            yield sink
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync(target.parent)


def _index_slice(
    batches: Sequence[EncodedBatch],
    rows: Sequence[int],
    places: npt.NDArray[np.int64],
    *,
    drawn: bool,
) -> pa.Table:
    """Return batch index rows; the shard column is filled in when the pool is published.

    places: int64 [batches, 2], offset and bytes of the payload pages of each batch's row group.
    """
    count = len(batches)
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
        "label_bytes": pa.array(_shares(np.array([batch.nbytes for batch in batches]), places), pa.int32()),
        "mix_strength": pa.array(strengths, pa.float64()),
        "views_digest": pa.array([batch.views_digest for batch in batches], pa.binary(8)),
        "digest": pa.array([batch.digest for batch in batches], pa.binary(16)),
    }
    return pa.table(columns, schema=BATCH_SCHEMA)


def _shares(size: npt.NDArray[np.int64], places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return each batch's share of its row group's pages, in proportion to its payload; they add up."""
    changes = np.diff(places[:, 0], prepend=-1) != 0
    starts, group = np.flatnonzero(changes), np.cumsum(changes) - 1
    total = np.maximum(np.add.reduceat(size, starts), 1)[group]
    before = np.cumsum(size) - size
    inside = before - before[starts][group]
    shares: npt.NDArray[np.int64] = (inside + size) * places[:, 1] // total - inside * places[:, 1] // total
    return shares


# The files


def label_schema(codec: Codec, classes: int) -> pa.Schema:
    """Return the Arrow schema of a labels file."""
    return arrow_schema(LABEL_KEY_COLUMNS[codec.granularity] + codec.payload_columns(classes))


def write_views(sink: Sink, batches: Sequence[ViewBatch]) -> None:
    """Write a views file of batches in key order."""
    rows = [batch.rows for batch in batches]
    with pq.ParquetWriter(
        cast("pa.NativeFile", sink),
        VIEW_SCHEMA,
        compression="zstd",
        use_dictionary=cast("bool", [name for name in VIEW_SCHEMA.names if name != "slot"]),
        column_encoding=_SLOT_ENCODING,
        write_statistics=["epoch", "batch"],
        **page_settings(),
    ) as writer:
        for group in _groups(rows, rows, VIEW_ROWS_PER_GROUP):
            table = view_rows.to_table(batches[group])
            writer.write_table(table, row_group_size=table.num_rows)


def views_file_bytes(batches: Sequence[ViewBatch]) -> int:
    """Return how large a views file of these batches would be."""
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

    rows: views of each batch. sizes: bytes of each payload.
    """
    schema = label_schema(codec, classes)
    groups = list(_groups(rows, sizes, LABEL_BYTES_PER_GROUP))
    # Payloads are either incompressible or compressed by the codec; keys are a few bytes per group.
    with pq.ParquetWriter(
        cast("pa.NativeFile", sink),
        schema,
        compression="none",
        use_dictionary=cast("bool", ["epoch", "batch"]),
        column_encoding=_SLOT_ENCODING if "slot" in schema.names else None,
        write_statistics=["epoch", "batch"],
        **page_settings(),
    ) as writer:
        tables = (_label_rows(keys[group], payloads[group], schema) for group in groups)
        # Neighbours of one size are written together: a call for each would take as long as its write.
        for size, alike in groupby(tables, key=lambda table: table.num_rows):
            writer.write_table(pa.concat_tables(list(alike)), row_group_size=size)
    return [group.stop - group.start for group in groups]


def _payload_places(footer: bytes, held: Sequence[int], *, keys: int) -> npt.NDArray[np.int64]:
    """Return where the payload pages of each batch's row group are in a labels file: offset and bytes.

    held: how many batches each row group has. keys: how many columns come before the payload.
    """
    metadata = footer_metadata(footer)
    places = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = [group.column(place) for place in range(keys, group.num_columns)]
        places.append((chunks[0].data_page_offset, sum(chunk.total_compressed_size for chunk in chunks)))
    return np.repeat(np.array(places, np.int64), held, axis=0)


def _label_rows(keys: Sequence[BatchKey], payloads: Sequence[Payload], schema: pa.Schema) -> pa.Table:
    """Return the rows of some batches, in the order given."""
    rows = [len(next(iter(payload.values()))) for payload in payloads]
    epochs, numbers = zip(*keys, strict=True)
    key_columns = {
        "epoch": np.repeat(epochs, rows),
        "batch": np.repeat(numbers, rows),
        "slot": np.concatenate([np.arange(count) for count in rows]),
    }
    columns = [
        pa.chunked_array([pa.array(key_columns[field.name], field.type)])
        if field.name in key_columns
        else _joined([payload[field.name] for payload in payloads], field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _joined(parts: Sequence[arrow.Array], kind: pa.DataType) -> arrow.Column:
    """Return payload columns of several batches as one."""
    # Lists read from pages come with a fixed size. A cast that changes nothing still costs as much as
    # writing a small column.
    return pa.chunked_array([part if part.type == kind else part.cast(kind) for part in parts])


def _groups(rows: Sequence[int], weights: Sequence[int], limit: int) -> Iterator[slice]:
    """Yield runs of whole batches, each closed at the first batch that reaches the limit."""
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
