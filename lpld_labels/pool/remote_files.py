"""The files of a pool at an address.

Without a cache, pages are fetched when they are read and whole files each time. With one, whole files are
kept on disk by their digest, labels in blocks (`CachedRanges`). Bytes that are not what the manifest says may
have been changed on the way: they are fetched again before the pool is blamed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from lpld_labels.errors import InvalidArgumentError, PoolCorruptError
from lpld_labels.format.digests import file_digest
from lpld_labels.format.files import FileEntry
from lpld_labels.format.limits import MAX_JSON_BYTES
from lpld_labels.format.manifest import Manifest
from lpld_labels.format.schema import MANIFEST_FILE, README_FILE
from lpld_labels.io.byte_access import ByteSource, once_more, open_file
from lpld_labels.io.cached_ranges import CachedRanges, CutFile
from lpld_labels.io.clients import REQUESTS_AT_ONCE
from lpld_labels.io.disk_cache import DiskCache
from lpld_labels.io.ranges import Range, Ranges
from lpld_labels.io.read_ahead import ReadAhead
from lpld_labels.io.remote import RemoteStore
from lpld_labels.pool.pool_files import FOLDERS, no_manifest, require_digest, wrong_size
from lpld_labels.pool.remote_file import RemoteFile


class RemoteFiles:
    """See the module. cache: None keeps nothing on disk. ranges: where pages of labels come from."""

    def __init__(self, address: str, cache: DiskCache | None = None) -> None:
        self.store = RemoteStore(address)
        self.cache = cache
        self.ranges: Ranges = ReadAhead(self.store)
        self._proven: set[str] = set()
        self._threads: ThreadPoolExecutor | None = None

    def at(self, path: str) -> str:
        """Return the address of a file, without secrets."""
        return self.store.at(path)

    def manifest_text(self) -> bytes:
        """Fetch pool.json: one request."""
        try:
            return self.store.read(MANIFEST_FILE, limit=MAX_JSON_BYTES + 1)
        except FileNotFoundError:
            raise no_manifest(self.store.shown, staged=False) from None

    def card(self) -> bytes | None:
        """Fetch it, if it is there."""
        try:
            return self.store.read(README_FILE, limit=MAX_JSON_BYTES + 1)
        except FileNotFoundError:
            return None

    def check_sizes(self, manifest: Manifest) -> None:
        """Compare with one listing, where the store has listings; elsewhere, reading finds out."""
        if not self.store.lists:
            return
        sizes = self.store.sizes()
        for entry in manifest.files:
            if entry.path not in sizes:
                raise self._missing(entry)
            if sizes[entry.path] != entry.bytes:
                raise wrong_size(entry, sizes[entry.path], self.at(entry.path))

    def check_links(self, manifest: Manifest) -> None:
        """Addresses have no links."""

    def whole(self, entry: FileEntry) -> bytes:
        """Return it from the cache, or fetch it and compare its digest."""
        if self.cache is not None:
            return self._kept(entry).read_bytes()
        return once_more(lambda: b"".join(map(memoryview, self._proven_pieces(entry))), lambda: None)

    def chunks(self, entry: FileEntry) -> Iterable[bytes | pa.Buffer]:
        """Fetch it, the next pieces while the last one is in use."""
        return self._pieces(entry)

    def open(self, entry: FileEntry) -> ByteSource:
        """Open it where it is, or in the cache; views and images are fetched whole if there is one."""
        if self.cache is not None and (entry.role != "labels" or self.cache.path(entry.digest).exists()):
            return open_file(str(self._kept(entry)))
        return RemoteFile(self.ranges, entry.path, entry.bytes, where=self.at(entry.path))

    def problem(self, entry: FileEntry) -> str | None:
        """Fetch it whole, into the cache if there is one, and compare its digest."""
        try:
            if self.cache is not None:
                self._kept(entry)
            else:
                once_more(lambda: sum(piece.size for piece in self._proven_pieces(entry)), lambda: None)
        except PoolCorruptError as error:
            return (
                f"{error.problem} (expected {error.expected}, got {error.got})"
                if error.got
                else error.problem
            )
        return None

    def strangers(self, known: set[str]) -> Sequence[str]:
        """Look at a listing, where the store has listings."""
        return [name for name, _ in self.beside(known) if name.startswith(tuple(f"{f}/" for f in FOLDERS))]

    def beside(self, known: set[str]) -> Iterator[tuple[str, str]]:
        """Look at a listing."""
        for name in sorted(self.store.sizes()):
            if name not in known:
                yield name, "file is not part of the pool"

    def _kept(self, entry: FileEntry) -> Path:
        """Return a file in the cache; one that was changed there is fetched again."""
        if self.cache is None:
            raise InvalidArgumentError("there is no cache", where=self.store.shown)
        cache = self.cache

        def path() -> Path:
            return cache.get(entry.digest, entry.bytes, lambda: self._proven_pieces(entry))

        found = once_more(path, lambda: None)
        if entry.digest not in self._proven:
            if file_digest(found) != entry.digest:
                cache.drop(entry.digest)
                found = once_more(path, lambda: None)
            self._proven.add(entry.digest)
        return found

    def _proven_pieces(self, entry: FileEntry) -> Iterator[pa.Buffer]:
        """Yield a file piece by piece; PoolCorruptError behind the last one if it is not the right file."""
        state = hashlib.sha256()
        for piece in self._pieces(entry):
            state.update(piece)
            yield piece
        require_digest(entry, state.hexdigest(), self.at(entry.path))
        self._proven.add(entry.digest)

    def _pieces(self, entry: FileEntry) -> Iterator[pa.Buffer]:
        try:
            yield from self.store.pieces(entry.path, entry.bytes)
        except FileNotFoundError:
            raise self._missing(entry) from None

    def _missing(self, entry: FileEntry) -> PoolCorruptError:
        return PoolCorruptError("file is missing", where=self.at(entry.path), hint="restore this file")

    def release(self, entry: FileEntry) -> None:
        """Drop it from the cache."""
        if self.cache is not None:
            self.cache.drop(entry.digest)

    def cut(
        self, parts: Callable[[], Mapping[str, CutFile]], check: Callable[[Range, pa.Buffer], None]
    ) -> None:
        """Keep labels in blocks from now on, if there is a cache."""
        if self.cache is not None:
            self.ranges = CachedRanges(self.store, self.cache, parts(), check=check)

    def expect(self, ranges: Callable[[], Iterable[Range]], views: Sequence[FileEntry]) -> None:
        """Begin to fetch them; views first, and whole, if there is a cache to keep them."""
        missing = [entry for entry in views if self.cache and not self.cache.path(entry.digest).exists()]
        if missing:
            self._threads = ThreadPoolExecutor(REQUESTS_AT_ONCE // 2, thread_name_prefix="fetch-views")
            for entry in missing:
                # Who reads a file that could not be fetched will say why.
                self._threads.submit(self._kept, entry)
        self.ranges.expect(ranges())

    def reached(self) -> None:
        """Fetch a little further."""
        if isinstance(self.ranges, CachedRanges):
            self.ranges.reached()

    def close(self) -> None:
        """Stop fetching."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        self.ranges.close()
