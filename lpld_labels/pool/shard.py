"""Shards: a bounded number of label batches as one views file and one labels file.

A shard is gathered in memory (at most a few tens of MB, already encoded), sorted by key and written
at once into a temporary directory (staging.py). Renaming that directory *seals* the shard: it then holds

    views.parquet     rows of its batches in key order
    labels.parquet    payload of the same batches in the same order
    batches.parquet   its slice of the pool's batch index
    shard.json        bytes, digests and components of the first two, and which sealed shards it replaces

Views wait beside their labels even where the pool will not keep them (because they can be drawn again):
merging, counting and checking then need no drawing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lpld_labels.codecs import Codec, EncodedLabels, Payload
from lpld_labels.format import arrow
from lpld_labels.format import views as view_rows
from lpld_labels.format.digests import VIEWS_SHORT, batch_digest, bytes_digest, views_digest
from lpld_labels.format.json_fields import FieldReader
from lpld_labels.format.records import BatchKey, ViewBatch
from lpld_labels.format.schema import (
    BATCH_SCHEMA,
    LABEL_BYTES_PER_GROUP,
    LABEL_KEY_COLUMNS,
    MAX_GROUP_ROWS,
    VIEW_ROWS_PER_GROUP,
    VIEW_SCHEMA,
    arrow_schema,
)
from lpld_labels.format.strict_json import from_json, to_json
from lpld_labels.pool.parquet_files import (
    VIEW_OWNERS,
    FileFacts,
    label_owners,
    page_settings,
    table_bytes,
)

VIEWS = "views.parquet"
LABELS = "labels.parquet"
BATCHES = "batches.parquet"
SEAL = "shard.json"

# Slots count up within a batch, so their differences are constant and cost next to nothing.
_SLOT_ENCODING = {"slot": "DELTA_BINARY_PACKED"}


@dataclass(frozen=True, kw_only=True)
class EncodedBatch:
    """A batch ready for disk: its views, its payload and its digests.

    views_digest: the first 8 bytes of its views' digest. nbytes: of the payload, found once.
    """

    views: ViewBatch
    payload: Payload
    views_digest: bytes
    digest: bytes
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", sum(array.nbytes for array in self.payload.values()))

    @property
    def key(self) -> BatchKey:
        return self.views.key

    @staticmethod
    def make(views: ViewBatch, encoded: EncodedLabels) -> EncodedBatch:
        shown = views_digest(views)
        return EncodedBatch(
            views=views,
            payload=encoded.payload,
            views_digest=shown[:VIEWS_SHORT],
            digest=batch_digest(shown, encoded.canonical),
        )


@dataclass(frozen=True, kw_only=True)
class SealedShard:
    """What shard.json says: name, the two files, replaced shards; and the batch index slice."""

    name: str
    views: FileFacts
    labels: FileFacts
    replaces: tuple[str, ...]
    batches: pa.Table

    @property
    def keys(self) -> list[BatchKey]:
        epochs, batches = arrow.integers(self.batches["epoch"]), arrow.integers(self.batches["batch"])
        return [BatchKey(e, b) for e, b in zip(epochs, batches, strict=True)]


def label_schema(codec: Codec, classes: int) -> pa.Schema:
    """Return the Arrow schema of a labels file."""
    return arrow_schema(LABEL_KEY_COLUMNS[codec.granularity] + codec.payload_columns(classes))


def shard_files(
    batches: Sequence[EncodedBatch], codec: Codec, classes: int, *, drawn: bool, replaces: Sequence[str] = ()
) -> tuple[SealedShard, dict[str, pa.Buffer | bytes]]:
    """Return a shard of these batches and the files of its directory; the seal comes last.

    drawn: the pool will not keep the views file; the index then keeps what cannot be drawn again.
    """
    ordered = sorted(batches, key=lambda batch: batch.key)
    views = _views_file(ordered)
    labels, places = labels_file(ordered, codec, classes)
    first = ordered[0].key
    content = bytes_digest(b"".join(batch.digest for batch in ordered))
    shard = SealedShard(
        name=f"{first.epoch:05d}-{first.batch:05d}-{content[:8]}",
        views=FileFacts.of(views, VIEW_OWNERS),
        labels=FileFacts.of(labels, label_owners(codec.payload_columns(classes))),
        replaces=tuple(replaces),
        batches=_index_slice(ordered, places, drawn=drawn),
    )
    seal = {
        "name": shard.name,
        "views": asdict(shard.views),
        "labels": asdict(shard.labels),
        "replaces": list(shard.replaces),
    }
    index = table_bytes(shard.batches, use_dictionary=False)
    return shard, {VIEWS: views, LABELS: labels, BATCHES: index, SEAL: to_json(seal)}


def load_sealed(directory: Path) -> SealedShard:
    """Read the seal of a shard."""
    where = str(directory / SEAL)
    reader = FieldReader(from_json((directory / SEAL).read_bytes(), where=where), where=where)
    shard = SealedShard(
        name=reader.text("name"),
        views=reader.nested("views", FileFacts.parse),
        labels=reader.nested("labels", FileFacts.parse),
        replaces=reader.strings("replaces"),
        batches=read_whole(directory / BATCHES),
    )
    reader.finish()
    return shard


def read_whole(path: Path) -> pa.Table:
    """Return a small Parquet file. `pq.read_table` would first import the machinery for folders of them."""
    with pq.ParquetFile(path) as file:
        return file.read()


def _index_slice(batches: Sequence[EncodedBatch], places: Sequence[GroupPlace], *, drawn: bool) -> pa.Table:
    """Return batch index rows; the shard column is filled in by the commit."""
    rows = [batch.views.rows for batch in batches]
    count = len(batches)
    strengths = [batch.views.mix.strength if drawn and batch.views.mix else None for batch in batches]
    columns = {
        "epoch": pa.array([batch.key.epoch for batch in batches], pa.int32()),
        "batch": pa.array([batch.key.batch for batch in batches], pa.int32()),
        "rows": pa.array(rows, pa.int32()),
        "shard": pa.array(np.zeros(count, np.int32)),
        "position": pa.array(np.arange(count, dtype=np.int32)),
        "first_row": pa.array(np.cumsum([0, *rows])[:count], pa.int64()),
        "group_offset": pa.array([place.offset for place in places], pa.int64()),
        "group_bytes": pa.array([place.bytes for place in places], pa.int32()),
        "mix_strength": pa.array(strengths, pa.float64()),
        "views_digest": pa.array([batch.views_digest for batch in batches], pa.binary(8)),
        "digest": pa.array([batch.digest for batch in batches], pa.binary(16)),
    }
    return pa.table(columns, schema=BATCH_SCHEMA)


def _views_file(batches: Sequence[EncodedBatch]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        VIEW_SCHEMA,
        compression="zstd",
        use_dictionary=cast("bool", [name for name in VIEW_SCHEMA.names if name != "slot"]),
        column_encoding=_SLOT_ENCODING,
        write_statistics=["epoch", "batch"],
        **page_settings(),
    ) as writer:
        for group in _groups(batches, [batch.views.rows for batch in batches], VIEW_ROWS_PER_GROUP):
            table = view_rows.to_table([batch.views for batch in group])
            writer.write_table(table, row_group_size=table.num_rows)
    return sink.getvalue()


class GroupPlace(NamedTuple):
    """Where in a labels file the payload pages of a row group lie, side by side."""

    offset: int
    bytes: int


def labels_file(
    batches: Sequence[EncodedBatch], codec: Codec, classes: int
) -> tuple[pa.Buffer, list[GroupPlace]]:
    """Return a labels file of batches in key order, and where the row group of each batch lies."""
    schema = label_schema(codec, classes)
    sink = pa.BufferOutputStream()
    # Payloads are either incompressible or compressed by the codec; keys are a few bytes per group.
    writer = pq.ParquetWriter(
        sink,
        schema,
        compression="none",
        use_dictionary=cast("bool", ["epoch", "batch"]),
        column_encoding=_SLOT_ENCODING if "slot" in schema.names else None,
        write_statistics=["epoch", "batch"],
        **page_settings(),
    )
    groups = list(_groups(batches, [batch.nbytes for batch in batches], LABEL_BYTES_PER_GROUP))
    with writer:
        tables = (pa.concat_tables([_label_rows(batch, schema) for batch in group]) for group in groups)
        # Neighbours of one size are handed over together: a call for each would take as long as its write.
        for rows, alike in groupby(tables, key=lambda table: table.num_rows):
            writer.write_table(pa.concat_tables(list(alike)), row_group_size=rows)
    data = sink.getvalue()
    keys = len(LABEL_KEY_COLUMNS[codec.granularity])
    found = _payload_places(pq.read_metadata(pa.BufferReader(data)), keys)
    return data, [place for place, group in zip(found, groups, strict=True) for _ in group]


def _payload_places(metadata: pq.FileMetaData, keys: int) -> Iterator[GroupPlace]:
    """Yield where each row group's payload lies: the columns after the first `keys`."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = [group.column(place) for place in range(keys, group.num_columns)]
        size = sum(chunk.total_compressed_size for chunk in chunks)
        yield GroupPlace(chunks[0].data_page_offset, size)


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
    rows = 0
    for batch, more in zip(batches, weights, strict=True):
        if rows + batch.views.rows > MAX_GROUP_ROWS:
            yield group
            group, weight, rows = [], 0, 0
        group.append(batch)
        weight += more
        rows += batch.views.rows
        if weight >= limit:
            yield group
            group, weight, rows = [], 0, 0
    if group:
        yield group
