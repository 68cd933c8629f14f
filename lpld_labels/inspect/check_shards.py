"""Checking the contents of a pool: shards against the index, packed images against the image table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.errors import LabelPoolError
from lpld_labels.format.digests import batch_digest, views_digest
from lpld_labels.format.files import FILE_COMPONENTS, FileEntry
from lpld_labels.format.limits import TABLE_GROWTH, TABLE_SPARE_BYTES
from lpld_labels.format.manifest import Manifest
from lpld_labels.format.schema import (
    BATCH_SCHEMA,
    COMPONENTS,
    IMAGE_SCHEMA,
    MANIFEST_FILE,
    VIEW_SCHEMA,
    Component,
)
from lpld_labels.io.parquet_files import VIEW_OWNERS, label_owners, weighed
from lpld_labels.io.parquet_pages import Chunk
from lpld_labels.io.verified_parquet import VerifiedParquet
from lpld_labels.pool.index import Group
from lpld_labels.pool.packed_images import packed_images
from lpld_labels.pool.pool_files import PoolFiles
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard_files import label_schema
from lpld_labels.pool.view_counts import coverage_of


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something wrong with a file of the pool."""

    file: str
    message: str


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """What was checked and what was found wrong."""

    files: int
    bytes: int
    batches: int
    rows: int
    problems: tuple[Problem, ...]

    @property
    def whole(self) -> bool:
        return not self.problems


class Bytes(Protocol):
    """Checks the bytes of files, each just before its contents: one from elsewhere is fetched once for both.

    damaged: files whose bytes are known to be wrong.
    """

    damaged: set[str]

    def check(self, entry: FileEntry) -> None:
        """Look at a file's bytes and keep it at hand."""
        ...

    def finish(self, entry: FileEntry) -> None:
        """Let go of a file whose contents have been looked at."""
        ...


def table_problems(files: PoolFiles, manifest: Manifest) -> list[Problem]:
    """Check the pages of the batch index and the image table, before anything is decoded."""

    def check(entry: FileEntry, schema: pa.Schema) -> Iterator[str]:
        chunks = VerifiedParquet(files.open(entry), entry, schema).chunks()
        limit, size = TABLE_GROWTH * entry.bytes + TABLE_SPARE_BYTES, sum(chunk.plain for chunk in chunks)
        if size > limit:
            yield f"table is far larger than its file (expected at most {limit} bytes, got {size})"

    tables = ((manifest.files_of("batches")[0], BATCH_SCHEMA), (manifest.files_of("images")[0], IMAGE_SCHEMA))
    return [problem for table in tables for problem in _problems(table[0].path, partial(check, *table))]


def check_contents(pool: PoolReader, files: Bytes) -> tuple[list[Problem], int, int]:
    """Check shards and packed images, bytes and contents; return problems, and batches and rows checked."""
    problems: list[Problem] = []
    damaged = files.damaged
    counted = np.zeros(len(pool.images), np.int64)
    views = dict(enumerate(pool.manifest.files_of("views")))
    components = _tables_weight(pool)
    batches = rows = 0
    for shard, labels in enumerate(pool.manifest.files_of("labels")):
        numbers = pool.index.in_shard(shard).tolist()
        source = views.get(shard)
        entries = [labels] if source is None else [source, labels]
        for entry in entries:
            files.check(entry)
        found = _shard_problems(pool, shard, source, labels, damaged, components)
        if not damaged.intersection((labels.path, source.path if source else labels.path)):
            batches += len(numbers)
            rows += int(pool.index.rows[numbers].sum())
        problems += found
        if not problems and not damaged and numbers:
            shown = np.concatenate([pool.images_at(number) for number in numbers])
            counted += np.bincount(shown, minlength=len(counted))
        for entry in entries:
            files.finish(entry)
    packed = packed_images(pool)
    for entry in pool.manifest.files_of("packed"):
        files.check(entry)
        if packed is not None and entry.path not in damaged:
            problems += _problems(entry.path, partial(packed.problems, entry))
        files.finish(entry)
    if not problems and not damaged:
        problems += _problems(MANIFEST_FILE, partial(_manifest_problems, pool, components, counted))
    return problems, batches, rows


def _shard_problems(
    pool: PoolReader,
    shard: int,
    source: FileEntry | None,
    labels: FileEntry,
    damaged: set[str],
    components: dict[Component, int],
) -> list[Problem]:
    """Return what is wrong with the contents of a shard's intact files; add up what they weigh."""
    numbers = pool.index.in_shard(shard).tolist()
    found: list[Problem] = []
    if source is None or source.path not in damaged:
        blamed = source.path if source else pool.manifest.files_of("batches")[0].path
        if source is not None:
            found += _problems(source.path, partial(_weigh, pool, source, components))
        # Pages are checked before Arrow decodes them.
        found = found or _problems(blamed, partial(_view_problems, pool, numbers))
    seen = not found and (source is None or source.path not in damaged)
    if labels.path not in damaged:
        found += _problems(labels.path, partial(_page_problems, pool, labels, shard, components))
        found += _problems(labels.path, partial(_label_problems, pool, numbers, digests=seen))
    return found


def _problems(file: str, check: Callable[[], Iterator[str]]) -> list[Problem]:
    """Return what a check finds, or what keeps it from going on, as problems of one file."""
    found: list[Problem] = []
    try:
        found.extend(Problem(file=file, message=message) for message in check())
    except LabelPoolError as error:
        found.append(Problem(file=file, message=str(error)))
    return found


