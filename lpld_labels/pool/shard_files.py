"""The two files of a shard: one row per view, and payloads, in row groups of whole batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol, TypeAlias, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lpld_labels.codecs import Codec, Payload
from lpld_labels.format import views as view_rows
from lpld_labels.format.arrow import Array, Column
from lpld_labels.format.limits import MAX_GROUP_ROWS
from lpld_labels.format.records import BatchKey, ViewBatch
from lpld_labels.format.schema import (
    LABEL_BYTES_PER_GROUP,
    LABEL_KEY_COLUMNS,
    VIEW_ROWS_PER_GROUP,
    VIEW_SCHEMA,
    arrow_schema,
)
from lpld_labels.io.parquet_files import footer_metadata, page_settings
from lpld_labels.io.storage import DigestingFile

T = TypeVar("T")
Sink: TypeAlias = DigestingFile | pa.NativeFile
# Slots count up within a batch, so their differences are constant and cost next to nothing.
_SLOT_ENCODING = {"slot": "DELTA_BINARY_PACKED"}


class Labelled(Protocol):
    """What a labels file needs to know of a batch."""

    @property
    def key(self) -> BatchKey: ...
    @property
    def payload(self) -> Payload: ...
    @property
    def nbytes(self) -> int: ...


class GroupPlace(NamedTuple):
    """Where in a labels file the payload pages of a row group lie, side by side."""

    offset: int
    bytes: int


def label_schema(codec: Codec, classes: int) -> pa.Schema:
    """Return the Arrow schema of a labels file."""
    return arrow_schema(LABEL_KEY_COLUMNS[codec.granularity] + codec.payload_columns(classes))


def write_views(sink: Sink, batches: Sequence[ViewBatch], rows: Sequence[int]) -> None:
    """Write a views file of batches in key order. rows: of each."""
    with pq.ParquetWriter(
        cast("pa.NativeFile", sink),
        VIEW_SCHEMA,
        compression="zstd",
        use_dictionary=cast("bool", [name for name in VIEW_SCHEMA.names if name != "slot"]),
        column_encoding=_SLOT_ENCODING,
        write_statistics=["epoch", "batch"],
        **page_settings(),
    ) as writer:
        for group in _groups(batches, rows, rows, VIEW_ROWS_PER_GROUP):
            table = view_rows.to_table(group)
            writer.write_table(table, row_group_size=table.num_rows)


def views_file_bytes(batches: Sequence[ViewBatch]) -> int:
    """Return how large a views file of these batches would be."""
    sink = pa.MockOutputStream()
    write_views(sink, batches, [batch.rows for batch in batches])
    return int(sink.size())


def write_labels(
    sink: Sink, batches: Sequence[Labelled], rows: Sequence[int], codec: Codec, classes: int
) -> list[int]:
    """Write a labels file of batches in key order; return how many batches each row group has.

    rows: views of each batch.
    """
    schema = label_schema(codec, classes)
    weights = [batch.nbytes for batch in batches]
    groups = list(_groups(batches, rows, weights, LABEL_BYTES_PER_GROUP))
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
        tables = (_label_rows(group, schema) for group in groups)
        # Neighbours of one size are handed over together: a call for each would take as long as its write.
        for size, alike in groupby(tables, key=lambda table: table.num_rows):
            writer.write_table(pa.concat_tables(list(alike)), row_group_size=size)
    return [len(group) for group in groups]


def payload_places(footer: bytes, held: Sequence[int], *, keys: int) -> list[GroupPlace]:
    """Return where the payload of each batch's row group lies in a labels file.

    held: how many batches each row group has. keys: how many columns come before the payload.
    """
    metadata = footer_metadata(footer)
    places = []
    for number, count in enumerate(held):
        group = metadata.row_group(number)
        chunks = [group.column(place) for place in range(keys, group.num_columns)]
        size = sum(chunk.total_compressed_size for chunk in chunks)
        places += [GroupPlace(chunks[0].data_page_offset, size)] * count
    return places


def _label_rows(batches: Sequence[Labelled], schema: pa.Schema) -> pa.Table:
    """Return the rows of some batches, in the order given."""
    payloads = [batch.payload for batch in batches]
    rows = [len(next(iter(payload.values()))) for payload in payloads]
    epochs, numbers = zip(*(batch.key for batch in batches), strict=True)
    keys = {
        "epoch": np.repeat(epochs, rows),
        "batch": np.repeat(numbers, rows),
        "slot": np.concatenate([np.arange(count) for count in rows]),
    }
    columns = [
        pa.chunked_array([pa.array(keys[field.name], field.type)])
        if field.name in keys
        else _joined([payload[field.name] for payload in payloads], field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _joined(parts: Sequence[Array], kind: pa.DataType) -> Column:
    """Return payload columns of several batches as one."""
    # Lists read from pages come with a fixed size. A cast that changes nothing still costs as much as
    # writing a small column.
    return pa.chunked_array([part if part.type == kind else part.cast(kind) for part in parts])


def _groups(
    batches: Sequence[T], rows: Sequence[int], weights: Sequence[int], limit: int
) -> Iterator[list[T]]:
    """Split into runs of whole batches, each closed at the first batch that reaches the limit."""
    group: list[T] = []
    weight = held = 0
    for batch, count, more in zip(batches, rows, weights, strict=True):
        if held + count > MAX_GROUP_ROWS:
            yield group
            group, weight, held = [], 0, 0
        group.append(batch)
        weight += more
        held += count
        if weight >= limit:
            yield group
            group, weight, held = [], 0, 0
    if group:
        yield group
