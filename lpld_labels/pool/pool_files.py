"""The files of a pool, each proven before it is used: whole ones by their digest, Parquet by its footer.

A pool lies in a directory (`LocalFiles`) or at an address (`RemoteFiles`); who reads it need not know which.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from lpld_labels.errors import NotAPoolError, PoolCorruptError
from lpld_labels.format.digests import bytes_digest
from lpld_labels.format.limits import MAX_JSON_BYTES
from lpld_labels.format.manifest import FileEntry, Manifest
from lpld_labels.format.schema import (
    MANIFEST_FILE,
    README_FILE,
)
from lpld_labels.io.addresses import Location, is_address, local_path
from lpld_labels.io.random_access import (
    ByteSource,
    LocalFile,
    MemoryFile,
    open_file,
    open_regular,
    size_of_regular,
)
from lpld_labels.io.storage import refuse_links_out
from lpld_labels.io.verified_parquet import VerifiedParquet

if TYPE_CHECKING:
    from lpld_labels.io.disk_cache import DiskCache
    from lpld_labels.pool.label_pages import LabelBlocks

_CHUNK = 1 << 22


class PoolFiles(ABC):
    """Where a pool's files are, and how to get at them."""

    @abstractmethod
    def at(self, path: str) -> str:
        """Return the place of a file below the pool, for messages."""

    @abstractmethod
    def manifest_text(self) -> bytes:
        """Return pool.json as it is, or a byte more of it than there may be; NotAPoolError without one."""

    @abstractmethod
    def card(self) -> bytes | None:
        """Return README.md as it is, or None: it is no part of the pool."""

    @abstractmethod
    def check_sizes(self, manifest: Manifest) -> None:
        """Refuse missing and truncated files, and links out of the pool, before any is read."""

    @abstractmethod
    def names(self) -> Iterator[tuple[str, bool]]:
        """Yield the names of all files at the pool's place, in order, and whether each is a link."""

    @abstractmethod
    def chunks(self, entry: FileEntry) -> Iterable[bytes | pa.Buffer]:
        """Give a whole file piece by piece; whoever takes it compares the digest."""

    @abstractmethod
    def open(self, entry: FileEntry) -> ByteSource:
        """Open a file for random access."""

    def whole(self, entry: FileEntry) -> bytes:
        """Return a whole file, known to be the one the manifest names."""
        data = b"".join(map(memoryview, self.chunks(entry)))
        require_digest(entry, bytes_digest(data), self.at(entry.path))
        return data

    def cut_labels(self, blocks: LabelBlocks) -> None:  # noqa: B027
        """Learn which parts of labels files are read as one."""

    def prefetch(self, blocks: LabelBlocks, numbers: Iterable[int], views: Sequence[FileEntry]) -> None:  # noqa: B027
        """Begin to fetch what these batches need, in this order, where files are elsewhere."""

    def advance(self) -> None:  # noqa: B027
        """Take note that the next of the prefetched batches is being read."""

    def close(self) -> None:  # noqa: B027
        """Stop what goes on in the background."""


def open_files(location: Location, cache: DiskCache | None = None) -> PoolFiles:
    """Return the files of a pool, wherever it is. cache: where those from elsewhere are kept."""
    if is_address(location):
        from lpld_labels.pool.remote_files import RemoteFiles

        return RemoteFiles(os.fspath(location), cache)
    return LocalFiles(location)


def read_manifest(files: PoolFiles) -> Manifest:
    """Read and parse pool.json."""
    return Manifest.parse(files.manifest_text(), where=files.at(MANIFEST_FILE))


def read_table(files: PoolFiles, entry: FileEntry, schema: pa.Schema) -> pa.Table:
    """Return a whole Parquet file, known to be the one the manifest names."""
    data = MemoryFile(files.whole(entry), files.at(entry.path))
    return VerifiedParquet(data, entry, schema).read_all()


def no_manifest(location: str, *, staged: bool) -> NotAPoolError:
    """Return the error of a place without pool.json."""
    return NotAPoolError(
        "not a label pool: no pool.json",
        where=location,
        hint="the pool is unfinished: run the same command again to finish it"
        if staged
        else "give the directory that holds pool.json",
    )


