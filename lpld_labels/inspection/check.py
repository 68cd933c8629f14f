"""Checking a pool from end to end: every byte, every row, every label.

Works through everything it can reach and names each damaged file, instead of stopping at the first.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from pyarrow import fs

from lpld_labels.errors import LabelPoolError
from lpld_labels.format.digests import batch_digest, views_digest
from lpld_labels.format.files import FileEntry
from lpld_labels.format.records import ViewBatch
from lpld_labels.format.schema import COMPONENTS, MANIFEST_FILE, VIEW_SCHEMA, Component
from lpld_labels.pool.commit import coverage_of
from lpld_labels.pool.parquet_files import VIEW_OWNERS, label_owners, weighed
from lpld_labels.pool.pool_files import read_manifest
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard_files import label_schema
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.pool.storage import resolve

Progress = Callable[[int, int], None]
_CHUNK = 1 << 22


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


def check_pool(location: str | os.PathLike[str], *, progress: Progress | None = None) -> CheckReport:
    """Check digests, page checksums, counts, key order, ranges, duplicates and labels of a pool.

    Raises only when there is no readable manifest; everything else is a problem in the report.
    progress: called with (bytes done, bytes in all); shards are read twice.
    """
    system, path = resolve(location)
    manifest = read_manifest(system, path, os.fspath(location))
    shards = manifest.files_of("views") + manifest.files_of("labels")
    ticker = _Ticker(sum(entry.bytes for entry in (*manifest.files, *shards)), progress)
    problems = []
    for entry in manifest.files:
        problem = _check_bytes(system, f"{path}/{entry.path}", entry)
        if problem is not None:
            problems.append(Problem(file=entry.path, message=problem))
        ticker.add(entry.bytes)
    problems += _strangers(system, path, {entry.path for entry in manifest.files})
    damaged = {problem.file for problem in problems}
    essential = [e.path for e in manifest.files if e.role in ("batches", "images", "codec")]
    batches = rows = 0
    blamed = MANIFEST_FILE
    if not damaged.intersection(essential):
        try:
            with PoolReader(location, check_sizes=False) as pool:
                # Everything is held against the image table.
                blamed = manifest.files_of("images")[0].path
                len(pool.images)
                found, batches, rows = _check_shards(pool, damaged, ticker)
                problems += found
        except LabelPoolError as error:
            problems.append(Problem(file=blamed, message=str(error)))
    ticker.finish()
    return CheckReport(
        files=len(manifest.files) + 1,
        bytes=pool_bytes(manifest),
        batches=batches,
        rows=rows,
        problems=tuple(problems),
    )


class _Ticker:
    """Adds up finished bytes for a progress callback."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def add(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)

    def finish(self) -> None:
        """Say that nothing is left, also of what damage made pointless."""
        self.add(self._total - self._done)


def _check_bytes(system: fs.FileSystem, path: str, entry: FileEntry) -> str | None:
    """Return what is wrong with a file's bytes, or None."""
    info = system.get_file_info(path)
    if info.type != fs.FileType.File:
        return "file is missing"
    if info.size != entry.bytes:
        return f"file has the wrong size (expected {entry.bytes} bytes, got {info.size})"
    state = hashlib.sha256()
    try:
        with system.open_input_stream(path) as stream:
            while chunk := stream.read(_CHUNK):
                state.update(chunk)
    except OSError as error:
        return f"cannot be read: {error}"
    if state.hexdigest() != entry.digest:
        return f"bytes changed (expected SHA-256 {entry.digest[:12]}..., got {state.hexdigest()[:12]}...)"
    return None


def _strangers(system: fs.FileSystem, path: str, known: set[str]) -> list[Problem]:
    """Report files in views/ and labels/ that the manifest does not name: queries would count them."""
    found = []
    for folder in ("views", "labels"):
        selector = fs.FileSelector(f"{path}/{folder}", allow_not_found=True)
        for info in sorted(system.get_file_info(selector), key=lambda i: i.base_name):
            name = f"{folder}/{info.base_name}"
            if name not in known:
                message = "file is not part of the pool; finish the interrupted commit or delete it"
                found.append(Problem(file=name, message=message))
    return found


