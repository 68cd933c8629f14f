"""The files of a pool at an address.

Without a cache, pages are fetched when they are read and whole files each time. With one, whole files are
kept on disk by their digest, labels in blocks (`CachedRanges`). Bytes that differ from the manifest may have
been corrupted in transit: they are fetched again before the pool is reported as corrupt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from lpld_labels.errors import PoolCorruptError
from lpld_labels.format.digests import file_digest
from lpld_labels.format.limits import MAX_JSON_BYTES
from lpld_labels.format.manifest import FileEntry, Manifest
from lpld_labels.format.schema import MANIFEST_FILE, README_FILE
from lpld_labels.io.disk_cache import DiskCache
from lpld_labels.io.prefetch import CachedRanges, DirectRanges
from lpld_labels.io.random_access import ByteSource, open_file, retry_corrupt
from lpld_labels.io.remote import RemoteStore
from lpld_labels.io.retry import REQUESTS_AT_ONCE
from lpld_labels.pool.label_pages import LabelBlocks
from lpld_labels.pool.pool_files import PoolFiles, file_chunks, no_manifest, require_size, verified


class RemoteFile:
    """Any span of a remote file of known size (see `ByteSource`), fetched when it is read."""

    def __init__(self, ranges: DirectRanges | CachedRanges, path: str, size: int, *, where: str) -> None:
        self.where = where
        self.size = size
        self._ranges = ranges
        self._path = path

    def read(self, offset: int, length: int) -> pa.Buffer:
        """Return bytes that were prefetched, or fetch them."""
        if not 0 <= offset <= offset + length <= self.size:
            raise PoolCorruptError("span lies outside the file", where=self.where, got=(offset, length))
        try:
            return self._ranges.read(self._path, offset, offset + length)
        except FileNotFoundError:
            raise PoolCorruptError("file is missing", where=self.where, hint="restore this file") from None

    def forget(self, start: int, stop: int) -> None:
        """Fetch these bytes again on the next read."""
        self._ranges.forget(self._path, start, stop)


class RemoteFiles(PoolFiles):
    """See the module. cache: None keeps nothing on disk."""

    def __init__(self, address: str, cache: DiskCache | None = None) -> None:
        self.store = RemoteStore(address)
        self._cache = cache
        self._direct = DirectRanges(self.store)
        self._cached: CachedRanges | None = None
        self._verified: set[str] = set()
        self._threads: ThreadPoolExecutor | None = None

    def at(self, path: str) -> str:
        return self.store.at(path)

    def manifest_text(self) -> bytes:
        try:
            return self.store.read(MANIFEST_FILE, limit=MAX_JSON_BYTES + 1)
        except FileNotFoundError:
            raise no_manifest(self.store.shown, staged=False) from None

    def card(self) -> bytes | None:
        try:
            return self.store.read(README_FILE, limit=MAX_JSON_BYTES + 1)
        except FileNotFoundError:
            return None

    def check_sizes(self, manifest: Manifest) -> None:
        """Compare with one listing, where the store has listings; elsewhere, errors surface on read."""
        if self.store.lists:
            sizes = self.store.sizes()
            for entry in manifest.files:
                require_size(entry, sizes.get(entry.path), self.at(entry.path))

    def names(self) -> Iterator[tuple[str, bool]]:
        return ((name, False) for name in sorted(self.store.sizes()))

    def whole(self, entry: FileEntry) -> bytes:
        if self._cache is not None:
            return self._kept(entry, self._cache).read_bytes()
        return retry_corrupt(lambda: b"".join(map(memoryview, self._fetched(entry))))

    def chunks(self, entry: FileEntry) -> Iterable[bytes | pa.Buffer]:
        """Fetch a file, the next pieces while the last one is in use; from the cache if there is one."""
        return self._pieces(entry) if self._cache is None else file_chunks(self._kept(entry, self._cache))

    def open(self, entry: FileEntry) -> ByteSource:
        """Open a file at its address or in the cache; views and images are cached whole."""
        cache = self._cache
        if cache is not None and (entry.role != "labels" or cache.path(entry.digest).exists()):
            return open_file(str(self._kept(entry, cache)))
        ranges = self._cached if entry.role == "labels" and self._cached else self._direct
        return RemoteFile(ranges, entry.path, entry.bytes, where=self.at(entry.path))

    def cut_labels(self, blocks: LabelBlocks) -> None:
        if self._cache is not None:
            self._cached = CachedRanges(self.store, self._cache, blocks.files(), check=blocks.check)

    def prefetch(self, blocks: LabelBlocks, numbers: Iterable[int], views: Sequence[FileEntry]) -> None:
        """Fetch in the background; views first, and whole, if there is a cache."""
        cache = self._cache
        missing = [entry for entry in views if cache and not cache.path(entry.digest).exists()]
        if cache is not None and missing:
            self._threads = ThreadPoolExecutor(REQUESTS_AT_ONCE // 2, thread_name_prefix="fetch-views")
            for entry in missing:
                # Fetch errors surface on read.
                self._threads.submit(self._kept, entry, cache)
        (self._cached or self._direct).prefetch(blocks.ranges(numbers))

    def advance(self) -> None:
        if self._cached is not None:
            self._cached.advance()

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        self._direct.close()
        if self._cached is not None:
            self._cached.close()

    def _kept(self, entry: FileEntry, cache: DiskCache) -> Path:
        """Return a file in the cache; one that was changed there is fetched again."""

        def fetch() -> Path:
            return retry_corrupt(lambda: cache.get(entry.digest, entry.bytes, lambda: self._fetched(entry)))

        found = fetch()
        if entry.digest not in self._verified:
            if file_digest(found) != entry.digest:
                cache.drop(entry.digest)
                found = fetch()
            self._verified.add(entry.digest)
        return found

    def _fetched(self, entry: FileEntry) -> Iterator[bytes | pa.Buffer]:
        yield from verified(entry, self._pieces(entry), self.at(entry.path))
        self._verified.add(entry.digest)

    def _pieces(self, entry: FileEntry) -> Iterator[pa.Buffer]:
        try:
            yield from self.store.pieces(entry.path, entry.bytes)
        except FileNotFoundError:
            require_size(entry, None, self.at(entry.path))
