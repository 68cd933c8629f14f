"""The files of a pool, verified before use: whole files by their digest, Parquet files by their footer.

`PoolFiles` reads from a directory, `RemoteFiles` from an address. Without a cache, `RemoteFiles` fetches data
on every read. With a cache, it keeps whole files on disk, except labels files: these are kept in blocks
(`CachedRanges`). Remote bytes that differ from the manifest may have been corrupted in transit: they are
fetched again before the pool is reported as corrupt.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from lpld_labels.errors import NotAPoolError, PoolCorruptError
from lpld_labels.format.digests import bytes_digest, file_digest
from lpld_labels.format.limits import MAX_JSON_BYTES
from lpld_labels.format.manifest import FileEntry, Manifest
from lpld_labels.format.schema import MANIFEST_FILE, README_FILE
from lpld_labels.io.addresses import Location, is_address, local_path
from lpld_labels.io.disk_cache import DiskCache
from lpld_labels.io.prefetch import CachedRanges, DirectRanges
from lpld_labels.io.random_access import (
    ByteSource,
    LocalFile,
    MemoryFile,
    open_file,
    open_regular,
    retry_corrupt,
    size_of_regular,
)
from lpld_labels.io.remote import RemoteStore
from lpld_labels.io.retry import REQUESTS_AT_ONCE
from lpld_labels.io.storage import TEMPORARY, DigestingFile, move, refuse_links_out, write_errors
from lpld_labels.io.verified_parquet import VerifiedParquet
from lpld_labels.pool.label_pages import LabelLayout

_CHUNK = 1 << 22
_MOST = MAX_JSON_BYTES + 1  # Bytes read of a manifest or card. Larger files are refused.


class PoolFiles:
    """The files of a pool in a directory; base class of `RemoteFiles`."""

    def __init__(self, location: Location) -> None:
        self._location = os.fspath(location)
        self._path = str(local_path(location))

    def at(self, path: str) -> str:
        return f"{self._path}/{path}"

    def manifest_text(self) -> bytes:
        """Return at most `_MOST` bytes of pool.json; raise NotAPoolError if it is missing."""
        try:
            if Path(self.at(MANIFEST_FILE)).is_symlink():
                # Check before reading: errors quote contents, and a symlink may lead out of the pool.
                refuse_links_out(self._path, [MANIFEST_FILE])
            return _start_of(self.at(MANIFEST_FILE))
        except FileNotFoundError:
            raise no_manifest(self._location, staged=Path(f"{self._path}.partial").is_dir()) from None
        except OSError as error:
            raise NotAPoolError(f"cannot read pool.json: {error}", where=self._location) from None

    def card(self) -> bytes | None:
        path = self.at(README_FILE)
        return _start_of(path) if Path(path).is_file() else None

    def check_sizes(self, manifest: Manifest) -> None:
        """Refuse missing files, files of the wrong size, and symlinks that lead out of the pool."""
        for entry in manifest.files:
            require_size(entry, size_of_regular(self.at(entry.path)), self.at(entry.path))
        refuse_links_out(self._path, [MANIFEST_FILE, *(entry.path for entry in manifest.files)])

    def names(self) -> Iterator[tuple[str, bool]]:
        """Yield (path, whether it is a symlink) for all files in the pool's directory, sorted by path."""
        for place in sorted(Path(self._path).rglob("*")):
            if place.is_symlink() or not place.is_dir():
                yield place.relative_to(self._path).as_posix(), place.is_symlink()

    def chunks(self, entry: FileEntry) -> Iterable[bytes | pa.Buffer]:
        """Yield a file in pieces. The digest is not verified."""
        path = self.at(entry.path)
        size = size_of_regular(path)
        if size is not None:
            # Check the size, because a symlink may lead to another file.
            require_size(entry, size, path)
        return file_chunks(path)

    def whole(self, entry: FileEntry) -> bytes:
        data = b"".join(map(memoryview, self.chunks(entry)))
        require_digest(entry, bytes_digest(data), self.at(entry.path))
        return data

    def open(self, entry: FileEntry) -> ByteSource:
        return open_file(self.at(entry.path))

    def cut_labels(self, layout: LabelLayout) -> None:
        """Set the offsets at which labels files may be split into blocks for caching."""

    def prefetch(self, layout: LabelLayout, numbers: Iterable[int], views: Sequence[FileEntry]) -> None:
        """Fetch the batches `numbers` in the background, in this order, if the files are remote."""

    def advance(self) -> None:
        """Advance the prefetch window by one batch."""

    def close(self) -> None:
        """Stop prefetching."""