def _check_shards(pool: PoolReader, damaged: set[str], ticker: _Ticker) -> tuple[list[Problem], int, int]:
    """Check the contents of all shards whose files are intact; return problems, batches, rows."""
    problems: list[Problem] = []
    views = dict(enumerate(pool.manifest.files_of("views")))
    components = _tables_weight(pool)
    batches = rows = 0
    for shard, labels in enumerate(pool.manifest.files_of("labels")):
        numbers = pool.index.in_shard(shard).tolist()
        source = views.get(shard)
        found: list[Problem] = []
        if source is None or source.path not in damaged:
            blamed = source.path if source else pool.manifest.files_of("batches")[0].path
            found += _problems(blamed, partial(_view_problems, pool, numbers))
            if source is not None:
                found += _problems(source.path, partial(_weigh, pool, source, components))
        seen = not found and (source is None or source.path not in damaged)
        if labels.path not in damaged:
            found += _problems(labels.path, partial(_key_problems, pool, labels, numbers, components))
            found += _problems(labels.path, partial(_label_problems, pool, numbers, digests=seen))
        if not damaged.intersection((labels.path, source.path if source else labels.path)):
            batches += len(numbers)
            rows += int(pool.index.rows[numbers].sum())
        problems += found
        ticker.add(labels.bytes + (source.bytes if source else 0))
    if not problems and not damaged:
        problems += _problems(MANIFEST_FILE, partial(_manifest_problems, pool, components))
    return problems, batches, rows


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
            ViewBatch(**vars(pool.views_at(number)))
        except LabelPoolError as error:
            yield f"{pool.index.key(number)}: {error}"
            # The rest of its row group would say the same again.
            return


def _key_problems(
    pool: PoolReader, entry: FileEntry, numbers: list[int], components: dict[Component, int]
) -> Iterator[str]:
    """Yield what is wrong with the key columns of a labels file; add up what it weighs."""
    columns = pool.codec.payload_columns(pool.classes)
    file = pool.open_parquet(entry, label_schema(pool.codec, pool.classes))
    _add(components, weighed(file.metadata, entry.bytes, label_owners(columns)))
    by_view = pool.codec.granularity == "view"
    rows = pool.index.rows[numbers].astype(np.int64) if by_view else np.ones(len(numbers), np.int64)
    if entry.rows != rows.sum():
        yield f"row count disagrees with the batch index (expected {rows.sum()}, got {entry.rows})"
        return
    expected = {
        "epoch": np.repeat(pool.index.epochs[numbers], rows),
        "batch": np.repeat(pool.index.batches[numbers], rows),
    }
    if by_view:
        expected["slot"] = np.arange(rows.sum()) - np.repeat(np.cumsum(rows) - rows, rows)
    table = file.read_all(list(expected))
    for name, values in expected.items():
        wrong = np.flatnonzero(table[name].to_numpy() != values)
        if len(wrong):
            yield f"column '{name}' is not what the batch index says, first at row {wrong[0]}"


def _label_problems(pool: PoolReader, numbers: list[int], *, digests: bool) -> Iterator[str]:
    """Yield batches whose labels are wrong; with `digests`, also those that have other digests."""
    for number in numbers:
        key = pool.index.key(number)
        try:
            pool.labels_at(number)
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
    file = pool.open_parquet(entry, VIEW_SCHEMA)
    _add(components, weighed(file.metadata, entry.bytes, VIEW_OWNERS))
    return iter(())


def _tables_weight(pool: PoolReader) -> dict[Component, int]:
    """Return the bytes of all files but those of shards, by component."""
    components: dict[Component, int] = dict.fromkeys(COMPONENTS, 0)
    owners: dict[str, Component] = {"codec": "codec", "packed": "packed"}
    for entry in pool.manifest.files:
        if entry.role not in ("views", "labels"):
            components[owners.get(entry.role, "container")] += entry.bytes
    return components


def _add(total: dict[Component, int], part: dict[Component, int]) -> None:
    for name, size in part.items():
        total[name] += size


def _manifest_problems(pool: PoolReader, components: dict[Component, int]) -> Iterator[str]:
    """Yield what the manifest says of the whole pool that is not so."""
    manifest = pool.manifest
    facts = {
        "content_digest": (manifest.content_digest, pool.digest_of(pool.index.digests())),
        "coverage": (manifest.coverage, coverage_of(pool.views_per_image(), pool.images.classes)),
        "components": (manifest.components, components),
    }
    for name, (stated, got) in facts.items():
        if stated != got:
            yield f"field '{name}' is wrong (expected {stated}, got {got})"
