"""Reading pools: any batch at random, in any order, without torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from types import TracebackType
from typing import Any

import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from lpld_labels.codecs import Codec, restore_codec
from lpld_labels.errors import BatchNotFoundError, NotAPoolError, PoolCorruptError
from lpld_labels.format.digests import bytes_digest, content_digest
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import FileEntry, Manifest, PoolHeader
from lpld_labels.format.records import BatchKey, LabelArray, LabelBatch, ViewBatch
from lpld_labels.format.schema import IMAGE_SCHEMA, MANIFEST_FILE, STAGING_DIRECTORY
from lpld_labels.pool.block_cache import BlockCache
from lpld_labels.pool.index import BatchIndex
from lpld_labels.pool.shard import EncodedBatch
from lpld_labels.pool.shard_reader import ParquetRows, ShardCaches, ShardReader
from lpld_labels.pool.storage import resolve

VIEW_CACHE_BYTES = 256 * 1024 * 1024
LABEL_CACHE_BYTES = 4 * 1024 * 1024
OPEN_SHARDS = 64


class PoolReader:
    """A published pool, opened for reading.

    location: local path or URI (anything pyarrow's file systems open).
    preload: hold all views and payloads in memory; reads then touch no file.
    view_cache_bytes: memory for decoded views (about 40 bytes a row).
    check_sizes: refuse at once if a file is missing or has the wrong size.
    open_shards: how many shards to keep open; memory-mapped, their pages count as this process's memory
        until others need it. Two are enough to read from front to back.

    Opening reads the manifest and the batch index only. Readers can be pickled and survive fork,
    so PyTorch workers can use them; threads may share one.
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        *,
        preload: bool = False,
        view_cache_bytes: int = VIEW_CACHE_BYTES,
        check_sizes: bool = True,
        open_shards: int = OPEN_SHARDS,
    ) -> None:
        self.location = os.fspath(location)
        self._settings = {
            "preload": preload,
            "view_cache_bytes": view_cache_bytes,
            "check_sizes": check_sizes,
            "open_shards": open_shards,
        }
        self._system, self._path = resolve(location)
        self.manifest = read_manifest(self._system, self._path, self.location)
        self.header: PoolHeader = self.manifest.header
        if check_sizes:
            self._check_sizes()
        self._index = BatchIndex.load(self._parquet(self.manifest.files_of("batches")), self.manifest)
        self.codec: Codec = restore_codec(
            self.manifest.codec, self._codec_tables(), where=self._at(MANIFEST_FILE)
        )
        self._images: ImageTable | None = None
        self._caches = ShardCaches(
            view_bytes=None if preload else view_cache_bytes,
            label_bytes=None if preload else LABEL_CACHE_BYTES,
        )
        self._shards: BlockCache[ShardReader] = BlockCache(open_shards, lambda shard: 1)
        self._process = os.getpid()
        if preload:
            self._load_everything()

    # What the pool is

    @property
    def classes(self) -> int:
        """Number of label columns C."""
        return self.header.classes

    @property
    def keys(self) -> Sequence[BatchKey]:
        """All batches in key order."""
        return self._index.keys

    @property
    def index(self) -> BatchIndex:
        """Where every batch is, as NumPy columns."""
        return self._index

    @property
    def images(self) -> ImageTable:
        """The images the views refer to."""
        if self._images is None:
            rows = self._parquet(self.manifest.files_of("images"), IMAGE_SCHEMA)
            self._images = ImageTable.from_table(rows.read_all())
            if len(self._images) != self.manifest.counts.images:
                raise PoolCorruptError(
                    "image table disagrees with the manifest",
                    where=rows.where,
                    expected=f"{self.manifest.counts.images} rows",
                    got=len(self._images),
                )
        return self._images

    def __len__(self) -> int:
        """Number of batches."""
        return len(self._index)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, tuple) and len(key) == 2 and self._index.find(BatchKey(*key)) is not None

    # Reading batches

    def read(self, key: tuple[int, int], *, dtype: npt.DTypeLike | None = None) -> LabelBatch:
        """Return one batch. Labels come as the codec's native dtype unless told otherwise.

        Arrays may be read-only views of the file; copy before changing them.
        """
        name, number = self._find(key)
        shard, view_row, _, rows = self._locate(number)
        block, part = shard.view_slice(view_row, rows)
        return block.labelled(name, part, self._labels(number, dtype))

    def read_views(self, key: tuple[int, int]) -> ViewBatch:
        """Return one batch without its labels; no label byte is touched."""
        name, number = self._find(key)
        shard, view_row, _, rows = self._locate(number)
        block, part = shard.view_slice(view_row, rows)
        return block.batch(name, part)

    def read_labels(self, key: tuple[int, int], *, dtype: npt.DTypeLike | None = None) -> LabelArray:
        """Return one batch's labels [B, C]; no view is touched."""
        return self._labels(self._find(key)[1], dtype)

    def read_encoded(self, key: tuple[int, int]) -> EncodedBatch:
        """Return one batch as stored, to copy it into another pool of the same codec."""
        return self.read_encoded_at(self._find(key)[1])

    def read_encoded_at(self, number: int) -> EncodedBatch:
        """Return the batch at a place in the index as stored."""
        shard, view_row, position, rows = self._locate(number)
        block, part = shard.view_slice(view_row, rows)
        payload = shard.payload(view_row, position, rows)
        views = block.batch(self._index.key(number), part)
        return EncodedBatch(views=views, payload=payload, digest=self._index.digest(number))

    def iterate(
        self, keys: Iterable[tuple[int, int]] | None = None, *, dtype: npt.DTypeLike | None = None
    ) -> Iterator[LabelBatch]:
        """Yield batches in the order given, or in key order."""
        for key in self.keys if keys is None else keys:
            yield self.read(key, dtype=dtype)

    def __iter__(self) -> Iterator[LabelBatch]:
        return self.iterate()

    def view_tables(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield some view columns shard by shard, in file order; other columns are not read."""
        for number in range(self._index.shards):
            yield self._shard(number).view_file.read_all(columns)

    def shard_views(self, number: int) -> pa.Table:
        """Return all view columns of one shard."""
        return self._shard(number).view_file.read_all()

    def footers(self, number: int) -> tuple[pq.FileMetaData, pq.FileMetaData]:
        """Return the Parquet metadata of a shard's views and labels files."""
        shard = self._shard(number)
        return shard.view_file.metadata, shard.label_file.metadata

    def digest_of(self, batch_digests: list[bytes]) -> str:
        """Return the content digest of a pool like this one of other batches, given theirs in key order."""
        return content_digest(
            classes=self.classes,
            label_kind=self.header.label_kind,
            codec_identity=self.codec.identity(),
            images_digest=self.images.digest(),
            batch_digests=batch_digests,
        )

    @property
    def manifest_bytes(self) -> int:
        """Size of pool.json on disk."""
        return int(self._system.get_file_info(self._at(MANIFEST_FILE)).size)

    # Inside

    def _find(self, key: tuple[int, int]) -> tuple[BatchKey, int]:
        name = BatchKey(*key)
        number = self._index.find(name)
        if number is None:
            raise BatchNotFoundError(f"no {name} in this pool", where=self.location)
        return name, number

    def _locate(self, number: int) -> tuple[ShardReader, int, int, int]:
        shard, view_row, position, rows = self._index.locate(number)
        return self._shard(shard), view_row, position, rows

    def _labels(self, number: int, dtype: npt.DTypeLike | None) -> LabelArray:
        shard, view_row, position, rows = self._locate(number)
        payload = shard.payload(view_row, position, rows)
        try:
            return self.codec.decode(
                payload, rows=rows, classes=self.classes, dtype=dtype or self.codec.native_dtype
            )
        except PoolCorruptError as error:
            where = f"{shard.label_file.where}, {self._index.key(number)}"
            raise PoolCorruptError(
                error.problem, where=where, expected=error.expected, got=error.got, hint="restore this file"
            ) from None

    def _shard(self, number: int) -> ShardReader:
        if self._process != os.getpid():
            # File handles and connections do not survive fork; decoded blocks do.
            self._system, self._path = resolve(self.location)
            self._shards = BlockCache(self._settings["open_shards"], lambda shard: 1)
            self._process = os.getpid()
        return self._shards.get(number, lambda: self._open_shard(number))

    def _open_shard(self, number: int) -> ShardReader:
        views = self.manifest.files_of("views")[number]
        labels = self.manifest.files_of("labels")[number]
        return ShardReader(
            self._system,
            self._at(views.path),
            self._at(labels.path),
            codec=self.codec,
            classes=self.classes,
            caches=self._caches,
        )

    def _load_everything(self) -> None:
        for number in range(self._index.shards):
            shard = self._shard(number)
            for group in range(shard.view_file.metadata.num_row_groups):
                shard.view_block(group)
            for group in range(shard.label_file.metadata.num_row_groups):
                shard.label_block(group)

    def _at(self, path: str) -> str:
        return f"{self._path}/{path}"

    def _check_sizes(self) -> None:
        """Refuse missing and truncated files before anything is read from them."""
        files = self.manifest.files
        for entry, info in zip(
            files, self._system.get_file_info([self._at(e.path) for e in files]), strict=True
        ):
            if info.type != fs.FileType.File:
                raise PoolCorruptError(
                    "file is missing", where=self._at(entry.path), hint="restore this file"
                )
            if info.size != entry.bytes:
                raise PoolCorruptError(
                    "file has the wrong size",
                    where=self._at(entry.path),
                    expected=f"{entry.bytes} bytes",
                    got=info.size,
                    hint="restore this file",
                )

    def _parquet(self, entries: Sequence[FileEntry], schema: pa.Schema | None = None) -> ParquetRows:
        return ParquetRows(self._system, self._at(entries[0].path), schema)

    def _codec_tables(self) -> dict[str, bytes]:
        tables = {}
        for entry in self.manifest.files_of("codec"):
            with self._system.open_input_stream(self._at(entry.path)) as stream:
                table = stream.read()
            # Labels decoded with another pool's table would be wrong without a sign of it.
            if bytes_digest(table) != entry.digest:
                raise PoolCorruptError(
                    "codec table is not the one this pool was written with",
                    where=self._at(entry.path),
                    expected=f"SHA-256 {entry.digest[:12]}...",
                    got=f"{bytes_digest(table)[:12]}...",
                    hint="restore this file",
                )
            tables[PurePosixPath(entry.path).name] = table
        return tables

    def close(self) -> None:
        """Let go of files and caches."""
        self._shards.clear()
        self._caches.views.clear()
        self._caches.labels.clear()

    def __enter__(self) -> PoolReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"location": self.location, **self._settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def read_manifest(system: fs.FileSystem, path: str, location: str) -> Manifest:
    """Read and parse pool.json below `path`; `location` is how the caller named the pool."""
    where = f"{path}/{MANIFEST_FILE}"
    try:
        with system.open_input_stream(where) as stream:
            text = stream.read()
    except FileNotFoundError:
        staged = system.get_file_info(f"{path}/{STAGING_DIRECTORY}").type == fs.FileType.Directory
        raise NotAPoolError(
            "not a label pool: no pool.json",
            where=location,
            hint="an unfinished build is staged here: run the same command again to finish it"
            if staged
            else "give the directory that holds pool.json",
        ) from None
    except OSError as error:
        raise NotAPoolError(f"cannot read pool.json: {error}", where=location) from None
    return Manifest.parse(text, where=where)
