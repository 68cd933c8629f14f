"""Shards: a bounded number of label batches as one views file and one labels file.

A shard is gathered in memory (at most a few tens of MB, already encoded), sorted by key and written
at once into a temporary directory (staging.py). Renaming that directory *seals* the shard: it then holds

    views.parquet     rows of its batches in key order
    labels.parquet    payload of the same batches in the same order
    batches.parquet   its slice of the pool's batch index
    shard.json        bytes and digests of the first two, and which sealed shards it replaces
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lpld_labels.codecs import Codec, EncodedLabels, Payload
from lpld_labels.format import views as view_rows
from lpld_labels.format.digests import batch_digest, bytes_digest
from lpld_labels.format.json_fields import FieldReader
from lpld_labels.format.manifest import from_json, to_json
from lpld_labels.format.records import BatchKey, ViewBatch
from lpld_labels.format.schema import (
    BATCH_SCHEMA,
    LABEL_BYTES_PER_GROUP,
    LABEL_KEY_COLUMNS,
    VIEW_ROWS_PER_GROUP,
    VIEW_SCHEMA,
    arrow_schema,
)

VIEWS = "views.parquet"
LABELS = "labels.parquet"
BATCHES = "batches.parquet"
SEAL = "shard.json"

# One page per column chunk: a reader can then find all values of a row group in one piece.
_ONE_PAGE = 1 << 30
# Slots count up within a batch, so their differences are constant and cost next to nothing.
_SLOT_ENCODING = {"slot": "DELTA_BINARY_PACKED"}


@dataclass(frozen=True, kw_only=True)
class EncodedBatch:
    """A batch ready for disk: its views, its payload and its digest.

    nbytes: of the payload, found once.
    """

    views: ViewBatch
    payload: Payload
    digest: bytes
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", sum(array.nbytes for array in self.payload.values()))

    @property
    def key(self) -> BatchKey:
        return self.views.key

    @staticmethod
    def make(views: ViewBatch, encoded: EncodedLabels) -> EncodedBatch:
        digest = batch_digest(views, encoded.canonical)
        return EncodedBatch(views=views, payload=encoded.payload, digest=digest)


@dataclass(frozen=True, kw_only=True)
class SealedShard:
    """What shard.json says: name, sizes, digests, replaced shards; and the batch index slice."""

    name: str
    rows: int
    label_rows: int
    views_bytes: int
    views_digest: str
    labels_bytes: int
    labels_digest: str
    replaces: tuple[str, ...]
    batches: pa.Table

    @property
    def keys(self) -> list[BatchKey]:
        epochs, batches = self.batches["epoch"].to_pylist(), self.batches["batch"].to_pylist()
        return [BatchKey(e, b) for e, b in zip(epochs, batches, strict=True)]


def label_schema(codec: Codec, classes: int) -> pa.Schema:
    """Return the Arrow schema of a labels file."""
    return arrow_schema(LABEL_KEY_COLUMNS[codec.granularity] + codec.payload_columns(classes))


def shard_files(
    batches: Sequence[EncodedBatch], codec: Codec, classes: int, *, replaces: Sequence[str] = ()
) -> tuple[SealedShard, dict[str, pa.Buffer | bytes]]:
    """Return a shard of these batches and the files of its directory; the seal comes last."""
    ordered = sorted(batches, key=lambda batch: batch.key)
    views = _views_file(ordered)
    label_rows, labels = labels_file(ordered, codec, classes)
    first = ordered[0].key
    content = bytes_digest(b"".join(batch.digest for batch in ordered))
    shard = SealedShard(
        name=f"{first.epoch:05d}-{first.batch:05d}-{content[:8]}",
        rows=sum(batch.views.rows for batch in ordered),
        label_rows=label_rows,
        views_bytes=len(views),
        views_digest=bytes_digest(views),
        labels_bytes=len(labels),
        labels_digest=bytes_digest(labels),
        replaces=tuple(replaces),
        batches=_index_slice(ordered),
    )
    index = pa.BufferOutputStream()
    pq.write_table(shard.batches, index, write_page_checksum=True)
    seal = {field.name: getattr(shard, field.name) for field in fields(shard) if field.name != "batches"}
    return shard, {VIEWS: views, LABELS: labels, BATCHES: index.getvalue(), SEAL: to_json(seal)}


def load_sealed(directory: Path) -> SealedShard:
    """Read the seal of a shard."""
    where = str(directory / SEAL)
    reader = FieldReader(from_json((directory / SEAL).read_bytes(), where=where), where=where)
    replaces = reader.strings("replaces")
    shard = SealedShard(
        name=reader.text("name"),
        rows=reader.integer("rows"),
        label_rows=reader.integer("label_rows"),
        views_bytes=reader.integer("views_bytes"),
        views_digest=reader.text("views_digest"),
        labels_bytes=reader.integer("labels_bytes"),
        labels_digest=reader.text("labels_digest"),
        replaces=replaces,
        batches=read_whole(directory / BATCHES),
    )
    reader.finish()
    return shard


def read_whole(path: Path) -> pa.Table:
    """Return a small Parquet file. `pq.read_table` would first import the machinery for folders of them."""
    with pq.ParquetFile(path) as file:
        return file.read()


def _index_slice(batches: Sequence[EncodedBatch]) -> pa.Table:
    """Return batch index rows; the shard column is filled in by the commit."""
    rows = [batch.views.rows for batch in batches]
    count = len(batches)
    columns = {
        "epoch": pa.array([batch.key.epoch for batch in batches], pa.int32()),
        "batch": pa.array([batch.key.batch for batch in batches], pa.int32()),
        "rows": pa.array(rows, pa.int32()),
        "shard": pa.array(np.zeros(count, np.int32)),
        "view_row": pa.array(np.cumsum([0, *rows])[:count], pa.int64()),
        "position": pa.array(np.arange(count, dtype=np.int32)),
        "digest": pa.array([batch.digest for batch in batches], pa.binary(16)),
    }
    return pa.table(columns, schema=BATCH_SCHEMA)


def _views_file(batches: Sequence[EncodedBatch]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        VIEW_SCHEMA,
        compression="zstd",
        use_dictionary=[name for name in VIEW_SCHEMA.names if name != "slot"],
        column_encoding=_SLOT_ENCODING,
        write_page_checksum=True,
        write_statistics=["epoch", "batch"],
    ) as writer:
        for group in _groups(batches, [batch.views.rows for batch in batches], VIEW_ROWS_PER_GROUP):
            table = view_rows.to_table([batch.views for batch in group])
            writer.write_table(table, row_group_size=table.num_rows)
    return sink.getvalue()


def labels_file(batches: Sequence[EncodedBatch], codec: Codec, classes: int) -> tuple[int, pa.Buffer]:
    """Return how many rows a labels file of batches in key order has, and the file."""
    schema = label_schema(codec, classes)
    sink = pa.BufferOutputStream()
    written = 0
    # Payloads are either incompressible or compressed by the codec; keys are a few bytes per group.
    with pq.ParquetWriter(
        sink,
        schema,
        compression="none",
        use_dictionary=["epoch", "batch"],
        column_encoding=_SLOT_ENCODING if "slot" in schema.names else None,
        write_page_checksum=True,
        write_statistics=["epoch", "batch"],
        data_page_size=_ONE_PAGE,
    ) as writer:
        tables = (
            pa.concat_tables([_label_rows(batch, schema) for batch in group])
            for group in _groups(batches, [batch.nbytes for batch in batches], LABEL_BYTES_PER_GROUP)
        )
        # Neighbours of one size are handed over together: a call for each would take as long as its write.
        for rows, alike in groupby(tables, key=lambda table: table.num_rows):
            table = pa.concat_tables(list(alike))
            writer.write_table(table, row_group_size=rows)
            written += table.num_rows
    return written, sink.getvalue()


def _label_rows(batch: EncodedBatch, schema: pa.Schema) -> pa.Table:
    rows = len(next(iter(batch.payload.values())))
    columns = dict(batch.payload)
    columns["epoch"] = pa.array(np.full(rows, batch.key.epoch, np.int32))
    columns["batch"] = pa.array(np.full(rows, batch.key.batch, np.int32))
    if "slot" in schema.names:
        columns["slot"] = pa.array(np.arange(rows, dtype=np.int32))
    # Blocks read by the short way come as fixed-size lists. A cast that changes nothing still costs as
    # much as writing a small column.
    arrays = [
        column if column.type == field.type else column.cast(field.type)
        for field, column in ((field, columns[field.name]) for field in schema)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _groups(
    batches: Sequence[EncodedBatch], weights: Sequence[int], limit: int
) -> Iterator[list[EncodedBatch]]:
    """Split into runs of whole batches, each closed at the first batch that reaches the limit."""
    group: list[EncodedBatch] = []
    weight = 0
    for batch, more in zip(batches, weights, strict=True):
        group.append(batch)
        weight += more
        if weight >= limit:
            yield group
            group, weight = [], 0
    if group:
        yield group