def _view_problems(pool: PoolReader, numbers: list[int]) -> Iterator[str]:
    """Yield batches whose views are not what index and image table say; reading them looks at everything."""
    for number in numbers:
        try:
            # Building the record again applies every rule a writer has to keep.
            replace(pool.views_at(number))
        except LabelPoolError as error:
            yield f"{pool.index.key(number)}: {error}"
            # The rest of its row group would say the same again.
            return


def _page_problems(
    pool: PoolReader, entry: FileEntry, shard: int, components: dict[Component, int]
) -> Iterator[str]:
    """Yield where a labels file, read by its footer as other programs do, is not what the index says.

    Adds up what it weighs.
    """
    columns = pool.codec.payload_columns(pool.classes)
    names = [column.name for column in columns]
    file = pool.open_parquet(entry, label_schema(pool.codec, pool.classes))
    chunks = file.chunks(plain=names)
    _add(components, weighed(_weights(chunks), entry.bytes, label_owners(columns)))
    groups = pool.index.groups_of(shard)
    payload = [[c for c in chunks if c.group == group and c.column in names] for group in range(file.groups)]
    by_view = pool.codec.granularity == "view"
    rows = np.diff(file.starts).tolist()
    found = [(p[0].offset, sum(c.bytes for c in p), r) for p, r in zip(payload, rows, strict=True) if p]
    if found != [(group.offset, group.bytes, group.rows if by_view else group.batches) for group in groups]:
        yield "row groups do not lie where the batch index says"
        return
    for number, group in enumerate(groups):
        problem = _wrong_keys(pool, file, shard, number) or _other_payload(pool, file, shard, number, group)
        if problem is not None:
            yield problem
            return


def _other_payload(
    pool: PoolReader, file: VerifiedParquet, shard: int, number: int, group: Group
) -> str | None:
    """Return which payload column of a row group is another one when Arrow reads it by the footer."""
    direct = pool.label_pages(shard).block(group)
    table = file.read(number, list(direct))
    for name, array in direct.items():
        other = table[name].combine_chunks()
        if not other.equals(array.cast(other.type)):
            return f"column '{name}' is another one by the footer than by the batch index, row group {number}"
    return None


def _wrong_keys(pool: PoolReader, file: VerifiedParquet, shard: int, group: int) -> str | None:
    """Return which key column of a row group is not what the index says."""
    index = pool.index
    by_view = pool.codec.granularity == "view"
    first, last = int(file.starts[group]), int(file.starts[group + 1])
    numbers = index.in_rows(shard, first, last) if by_view else index.in_shard(shard)[first:last]
    rows = index.rows[numbers].astype(np.int64) if by_view else np.ones(len(numbers), np.int64)
    expected = {
        "epoch": np.repeat(index.epochs[numbers], rows),
        "batch": np.repeat(index.batches[numbers], rows),
    }
    if by_view:
        expected["slot"] = np.arange(rows.sum()) - np.repeat(np.cumsum(rows) - rows, rows)
    table = file.read(group, list(expected))
    for name, values in expected.items():
        found = table[name].to_numpy()
        if not np.array_equal(found, values):
            row = int(np.flatnonzero(found != values)[0]) if len(found) == len(values) else 0
            return f"column '{name}' is not what the batch index says, first at row {first + row}"
    return None


def _label_problems(pool: PoolReader, numbers: list[int], *, digests: bool) -> Iterator[str]:
    """Yield batches whose labels are wrong; with `digests`, also those that have other digests."""
    for number in numbers:
        key = pool.index.key(number)
        try:
            labels = pool.labels_at(number)
            if not np.isfinite(labels).all():
                yield f"{key}: a label is not finite"
            elif pool.header.label_kind == "probabilities" and (labels < 0).any():
                yield f"{key}: a probability is negative"
            if digests:
                encoded = pool.encoded_at(number)
                canonical = pool.codec.canonical(
                    encoded.payload, rows=encoded.views.rows, classes=pool.classes
                )
                if batch_digest(views_digest(encoded.views), canonical) != encoded.digest:
                    yield f"{key}: digest of the batch is wrong"
        except LabelPoolError as error:
            yield f"{key}: {error}"


def _weigh(pool: PoolReader, entry: FileEntry, components: dict[Component, int]) -> Iterator[str]:
    """Check the pages of a views file and add up what it weighs."""
    chunks = pool.open_parquet(entry, VIEW_SCHEMA).chunks()
    _add(components, weighed(_weights(chunks), entry.bytes, VIEW_OWNERS))
    return iter(())


def _weights(chunks: list[Chunk]) -> Iterator[tuple[str, int]]:
    return ((chunk.column, chunk.bytes) for chunk in chunks)


def _tables_weight(pool: PoolReader) -> dict[Component, int]:
    """Return the bytes of all files but those of shards, by component."""
    components: dict[Component, int] = dict.fromkeys(COMPONENTS, 0)
    for role, owner in FILE_COMPONENTS.items():
        components[owner] += sum(entry.bytes for entry in pool.manifest.files_of(role))
    return components


def _add(total: dict[Component, int], part: dict[Component, int]) -> None:
    for name, size in part.items():
        total[name] += size


def _manifest_problems(
    pool: PoolReader, components: dict[Component, int], counted: npt.NDArray[np.int64]
) -> Iterator[str]:
    """Yield what the manifest says of the whole pool that is not so. counted: views of each image."""
    manifest = pool.manifest
    facts = {
        "content_digest": (manifest.content_digest, pool.digest_of(pool.index.digests())),
        "coverage": (manifest.coverage, coverage_of(counted, pool.images.classes)),
        "components": (manifest.components, components),
    }
    for name, (stated, got) in facts.items():
        if stated != got:
            yield f"field '{name}' is wrong (expected {stated}, got {got})"
