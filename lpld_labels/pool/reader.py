"""Read pools with random access to batches, without torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.codecs import Codec, restore_codec
from lpld_labels.errors import BatchNotFoundError, InvalidArgumentError, LabelPoolError, PoolCorruptError
from lpld_labels.format.digests import pool_digest
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import FileEntry, PoolHeader
from lpld_labels.format.records import BatchKey, LabelArray, LabelBatch, ViewBatch
from lpld_labels.format.schema import BATCH_SCHEMA, IMAGE_SCHEMA, MANIFEST_FILE
from lpld_labels.format.views import ViewConstraints, labelled, view_constraints
from lpld_labels.io.addresses import is_address, redact
from lpld_labels.io.disk_cache import DiskCache
from lpld_labels.io.verified_parquet import VerifiedParquet
from lpld_labels.pool.index import BatchIndex
from lpld_labels.pool.label_pages import LabelFiles, LabelLayout
from lpld_labels.pool.pool_files import PoolFiles, open_files, read_manifest, read_table
from lpld_labels.pool.shard import EncodedBatch
from lpld_labels.pool.views import DrawnViews, StoredViews
from lpld_labels.results import Shown

VIEW_CACHE_BYTES = 256 * 1024 * 1024
LABEL_CACHE_BYTES = 4 * 1024 * 1024
OPEN_SHARDS = 64


class PoolReader(Shown):
    """A published pool, opened for reading.

    location: local path or address (``s3://``, ``https://``, anything fsspec opens).
    view_cache_bytes: memory for decoded views (about 40 bytes a row).
    check_sizes: fail on opening if a file is missing or has the wrong size.
    open_shards: how many shards to keep open. Two are enough for sequential reads.
    cache: keeps files of a remote pool on disk (`lpld_labels.io.disk_cache`).
    image_folder: folder of the labelled images, to show views in notebooks; needed if the pool has no images.

    Opening reads and verifies only the manifest, the batch index and codec tables. Readers can be pickled
    and survive fork, so PyTorch workers can use them. Threads may share a reader.

    Public: manifest, header, classes, codec, keys, images, read, read_views, read_labels, close. All other
    members are internal to this library and may change.
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        *,
        view_cache_bytes: int = VIEW_CACHE_BYTES,
        check_sizes: bool = True,
        open_shards: int = OPEN_SHARDS,
        cache: DiskCache | None = None,
        image_folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self._address = os.fspath(location)
        self.location = redact(location)
        self._settings: dict[str, Any] = {
            "view_cache_bytes": view_cache_bytes,
            "check_sizes": check_sizes,
            "open_shards": open_shards,
            "cache": cache,
            "image_folder": image_folder,
        }
        self.image_folder = image_folder
        self._files = open_files(location, cache)
        self.manifest = read_manifest(self._files)
        self.header: PoolHeader = self.manifest.header
        self.classes = self.header.classes
        if check_sizes:
            self._files.check_sizes(self.manifest)
        entry = self.manifest.files_of("batches")[0]
        self.index = BatchIndex(
            read_table(self._files, entry, BATCH_SCHEMA), self.manifest, self._files.at(entry.path)
        )
        self.codec: Codec = restore_codec(
            self.manifest.codec,
            {
                PurePosixPath(entry.path).name: self._files.whole(entry)
                for entry in self.manifest.files_of("codec")
            },
            classes=self.classes,
            label_kind=self.header.label_kind,
            where=self._files.at(MANIFEST_FILE),
        )
        self.index.check_label_rows(self.manifest, by_view=self.codec.granularity == "view")
        self._layout = LabelLayout(self.manifest, self.index, self.codec)
        self._files.cut_labels(self._layout)
        self.label_files = LabelFiles(
            self._layout,
            lambda shard: self.files.open(self.manifest.files_of("labels")[shard]),
            cache_bytes=LABEL_CACHE_BYTES,
            open_files=open_shards,
        )
        self._views: StoredViews | DrawnViews = (
            DrawnViews(self, cache_bytes=view_cache_bytes)
            if self.manifest.views == "drawn"
            else StoredViews(self, cache_bytes=view_cache_bytes, open_files=open_shards)
        )
        self._process = os.getpid()

    @property
    def keys(self) -> Sequence[BatchKey]:
        """The keys of all batches, in order."""
        return self.index.keys

    @property
    def files(self) -> PoolFiles:
        """The pool's files, opened again with new connections after a fork."""
        if self._process != os.getpid():
            self._files = open_files(self._address, self._settings["cache"])
            self._files.cut_labels(self._layout)
            self._process = os.getpid()
        return self._files

    @cached_property
    def images(self) -> ImageTable:
        """The images that views refer to."""
        entry = self.manifest.files_of("images")[0]
        table = read_table(self.files, entry, IMAGE_SCHEMA)
        try:
            return ImageTable.from_table(table, classes=self.classes)
        except InvalidArgumentError as error:
            raise _corrupt(error, self._files.at(entry.path)) from None

    @cached_property
    def view_constraints(self) -> ViewConstraints:
        """The constraints on views, checked on every read."""
        return view_constraints(self.header, self.images, self.manifest.views)

    def __repr__(self) -> str:
        return f"PoolReader({self.location!r})"

    def __len__(self) -> int:
        return len(self.index)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, tuple) and len(key) == 2 and self.index.find(BatchKey(*key)) is not None

    def read(self, key: tuple[int, int], *, dtype: npt.DTypeLike | None = None) -> LabelBatch:
        """Return one batch; its arrays may be read-only. dtype: the labels' dtype; None for the codec's."""
        number = self.find(key)
        return labelled(self.views_at(number), self.labels_at(number, dtype))

    def read_views(self, key: tuple[int, int]) -> ViewBatch:
        """Return the views of one batch without reading its labels."""
        return self.views_at(self.find(key))

    def read_labels(self, key: tuple[int, int], *, dtype: npt.DTypeLike | None = None) -> LabelArray:
        """Return the labels [B, C] of one batch without reading its views."""
        return self.labels_at(self.find(key), dtype)

    def read_encoded(self, key: tuple[int, int]) -> EncodedBatch:
        """Return one batch as stored, to copy it into another pool of the same codec."""
        return self.encoded_at(self.find(key))

    def iterate(
        self, keys: Iterable[tuple[int, int]] | None = None, *, dtype: npt.DTypeLike | None = None
    ) -> Iterator[LabelBatch]:
        """Yield the batches `keys` in this order. None: all batches, in key order."""
        for key in self.keys if keys is None else keys:
            yield self.read(key, dtype=dtype)

    def __iter__(self) -> Iterator[LabelBatch]:
        return self.iterate()

    # Methods that take the number of a batch in the index

    def find(self, key: tuple[int, int]) -> int:
        name = BatchKey(*key)
        number = self.index.find(name)
        if number is None:
            raise BatchNotFoundError(f"no {name} in this pool", where=self.location)
        return number

    def views_at(self, number: int) -> ViewBatch:
        return self._views.views(number)

    def images_at(self, number: int) -> npt.NDArray[np.int32]:
        """Return the image table rows of the views of batch `number`: int32 [B]."""
        return self._views.images(number)

    def encoded_at(self, number: int) -> EncodedBatch:
        return EncodedBatch(
            views=self.views_at(number),
            payload=self.label_files.payload(number),
            views_digest=self.index.views_digest(number),
            digest=self.index.digest(number),
            constraints=self.view_constraints,
        )

    def labels_at(self, number: int, dtype: npt.DTypeLike | None = None) -> LabelArray:
        payload = self.label_files.payload(number)
        try:
            return self.codec.decode(
                payload,
                rows=int(self.index.rows[number]),
                classes=self.classes,
                dtype=dtype or self.codec.native_dtype,
            )
        except PoolCorruptError as error:
            path = self.manifest.files_of("labels")[int(self.index.shard[number])].path
            raise _corrupt(error, f"{self._files.at(path)}, {self.index.key(number)}") from None

    def prefetch(self, numbers: Iterable[int]) -> None:
        """Prefetch batches of a remote pool, in the order in which they will be read."""
        self.files.prefetch(self._layout, numbers, self.manifest.files_of("views"))

    def advance(self) -> None:
        self._files.advance()

    def digest_of(self, batch_digests: Sequence[bytes]) -> str:
        """Return the content digest that this pool would have with the given batch digests, in key order."""
        return pool_digest(
            self.header,
            codec=self.codec.name,
            identity=self.codec.identity(),
            images=self.images.digest(),
            batches=batch_digests,
        )

    def open_parquet(self, entry: FileEntry, schema: pa.Schema) -> VerifiedParquet:
        return VerifiedParquet(self.files.open(entry), entry, schema)

    def with_cache(self, cache: DiskCache) -> PoolReader:
        """Return a reader that caches remote files on disk. It is `self` if the pool is local or cached."""
        if self._settings["cache"] is not None or not is_address(self._address):
            return self
        return PoolReader(self._address, **{**self._settings, "cache": cache})

    def close(self) -> None:
        """Close files and drop caches."""
        self._files.close()
        self._views.clear()
        self.label_files.clear()

    def __enter__(self) -> PoolReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[partial[PoolReader], tuple[()]]:
        return partial(type(self), self._address, **self._settings), ()


def _corrupt(error: LabelPoolError, where: str) -> PoolCorruptError:
    return PoolCorruptError(**{**error.parts(), "where": where, "hint": "restore this file"})
