"""Image files inside a pool: random access, packing from a folder, and copying from another pool.

Packed files are written atomically, before the manifest that names them. Their names and contents depend only
on the images. A note in OUT.partial describes each packed file, so that interrupted work can be resumed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lpld_labels.errors import ImageMismatchError, InvalidArgumentError, PoolCorruptError
from lpld_labels.exec.job import Progress
from lpld_labels.format import arrow
from lpld_labels.format.digests import image_digest
from lpld_labels.format.images import ImageTable
from lpld_labels.format.limits import MAX_GROUP_ROWS, MAX_IMAGE_FILE_BYTES
from lpld_labels.format.manifest import FileEntry
from lpld_labels.format.schema import PACKED_DIRECTORY, PACKED_SCHEMA
from lpld_labels.format.strict_json import convert, from_json, to_json
from lpld_labels.io.parquet_files import file_entry, footer_of, page_settings
from lpld_labels.io.storage import TEMPORARY, DigestingFile, move, write_atomically, write_errors
from lpld_labels.io.verified_parquet import VerifiedParquet
from lpld_labels.pool.block_cache import BlockCache, OpenFiles
from lpld_labels.pool.pool_files import copy_file, is_intact, temporary_path
from lpld_labels.pool.reader import PoolReader

OPEN_FILES = 64
CACHE_BYTES = 8 * 1024 * 1024  # Of row groups. Neighbours in the image table are often read together.
GROUP_BYTES = 256 * 1024  # A row group ends with the image that reaches this size.
FILE_BYTES = 256 * 1024 * 1024  # A packed file ends with the row group that reaches this size.
_NOTE = f"{TEMPORARY}packed-"  # Prefix of the names of notes in OUT.partial.


class ImageSource(Protocol):
    """Reads image files by their row in an image table. Picklable, fork-safe and thread-safe."""

    @property
    def table(self) -> ImageTable: ...

    def read(self, row: int) -> bytes:
        """Return the bytes of an image file; raise an error if it differs from the labelled file."""

    def place(self, row: int) -> str:
        """Return the location of an image, for messages."""


class ImageCarrier(Protocol):
    """Writes image files into a new pool and returns their manifest entries."""

    def __call__(self, pool: Path, *, within: Path) -> Sequence[FileEntry]: ...


class PackedImages:
    """Reads and verifies images inside a pool, by image table row. Picklable, fork-safe and thread-safe."""

    def __init__(self, pool: PoolReader) -> None:
        self.table = pool.images
        self._pool = pool
        self._entries = pool.manifest.files_of("packed")
        self._starts = np.cumsum([0, *(entry.rows for entry in self._entries)])
        self._files: OpenFiles[VerifiedParquet] = OpenFiles(OPEN_FILES)
        self._groups: BlockCache[list[bytes]] = BlockCache(CACHE_BYTES, lambda group: sum(map(len, group)))

    def read(self, row: int) -> bytes:
        number = self._file_of(row)
        file = self._files.get(number, lambda: self._opened(number))
        group, place = file.group_of(row - int(self._starts[number]), 1)
        data = self._groups.get((number, group), lambda: _image_bytes(file.read(group, ["image"])))[place]
        problem = self._problem(row, data)
        if problem is not None:
            raise PoolCorruptError(problem, where=self.place(row), hint="restore this file")
        return data

    def place(self, row: int) -> str:
        return f"{self._pool.location}/{self._entries[self._file_of(row)].path}, {self.table.paths[row]}"

    def problems(self, entry: FileEntry) -> Iterator[str]:
        number = self._entries.index(entry)
        file, row = self._opened(number), int(self._starts[number])
        # Image bytes must be uncompressed: then no image can be larger than its file.
        file.chunks(plain=("image.bytes",))
        for group in range(file.groups):
            table = file.read(group)
            stop = row + table.num_rows
            expected = {
                "row": list(range(row, stop)),
                "class": self.table.classes[row:stop].tolist(),
                "image.path": [path.encode() for path in self.table.paths[row:stop]],
            }
            found = {
                "row": arrow.integers(table["row"]),
                "class": arrow.integers(table["class"]),
                "image.path": arrow.raw_texts(arrow.field_of(table["image"], "path")),
            }
            for name, values in expected.items():
                if found[name] != values:
                    yield f"row group {group}: column '{name}' differs from the image table"
            problems = map(self._problem, range(row, stop), _image_bytes(table))
            yield from (problem for problem in problems if problem is not None)
            row = stop

    def _file_of(self, row: int) -> int:
        return int(np.searchsorted(self._starts, row, side="right")) - 1

    def _opened(self, number: int) -> VerifiedParquet:
        return self._pool.open_parquet(self._entries[number], PACKED_SCHEMA)

    def _problem(self, row: int, data: bytes) -> str | None:
        if not 1 <= len(data) <= MAX_IMAGE_FILE_BYTES:
            return f"image {row} has {len(data)} bytes (expected 1 to {MAX_IMAGE_FILE_BYTES})"
        wanted = self.table.digests[row]
        if wanted is not None and image_digest(data) == wanted:
            return None
        known = "none" if wanted is None else f"{wanted.hex()[:12]}..."
        return f"image {row} differs from the labelled image (expected digest {known})"

    def __reduce__(self) -> tuple[type[PackedImages], tuple[PoolReader]]:
        return PackedImages, (self._pool,)


def packed_images(pool: PoolReader) -> PackedImages | None:
    """Return the images inside a pool, or None if there are none."""
    return PackedImages(pool) if pool.manifest.files_of("packed") else None


def carried(pool: PoolReader) -> ImageCarrier | None:
    """Return a carrier that copies the packed files of a pool, or None if there are none."""
    return partial(_copy_packed, pool) if pool.manifest.files_of("packed") else None


def _copy_packed(source: PoolReader, pool: Path, *, within: Path) -> Sequence[FileEntry]:
    entries = source.manifest.files_of("packed")
    for entry in entries:
        copy_file(source.files, entry, pool, within=within)
    return entries


@dataclass(frozen=True, eq=False)
class Packed:
    """A carrier that packs image files one by one."""

    images: ImageSource
    progress: Progress | None = None

    def __call__(self, pool: Path, *, within: Path) -> tuple[FileEntry, ...]:
        """Write packed files; keep existing files after verifying them."""
        table = self.images.table
        _require_digests(table, self.images)
        entries: list[FileEntry] = []
        done = 0
        while done < len(table):
            entry = _resumed(pool, within, table, done) or self._write(pool, within, done)
            entries.append(entry)
            done += entry.rows
            self._report(done)
        return tuple(entries)

    def _write(self, pool: Path, within: Path, first: int) -> FileEntry:
        with write_errors(pool / PACKED_DIRECTORY), temporary_path(within) as temporary:
            (pool / PACKED_DIRECTORY).mkdir(exist_ok=True)
            with DigestingFile(temporary) as sink:
                rows = self._fill(sink, first)
                footer = footer_of(sink.tail)
            path = f"{PACKED_DIRECTORY}/{_name(self.images.table, range(first, first + rows))}"
            entry = file_entry(path, "packed", sink.size, sink.digest, footer)
            note = within / f"{_NOTE}{Path(path).stem}.json"
            write_atomically(note, to_json(asdict(entry)), within=within)
            move(temporary, pool / path)
        return entry

    def _fill(self, sink: DigestingFile, first: int) -> int:
        """Write images from row `first` on until the file is full; return their number."""
        table = self.images.table
        row = first
        with pq.ParquetWriter(
            cast("pa.NativeFile", sink),
            PACKED_SCHEMA,
            # Image files are compressed already.
            compression={"row": "zstd", "image.bytes": "none", "image.path": "zstd", "class": "zstd"},
            use_dictionary=False,
            write_statistics=False,
            **page_settings(),
        ) as writer:
            while row < len(table) and sink.size < FILE_BYTES:
                files = list(self._group(row))
                rows = range(row, row + len(files))
                writer.write_table(_rows(table, rows, files), row_group_size=len(files))
                row = rows.stop
                self._report(row)
        return row - first

    def _group(self, first: int) -> Iterator[bytes]:
        size = 0
        for row in range(first, min(first + MAX_GROUP_ROWS, len(self.images.table))):
            data = self.images.read(row)
            size += len(data)
            if len(data) > MAX_IMAGE_FILE_BYTES:
                problem, most = "image file is too large for a pool", f"at most {MAX_IMAGE_FILE_BYTES} bytes"
                where = self.images.place(row)
                raise InvalidArgumentError(problem, where=where, expected=most, got=len(data))
            yield data
            if size >= GROUP_BYTES:
                return

    def _report(self, done: int) -> None:
        if self.progress is not None:
            self.progress(done, len(self.images.table))


def _require_digests(table: ImageTable, images: ImageSource) -> None:
    if not len(table):
        raise InvalidArgumentError("the pool has no images to pack")
    if None in table.digests:
        row = table.digests.index(None)
        raise ImageMismatchError(
            f"image {row} cannot be packed: the pool has no digest of it",
            where=images.place(row),
            expected="a digest in the image table",
            hint="import the labels again with the image folder (--images)",
        )


def _name(table: ImageTable, rows: range) -> str:
    state = hashlib.sha256()
    for row in rows:
        state.update(f"{table.classes[row]} {table.paths[row]}\n".encode() + (table.digests[row] or b""))
    return f"{rows.start:08d}-{state.hexdigest()[:8]}.parquet"


def _rows(table: ImageTable, rows: range, files: list[bytes]) -> pa.Table:
    kinds: Any = list(cast("pa.StructType", PACKED_SCHEMA.field("image").type))
    parts: Any = [pa.array(files, pa.binary()), pa.array(table.paths[rows.start : rows.stop], pa.string())]
    columns: Any = [
        pa.array(rows, pa.int32()),
        pa.StructArray.from_arrays(parts, fields=kinds),
        pa.array(table.classes[rows.start : rows.stop], pa.int32()),
    ]
    return pa.Table.from_arrays(columns, schema=PACKED_SCHEMA)


def _image_bytes(table: pa.Table) -> list[bytes]:
    return arrow.binaries(arrow.field_of(table["image"], "bytes"))


def _resumed(pool: Path, within: Path, table: ImageTable, first: int) -> FileEntry | None:
    """Return the entry of an intact packed file that starts at image `first`, or None if there is none."""
    for note in sorted(within.glob(f"{_NOTE}{first:08d}-*.json")):
        entry = convert(from_json(note.read_bytes(), where=str(note)), FileEntry, where=str(note))
        path = pool / entry.path
        name = _name(table, range(first, min(first + entry.rows, len(table))))
        if path.name == name and is_intact(path, entry):
            return entry
    return None
