"""Checking a pool from end to end: every byte, every row, every label.

Works through everything it can reach and names each damaged file, instead of stopping at the first.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs

from lpld_labels.errors import LabelPoolError
from lpld_labels.format.digests import batch_digest
from lpld_labels.format.manifest import FileEntry
from lpld_labels.format.records import BatchKey, LabelBatch
from lpld_labels.format.schema import MANIFEST_FILE
from lpld_labels.pool.reader import PoolReader, read_manifest
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
    if not damaged.intersection(essential):
        try:
            with PoolReader(location, check_sizes=False) as pool:
                found, batches, rows = _check_shards(pool, damaged, ticker)
                problems += found
        except LabelPoolError as error:
            problems.append(Problem(file=MANIFEST_FILE, message=str(error)))
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
    views, labels = pool.manifest.files_of("views"), pool.manifest.files_of("labels")
    batches = rows = 0
    for number, (view_file, label_file) in enumerate(zip(views, labels, strict=True)):
        if not damaged.intersection((view_file.path, label_file.path)):
            keys = pool.index.keys_of_shard(number)
            try:
                messages = _view_problems(pool, number, keys)
                problems.extend(Problem(file=view_file.path, message=message) for message in messages)
                messages = _label_problems(pool, keys)
                problems.extend(Problem(file=label_file.path, message=message) for message in messages)
            except LabelPoolError as error:
                problems.append(Problem(file=label_file.path, message=str(error)))
            batches += len(keys)
            rows += view_file.rows
        ticker.add(view_file.bytes + label_file.bytes)
    digest = pool.digest_of(pool.index.digests())
    if digest != pool.manifest.content_digest:
        message = f"content digest is wrong (expected {pool.manifest.content_digest}, got {digest})"
        problems.append(Problem(file=MANIFEST_FILE, message=message))
    return problems, batches, rows


def _view_problems(pool: PoolReader, shard: int, keys: list[BatchKey]) -> Iterator[str]:
    """Yield what is wrong with the rows of one views file."""
    table = pool.shard_views(shard)
    rows = np.array([pool.index.rows_of(key) for key in keys], np.int64)
    if table.num_rows != rows.sum():
        yield f"row count disagrees with the batch index (expected {rows.sum()}, got {table.num_rows})"
        return
    epochs = np.repeat([key.epoch for key in keys], rows)
    batches = np.repeat([key.batch for key in keys], rows)
    starts = np.repeat(np.cumsum(rows) - rows, rows)
    expected = {"epoch": epochs, "batch": batches, "slot": np.arange(len(starts)) - starts}
    for name, values in expected.items():
        yield from _first_bad(table, table[name].to_numpy() == values, f"column '{name}' is out of key order")
    images = table["image"].to_numpy()
    inside = (images >= 0) & (images < len(pool.images))
    yield from _first_bad(table, inside, f"column 'image' is outside the image table of {len(pool.images)}")
    if inside.all():
        ends = {
            "height": table["crop_top"].to_numpy().astype(np.int64) + table["crop_height"].to_numpy(),
            "width": table["crop_left"].to_numpy().astype(np.int64) + table["crop_width"].to_numpy(),
        }
        good = (ends["height"] <= pool.images.heights[images]) & (ends["width"] <= pool.images.widths[images])
        for name in ("crop_top", "crop_left"):
            good &= table[name].to_numpy() >= 0
        for name in ("crop_height", "crop_width"):
            good &= table[name].to_numpy() >= 1
        yield from _first_bad(table, good, "crop reaches outside its image")
    yield from _box_problems(pool, table, np.repeat(rows, rows))


def _box_problems(pool: PoolReader, table: pa.Table, batch_rows: npt.NDArray[np.int64]) -> Iterator[str]:
    """Yield what is wrong with mixing and cut-out columns."""
    height = pool.header.augmentation.output_height
    width = pool.header.augmentation.output_width
    partner = table["mix_slot"].fill_null(0).to_numpy()
    yield from _first_bad(table, (partner >= 0) & (partner < batch_rows), "mixing partner outside the batch")
    strength = table["mix_strength"].fill_null(0.0).to_numpy()
    yield from _first_bad(table, (strength >= 0) & (strength <= 1), "mix_strength outside 0 to 1")
    for kind in ("mix", "cutout"):
        top, left, bottom, right = (
            table[f"{kind}_{side}"].fill_null(0).to_numpy() for side in ("top", "left", "bottom", "right")
        )
        good = (top >= 0) & (left >= 0) & (top <= bottom) & (left <= right)
        good &= (bottom <= height) & (right <= width)
        yield from _first_bad(table, good, f"{kind} box outside the {height} x {width} view")


def _first_bad(table: pa.Table, good: npt.NDArray[np.bool_], message: str) -> Iterator[str]:
    if not good.all():
        row = int(np.argmin(good))
        place = {name: table[name][row].as_py() for name in ("epoch", "batch", "slot")}
        yield f"{message}, first at row {row} {place} ({int((~good).sum())} rows)"


def _label_problems(pool: PoolReader, keys: list[BatchKey]) -> Iterator[str]:
    """Yield batches whose labels or digests are wrong."""
    for key in keys:
        try:
            encoded = pool.read_encoded(key)
            views = encoded.views
            canonical = pool.codec.canonical(encoded.payload, rows=views.rows, classes=pool.classes)
            if batch_digest(views, canonical) != encoded.digest:
                yield f"{key}: digest of the batch is wrong"
            # Building the record again applies every rule a writer has to keep.
            LabelBatch(**{**vars(views), "labels": pool.read_labels(key)})
        except LabelPoolError as error:
            yield f"{key}: {error}"
