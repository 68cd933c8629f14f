"""Shards: the unit of work. A bounded number of batches, written as one views file and one labels file.

A shard is gathered in memory, already encoded, and written below OUT.partial (unfinished.py) in this order:
its files under temporary names, their final names in `pool/`, and last its record. A shard with a record is
done; without one it is written again. File names follow from the content, so writing twice does no harm.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lpld_labels.codecs import Codec, EncodedLabels, Payload
from lpld_labels.format import arrow
from lpld_labels.format.digests import VIEWS_SHORT, batch_digest, bytes_digest, views_digest
from lpld_labels.format.manifest import FileEntry
from lpld_labels.format.records import BatchKey, ViewBatch
from lpld_labels.format.schema import (
    BATCH_SCHEMA,
    LABEL_KEY_COLUMNS,
    LABELS_DIRECTORY,
    VIEWS_DIRECTORY,
    Views,
)
from lpld_labels.format.strict_json import from_json, to_json
from lpld_labels.format.views import ViewConstraints
from lpld_labels.io.parquet_files import VIEW_OWNERS, FileFacts, footer_of, label_owners
from lpld_labels.io.storage import TEMPORARY, DigestingFile, fsync, write_atomically, write_errors
from lpld_labels.pool.shard_files import GroupPlace, payload_places, write_labels, write_views

RECORDS = "records"
POOL = "pool"
_FACTS = b"lpld-labels"
_IMAGES = pa.field("images", pa.list_(pa.int32()))
_DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True, kw_only=True)
class EncodedBatch:
    """A batch ready for disk: its views, its payload and its digests.

    views_digest: the first 8 bytes of its views' digest. nbytes: of the payload, found once.
    constraints: those that the views were checked against, or None if they are unchecked.
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

    name: of its files, without the ending; empty if all its batches were skipped. views: None where the pool
    draws its views. index: its slice of the batch index, shard numbers still 0.
    images: int32 [rows], the image of each view.
    """

    name: str
    views: FileFacts | None
    labels: FileFacts | None
    skipped: tuple[Skipped, ...]
    index: pa.Table
    images: npt.NDArray[np.int32]

    @property
    def keys(self) -> list[BatchKey]:
        epochs, batches = arrow.integers(self.index["epoch"]), arrow.integers(self.index["batch"])
        return [BatchKey(epoch, batch) for epoch, batch in zip(epochs, batches, strict=True)]

    @property
    def entries(self) -> list[FileEntry]:
        """Its files, as the manifest lists them."""
        entries = []
        if self.views is not None:
            entries.append(self.views.entry(f"{VIEWS_DIRECTORY}/{self.name}.parquet", "views"))
        if self.labels is not None:
            entries.append(self.labels.entry(f"{LABELS_DIRECTORY}/{self.name}.parquet", "labels"))
        return entries

    def dump(self) -> bytes:
        """Return the record's file: the SHA-256 of the rest, then a Parquet table."""
        offsets = np.concatenate([[0], np.cumsum(self.index["rows"].to_numpy())]).astype(np.int32)
        lists: Any = pa.ListArray
        images = lists.from_arrays(pa.array(offsets), pa.array(self.images, pa.int32()))
        facts = {
            "name": self.name,
            "views": self.views and asdict(self.views),
            "labels": self.labels and asdict(self.labels),
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
        images: Any = table["images"].combine_chunks()
        return ShardRecord(
            name=facts["name"],
            views=facts["views"] and FileFacts(**facts["views"]),
            labels=facts["labels"] and FileFacts(**facts["labels"]),
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
        record = _written(directory / POOL, sorted(batches, key=attrgetter("key")), codec, classes, views)
        path = record_path(directory, number)
        path.parent.mkdir(exist_ok=True)
        record = ShardRecord(**{**vars(record), "skipped": tuple(skipped)})
        write_atomically(path, record.dump(), within=directory)


def _written(
    pool: Path, batches: Sequence[EncodedBatch], codec: Codec, classes: int, views: Views
) -> ShardRecord:
    """Write the files of a shard and return what its record says."""
    rows = [batch.views.rows for batch in batches]
    if not batches:
        empty = BATCH_SCHEMA.empty_table()
        return ShardRecord(
            name="", views=None, labels=None, skipped=(), index=empty, images=np.zeros(0, np.int32)
        )
    first = batches[0].key
    content = bytes_digest(b"".join(batch.digest for batch in batches))
    name = f"{first.epoch:05d}-{first.batch:05d}-{content[:8]}"
    views_facts = None
    if views == "stored":
        with _NewFile(pool / VIEWS_DIRECTORY / f"{name}.parquet") as sink:
            write_views(sink, [batch.views for batch in batches], rows)
        views_facts = FileFacts.written(sink.size, sink.digest, footer_of(sink.target), VIEW_OWNERS)
    with _NewFile(pool / LABELS_DIRECTORY / f"{name}.parquet") as sink:
        held = write_labels(sink, batches, rows, codec, classes)
    footer = footer_of(sink.target)
    owners = label_owners(codec.payload_columns(classes))
    places = payload_places(footer, held, keys=len(LABEL_KEY_COLUMNS[codec.granularity]))
    return ShardRecord(
        name=name,
        views=views_facts,
        labels=FileFacts.written(sink.size, sink.digest, footer, owners),
        skipped=(),
        index=index_slice(batches, rows, places, drawn=views == "drawn"),
        images=np.concatenate([batch.views.images for batch in batches]).astype(np.int32),
    )


class _NewFile(DigestingFile):
    """A file below `pool/` of unfinished work: it gets its name when it is whole and durable."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self._temporary = target.parent.parent.parent / f"{TEMPORARY}{uuid.uuid4().hex}"
        target.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(self._temporary)

    def __enter__(self) -> _NewFile:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            super().__exit__(kind, error, trace)
        except BaseException:
            self._temporary.unlink(missing_ok=True)
            raise
        if error is not None:
            self._temporary.unlink(missing_ok=True)
            return
        self._temporary.replace(self.target)
        fsync(self.target.parent)


def index_slice(
    batches: Sequence[EncodedBatch], rows: Sequence[int], places: Sequence[GroupPlace], *, drawn: bool
) -> pa.Table:
    """Return batch index rows; the shard column is filled in when the pool is published."""
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
        "label_bytes": pa.array(_shares([batch.nbytes for batch in batches], places), pa.int32()),
        "mix_strength": pa.array(strengths, pa.float64()),
        "views_digest": pa.array([batch.views_digest for batch in batches], pa.binary(8)),
        "digest": pa.array([batch.digest for batch in batches], pa.binary(16)),
    }
    return pa.table(columns, schema=BATCH_SCHEMA)


def _shares(sizes: Sequence[int], places: Sequence[GroupPlace]) -> npt.NDArray[np.int64]:
    """Return each batch's share of its row group's pages, in proportion to its payload; they add up."""
    size = np.array(sizes, np.int64)
    offsets = np.array([place.offset for place in places], np.int64)
    starts = np.flatnonzero(np.diff(offsets, prepend=-1))
    group = np.cumsum(np.diff(offsets, prepend=-1) != 0) - 1
    total = np.maximum(np.add.reduceat(size, starts), 1)[group]
    before = np.cumsum(size) - size
    inside = before - before[starts][group]
    pages = np.array([place.bytes for place in places], np.int64)
    shares: npt.NDArray[np.int64] = (inside + size) * pages // total - inside * pages // total
    return shares
