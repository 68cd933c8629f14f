"""Put image files into a pool: packed from a folder, or copied from a pool that carries them.

Packed files are written before the manifest that names them, each atomically. Their names and contents follow
from the images alone, and a note in OUT.partial lists what was written, so interrupted work resumes.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import pyarrow as pa
import pyarrow.parquet as pq

from lpld_labels.errors import ImageMismatchError, InvalidArgumentError
from lpld_labels.exec.job import Progress
from lpld_labels.format.digests import file_digest
from lpld_labels.format.images import ImageTable
from lpld_labels.format.limits import MAX_GROUP_ROWS, MAX_IMAGE_FILE_BYTES
from lpld_labels.format.manifest import FileEntry
from lpld_labels.format.schema import PACKED_DIRECTORY, PACKED_SCHEMA
from lpld_labels.format.strict_json import convert, from_json, to_json
from lpld_labels.io.parquet_files import file_entry, footer_of, page_settings
from lpld_labels.io.storage import TEMPORARY, DigestingFile, move, write_atomically, write_errors
from lpld_labels.pool.pool_files import copy_file
from lpld_labels.pool.reader import PoolReader

GROUP_BYTES = 256 * 1024
"""A row group closes at the first image at or above this: reading one image reads its row group."""
FILE_BYTES = 256 * 1024 * 1024
"""A packed file closes at the first row group at or above this."""

_SEAL = f"{TEMPORARY}packed-"
"""Prefix of the notes on packed files, in OUT.partial."""


class Images(Protocol):
    """A source of image files, by row of an image table."""

    @property
    def table(self) -> ImageTable: ...
    def read(self, row: int) -> bytes: ...
    def place(self, row: int) -> str: ...


class ImageCarrier(Protocol):
    """Puts images into a new pool, and returns their entries in its manifest."""

    def __call__(self, pool: Path, *, within: Path) -> tuple[FileEntry, ...]: ...


@dataclass(frozen=True, eq=False)
class Packed:
    """Images that are packed one by one."""

    images: Images
    progress: Progress | None = None

    def __call__(self, pool: Path, *, within: Path) -> tuple[FileEntry, ...]:
        """Write packed files; those that are there already are verified and stay."""
        table = self.images.table
        _require_digests(table, self.images)
        entries: list[FileEntry] = []
        done = 0
        while done < len(table):
            entry = _found(pool, within, table, done) or self._write(pool, within, done)
            entries.append(entry)
            done += entry.rows
            self._tell(done)
        return tuple(entries)

    def _write(self, pool: Path, within: Path, first: int) -> FileEntry:
        temporary = within / f"{TEMPORARY}{uuid.uuid4().hex}"
        with write_errors(pool / PACKED_DIRECTORY):
            (pool / PACKED_DIRECTORY).mkdir(exist_ok=True)
            try:
                with DigestingFile(temporary) as sink:
                    rows = self._fill(sink, first)
                path = f"{PACKED_DIRECTORY}/{_name(self.images.table, range(first, first + rows))}"
                entry = file_entry(path, "packed", sink.size, sink.digest, footer_of(temporary))
                seal = within / f"{_SEAL}{Path(path).stem}.json"
                write_atomically(seal, to_json(asdict(entry)), within=within)
                move(temporary, pool / path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        return entry

    def _fill(self, sink: DigestingFile, first: int) -> int:
        """Write images from row `first` on until the file is full; return how many."""
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
                self._tell(row)
        return row - first

    def _group(self, first: int) -> Iterator[bytes]:
        size = 0
        for row in range(first, min(first + MAX_GROUP_ROWS, len(self.images.table))):
            data = self.images.read(row)
            size += len(data)
            if len(data) > MAX_IMAGE_FILE_BYTES:
                raise InvalidArgumentError(
                    "image file is too large for a pool", where=self.images.place(row), got=len(data)
                )
            yield data
            if size >= GROUP_BYTES:
                return

    def _tell(self, done: int) -> None:
        if self.progress is not None:
            self.progress(done, len(self.images.table))


@dataclass(frozen=True, eq=False)
class Carried:
    """Images of a pool that carries them, copied file by file."""

    pool: PoolReader

    def __call__(self, pool: Path, *, within: Path) -> tuple[FileEntry, ...]:
        """Copy the packed files; those that are there already stay."""
        entries = self.pool.manifest.files_of("packed")
        for entry in entries:
            copy_file(self.pool.files, entry, pool, within=within)
        return entries


def carried(pool: PoolReader) -> Carried | None:
    """Return what copies a pool's images to a pool made of it; None if it carries none."""
    return Carried(pool) if pool.manifest.files_of("packed") else None


def _require_digests(table: ImageTable, images: Images) -> None:
    if not len(table):
        raise InvalidArgumentError("the pool has no images to pack")
    for row, digest in enumerate(table.digests):
        if digest is None:
            raise ImageMismatchError(
                f"image {row} cannot be packed: the pool does not know its contents",
                where=images.place(row),
                expected="a digest in the image table",
                hint="import the labels again with the image folder at hand (--images)",
            )


def _name(table: ImageTable, rows: range) -> str:
    """Return the name of the packed file of some rows, which follows from what it holds."""
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


def _found(pool: Path, within: Path, table: ImageTable, first: int) -> FileEntry | None:
    """Return the packed file that interrupted work left for images from `first` on, if it is whole."""
    for seal in sorted(within.glob(f"{_SEAL}{first:08d}-*.json")):
        document = from_json(seal.read_bytes(), where=str(seal))
        entry = convert(document, FileEntry, where=str(seal))
        path = pool / entry.path
        same = path.name == _name(table, range(first, min(first + entry.rows, len(table))))
        if same and path.is_file() and file_digest(path) == entry.digest:
            return entry
    return None