class RemoteFile:
    """A remote file of known size (see `ByteSource`)."""

    def __init__(self, ranges: DirectRanges | CachedRanges, path: str, size: int, *, where: str) -> None:
        self.where = where
        self.size = size
        self._ranges = ranges
        self._path = path

    def read(self, offset: int, length: int) -> pa.Buffer:
        if not 0 <= offset <= offset + length <= self.size:
            raise PoolCorruptError("range is outside the file", where=self.where, got=(offset, length))
        try:
            return self._ranges.read(self._path, offset, offset + length)
        except FileNotFoundError:
            raise _missing(self.where) from None

    def forget(self, start: int, stop: int) -> None:
        self._ranges.forget(self._path, start, stop)


class RemoteFiles(PoolFiles):
    """The files of a pool at an address. cache: None to keep nothing on disk."""

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
            return self.store.read(MANIFEST_FILE, limit=_MOST)
        except FileNotFoundError:
            raise no_manifest(self.store.shown, staged=False) from None

    def card(self) -> bytes | None:
        try:
            return self.store.read(README_FILE, limit=_MOST)
        except FileNotFoundError:
            return None

    def check_sizes(self, manifest: Manifest) -> None:
        """Compare sizes with a listing. If the store has no listings, errors surface on read."""
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
        return self._pieces(entry) if self._cache is None else file_chunks(self._kept(entry, self._cache))

    def open(self, entry: FileEntry) -> ByteSource:
        cache = self._cache
        if cache is not None and (entry.role != "labels" or cache.path(entry.digest).exists()):
            return open_file(str(self._kept(entry, cache)))
        ranges = self._cached if entry.role == "labels" and self._cached else self._direct
        return RemoteFile(ranges, entry.path, entry.bytes, where=self.at(entry.path))

    def cut_labels(self, layout: LabelLayout) -> None:
        if self._cache is not None:
            self._cached = CachedRanges(self.store, self._cache, layout.files(), check=layout.check)

    def prefetch(self, layout: LabelLayout, numbers: Iterable[int], views: Sequence[FileEntry]) -> None:
        """Fetch batches in the background. If there is a cache, fetch whole views files first."""
        cache = self._cache
        missing = [entry for entry in views if cache and not cache.path(entry.digest).exists()]
        if cache is not None and missing:
            self._threads = ThreadPoolExecutor(REQUESTS_AT_ONCE // 2, thread_name_prefix="fetch-views")
            for entry in missing:
                # Fetch errors surface on read.
                self._threads.submit(self._kept, entry, cache)
        (self._cached or self._direct).prefetch(layout.ranges(numbers))

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
        """Return the path of a file in the cache; fetch the file if it is missing or corrupt there."""

        def fetch() -> Path:
            return retry_corrupt(lambda: cache.get(entry.digest, entry.bytes, lambda: self._fetched(entry)))

        found = fetch()
        if entry.digest not in self._verified and file_digest(found) != entry.digest:
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


def open_files(location: Location, cache: DiskCache | None = None) -> PoolFiles:
    """Return the files of a pool. cache: keeps remote files on disk."""
    return RemoteFiles(os.fspath(location), cache) if is_address(location) else PoolFiles(location)


def read_manifest(files: PoolFiles) -> Manifest:
    """Read and parse pool.json."""
    return Manifest.parse(files.manifest_text(), where=files.at(MANIFEST_FILE))


def manifest_of(location: Location) -> Manifest:
    """Return the manifest of a pool. location: path or address of a pool or of a manifest file."""
    if not is_address(location) and local_path(location).is_file():
        return Manifest.parse(_start_of(str(local_path(location))), where=os.fspath(location))
    return read_manifest(open_files(os.fspath(location).removesuffix(f"/{MANIFEST_FILE}")))


def read_table(files: PoolFiles, entry: FileEntry, schema: pa.Schema) -> pa.Table:
    """Return the table of a Parquet file after verifying the file's digest."""
    data = MemoryFile(files.whole(entry), files.at(entry.path))
    return VerifiedParquet(data, entry, schema).read_all()


def copy_file(files: PoolFiles, entry: FileEntry, pool: Path, *, within: Path) -> bool:
    """Copy a file into a pool, via a temporary file in `within`. Return False if it was already there."""
    target = pool / entry.path
    if is_intact(target, entry):
        return False

    def copy() -> None:
        with DigestingFile(temporary) as sink:
            for chunk in verified(entry, files.chunks(entry), files.at(entry.path)):
                sink.write(memoryview(chunk).cast("B"))

    with write_errors(target), temporary_path(within) as temporary:
        target.parent.mkdir(parents=True, exist_ok=True)
        retry_corrupt(copy)
        move(temporary, target)
    return True


def is_intact(path: Path, entry: FileEntry) -> bool:
    """Return whether a local file has the size and digest of its manifest entry."""
    return size_of_regular(path) == entry.bytes and file_digest(path) == entry.digest


@contextlib.contextmanager
def temporary_path(within: Path) -> Iterator[Path]:
    """Yield a path for a temporary file in a directory; after an error, delete the file."""
    path = within / f"{TEMPORARY}{uuid.uuid4().hex}"
    try:
        yield path
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def no_manifest(location: str, *, staged: bool) -> NotAPoolError:
    """Return the error for a location without pool.json. staged: whether unfinished work is there."""
    return NotAPoolError(
        "not a label pool: no pool.json",
        where=location,
        hint="the pool is unfinished: run the same command again to finish it"
        if staged
        else "give the directory that holds pool.json",
    )


def require_size(entry: FileEntry, size: int | None, where: str) -> None:
    """Refuse a file that is missing (None) or has the wrong size."""
    if size is None:
        raise _missing(where)
    if size != entry.bytes:
        raise PoolCorruptError(
            "file has the wrong size",
            where=where,
            expected=f"{entry.bytes} bytes",
            got=size,
            hint="restore this file",
        )


def require_digest(entry: FileEntry, digest: str, where: str) -> None:
    """Refuse a file whose digest differs from its manifest entry."""
    if digest != entry.digest:
        raise PoolCorruptError(
            "file has the wrong digest",
            where=where,
            expected=f"SHA-256 {entry.digest[:12]}...",
            got=f"{digest[:12]}...",
            hint="restore this file",
        )


def verified(
    entry: FileEntry, chunks: Iterable[bytes | pa.Buffer], where: str
) -> Iterator[bytes | pa.Buffer]:
    """Yield the pieces of a file; raise PoolCorruptError at the end if its digest is wrong."""
    state = hashlib.sha256()
    for chunk in chunks:
        state.update(chunk)
        yield chunk
    require_digest(entry, state.hexdigest(), where)


def file_chunks(path: str | Path) -> Iterator[bytes]:
    """Yield a local file in pieces."""
    try:
        with os.fdopen(open_regular(path)[0], "rb", buffering=0) as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk
    except FileNotFoundError:
        raise _missing(path) from None
    except OSError as error:
        raise PoolCorruptError(f"cannot be read: {error}", where=path, hint="restore this file") from None


def _start_of(path: str) -> bytes:
    file = LocalFile(path)
    return file.read(0, min(file.size, _MOST)).to_pybytes()


def _missing(where: str | Path) -> PoolCorruptError:
    return PoolCorruptError("file is missing", where=where, hint="restore this file")
