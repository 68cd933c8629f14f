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

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path

import pyarrow as pa

from lpld_labels.codecs import Codec
from lpld_labels.format import arrow
from lpld_labels.format.digests import bytes_digest
from lpld_labels.format.json_fields import FieldReader
from lpld_labels.format.records import BatchKey
from lpld_labels.format.schema import (
    BATCH_SCHEMA,
    LABEL_KEY_COLUMNS,
)
from lpld_labels.format.strict_json import from_json, to_json
from lpld_labels.io.parquet_files import VIEW_OWNERS, FileFacts, footer_of, index_file, label_owners
from lpld_labels.io.random_access import open_file
from lpld_labels.io.storage import DigestingFile, write_durably
from lpld_labels.io.verified_parquet import VerifiedParquet
from lpld_labels.pool.shard import EncodedBatch, index_slice
from lpld_labels.pool.shard_files import payload_places, write_labels, write_views

VIEWS = "views.parquet"
LABELS = "labels.parquet"
BATCHES = "batches.parquet"
SEAL = "shard.json"


@dataclass(frozen=True, kw_only=True)
class SealedShard:
    """What shard.json says: name, the two files, replaced shards; and the batch index slice."""

    name: str
    views: FileFacts
    labels: FileFacts
    replaces: tuple[str, ...]
    batches: pa.Table

    @property
    def first_key(self) -> BatchKey:
        return BatchKey(self.batches["epoch"][0].as_py(), self.batches["batch"][0].as_py())

    @property
    def keys(self) -> list[BatchKey]:
        epochs, batches = arrow.integers(self.batches["epoch"]), arrow.integers(self.batches["batch"])
        return [BatchKey(e, b) for e, b in zip(epochs, batches, strict=True)]


def write_shard(
    directory: Path,
    batches: Sequence[EncodedBatch],
    codec: Codec,
    classes: int,
    *,
    drawn: bool,
    replaces: Sequence[str] = (),
) -> SealedShard:
    """Write a shard of these batches into a directory, durably, and return what its seal says.

    drawn: the pool will not keep the views file; the index then keeps what cannot be drawn again.
    """
    ordered = sorted(batches, key=attrgetter("views.key"))
    rows = [batch.views.rows for batch in ordered]
    with DigestingFile(directory / VIEWS) as views:
        write_views(views, [batch.views for batch in ordered], rows)
    with DigestingFile(directory / LABELS) as labels:
        held = write_labels(labels, ordered, rows, codec, classes)
    footer = footer_of(directory / LABELS)
    places = payload_places(footer, held, keys=len(LABEL_KEY_COLUMNS[codec.granularity]))
    owners = label_owners(codec.payload_columns(classes))
    first = ordered[0].views.key
    content = bytes_digest(b"".join(batch.digest for batch in ordered))
    shard = SealedShard(
        name=f"{first.epoch:05d}-{first.batch:05d}-{content[:8]}",
        views=FileFacts.written(views.size, views.digest, footer_of(directory / VIEWS), VIEW_OWNERS),
        labels=FileFacts.written(labels.size, labels.digest, footer, owners),
        replaces=tuple(replaces),
        batches=index_slice(ordered, rows, places, drawn=drawn),
    )
    index = index_file(shard.batches)
    seal = {
        "name": shard.name,
        "views": asdict(shard.views),
        "labels": asdict(shard.labels),
        "batches": asdict(FileFacts.of(index)),
        "replaces": list(shard.replaces),
    }
    write_durably(directory / BATCHES, index)
    write_durably(directory / SEAL, to_json(seal))
    return shard


def load_sealed(directory: Path) -> SealedShard:
    """Read the seal of a shard."""
    where = str(directory / SEAL)
    reader = FieldReader(from_json((directory / SEAL).read_bytes(), where=where), where=where)
    shard = SealedShard(
        name=reader.text("name"),
        views=reader.nested("views", FileFacts.parse),
        labels=reader.nested("labels", FileFacts.parse),
        replaces=reader.strings("replaces"),
        batches=_index_of(directory, reader.nested("batches", FileFacts.parse)),
    )
    reader.finish()
    return shard


def _index_of(directory: Path, facts: FileFacts) -> pa.Table:
    """Return the index slice of a sealed shard, known to be the one its seal names."""
    file = open_file(str(directory / BATCHES))
    return VerifiedParquet(file, facts.entry(BATCHES, "batches"), BATCH_SCHEMA).read_all()