def wrong_size(entry: FileEntry, size: int | None, where: str) -> PoolCorruptError:
    """Return the error of a file of another size than the manifest says."""
    return PoolCorruptError(
        "file has the wrong size",
        where=where,
        expected=f"{entry.bytes} bytes",
        got=size,
        hint="restore this file",
    )


def require_digest(entry: FileEntry, digest: str, where: str) -> None:
    """Refuse a file whose digest is not the one the manifest names."""
    if digest != entry.digest:
        raise PoolCorruptError(
            "file is not the one this pool was written with",
            where=where,
            expected=f"SHA-256 {entry.digest[:12]}...",
            got=f"{digest[:12]}...",
            hint="restore this file",
        )


def file_chunks(path: str | Path) -> Iterator[bytes]:
    """Yield a file of this machine piece by piece."""
    try:
        with os.fdopen(open_regular(path)[0], "rb", buffering=0) as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk
    except FileNotFoundError:
        raise PoolCorruptError("file is missing", where=path, hint="restore this file") from None
    except OSError as error:
        raise PoolCorruptError(f"cannot be read: {error}", where=path, hint="restore this file") from None


class LocalFiles(PoolFiles):
    """The files of a pool in a directory."""

    def __init__(self, location: Location) -> None:
        self._location = os.fspath(location)
        self.path = str(local_path(location))

    def at(self, path: str) -> str:
        """Return the path of a file."""
        return f"{self.path}/{path}"

    def manifest_text(self) -> bytes:
        """Read pool.json."""
        try:
            if Path(self.at(MANIFEST_FILE)).is_symlink():
                # Before it is read: a message about its contents would show some of another file.
                refuse_links_out(self.path, [MANIFEST_FILE])
            return _start_of(self.at(MANIFEST_FILE))
        except FileNotFoundError:
            staged = Path(f"{self.path}.partial").is_dir()
            raise no_manifest(self._location, staged=staged) from None
        except OSError as error:
            raise NotAPoolError(f"cannot read pool.json: {error}", where=self._location) from None

    def card(self) -> bytes | None:
        """Read it, if it is a file."""
        path = self.at(README_FILE)
        return _start_of(path) if Path(path).is_file() else None

    def check_sizes(self, manifest: Manifest) -> None:
        """Ask the file system."""
        for entry in manifest.files:
            size = size_of_regular(self.at(entry.path))
            if size is None:
                raise PoolCorruptError("file is missing", where=self.at(entry.path), hint="restore this file")
            if size != entry.bytes:
                raise wrong_size(entry, size, self.at(entry.path))
        refuse_links_out(self.path, [MANIFEST_FILE, *(entry.path for entry in manifest.files)])

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        """Read it piece by piece, unless it has another size: it may be another file, behind a link."""
        path = self.at(entry.path)
        size = size_of_regular(path)
        if size not in (None, entry.bytes):
            raise wrong_size(entry, size, path)
        return file_chunks(path)

    def open(self, entry: FileEntry) -> ByteSource:
        """Open it."""
        return open_file(self.at(entry.path))

    def names(self) -> Iterator[tuple[str, bool]]:
        """Look at everything in the directory."""
        for place in sorted(Path(self.path).rglob("*")):
            if place.is_symlink() or not place.is_dir():
                yield place.relative_to(self.path).as_posix(), place.is_symlink()


def manifest_of(location: Location) -> Manifest:
    """Return the manifest of a pool, given the pool or the manifest alone, as a file of any name."""
    if not is_address(location) and local_path(location).is_file():
        return Manifest.parse(_start_of(str(local_path(location))), where=os.fspath(location))
    text = os.fspath(location)
    return read_manifest(open_files(text.removesuffix(f"/{MANIFEST_FILE}")))


def _start_of(path: str) -> bytes:
    """Return a file, or a byte more of it than may be, which is enough to refuse it."""
    file = LocalFile(path)
    return file.read(0, min(file.size, MAX_JSON_BYTES + 1)).to_pybytes()
