"""The files of a pool, each proven before it is used: whole ones by their digest, Parquet by its footer.

A pool lies in a directory (`LocalFiles`) or at an address (`RemoteFiles`); who reads it need not know which.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from lpld_labels.errors import NotAPoolError, PoolCorruptError
from lpld_labels.format.digests import bytes_digest
from lpld_labels.format.files import FileEntry
from lpld_labels.format.limits import MAX_JSON_BYTES
from lpld_labels.format.manifest import Manifest
from lpld_labels.format.schema import (
    CODEC_DIRECTORY,
    LABELS_DIRECTORY,
    MANIFEST_FILE,
    PACKED_DIRECTORY,
    README_FILE,
    STAGING_DIRECTORY,
    VIEWS_DIRECTORY,
)
from lpld_labels.io.addresses import Location, is_address, local_path
from lpld_labels.io.byte_access import (
    ByteSource,
    LocalFile,
    StoredFile,
    open_file,
)
from lpld_labels.io.regular_file import open_regular, size_of_regular
from lpld_labels.io.storage import refuse_links_out
from lpld_labels.io.verified_parquet import VerifiedParquet

if TYPE_CHECKING:
    from lpld_labels.io.cached_ranges import CutFile
    from lpld_labels.io.disk_cache import DiskCache
    from lpld_labels.io.ranges import Range

_CHUNK = 1 << 22
FOLDERS = (VIEWS_DIRECTORY, LABELS_DIRECTORY, CODEC_DIRECTORY, PACKED_DIRECTORY)


class PoolFiles(Protocol):
    """Where a pool's files are, and how to get at them."""

    def at(self, path: str) -> str:
        """Return the place of a file below the pool, for messages."""
        ...

    def manifest_text(self) -> bytes:
        """Return pool.json as it is, or a byte more of it than there may be; NotAPoolError without one."""
        ...

    def card(self) -> bytes | None:
        """Return README.md as it is, or None: it is no part of the pool."""
        ...

    def check_sizes(self, manifest: Manifest) -> None:
        """Refuse missing and truncated files, and links out of the pool, before any is read."""
        ...

    def check_links(self, manifest: Manifest) -> None:
        """Refuse files that are links out of the pool."""
        ...

    def whole(self, entry: FileEntry) -> bytes:
        """Return a whole file, known to be the one the manifest names."""
        ...

    def chunks(self, entry: FileEntry) -> Iterable[bytes | pa.Buffer]:
        """Give a whole file piece by piece; whoever takes it compares the digest."""
        ...

    def open(self, entry: FileEntry) -> ByteSource:
        """Open a file for random access."""
        ...

    def problem(self, entry: FileEntry) -> str | None:
        """Read every byte of a file and return what is wrong with it, or None."""
        ...

    def release(self, entry: FileEntry) -> None:
        """Let go of what `problem` has kept of a file for those who read it next."""
        ...

    def cut(
        self, parts: Callable[[], Mapping[str, CutFile]], check: Callable[[Range, pa.Buffer], None]
    ) -> None:
        """Learn how files of labels are read, for those that are kept in blocks.

        parts: gives the files by path. check: refuses bytes of a range as they arrive.
        """
        ...

    def expect(self, ranges: Callable[[], Iterable[Range]], views: Sequence[FileEntry]) -> None:
        """Learn which ranges of labels files will be read next, in this order, and views of all of them."""
        ...

    def reached(self) -> None:
        """Take note that the next of the expected ranges is being read."""
        ...

    def close(self) -> None:
        """Stop what goes on in the background."""
        ...

    def strangers(self, known: set[str]) -> Sequence[str]:
        """Return files in the pool's folders that are not known to the manifest, in order."""
        ...

    def beside(self, known: set[str]) -> Iterator[tuple[str, str]]:
        """Yield what is at the pool's place and not known, and links; with what to say about each."""
        ...


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
    data = StoredFile(pa.BufferReader(files.whole(entry)), files.at(entry.path))
    return VerifiedParquet(data, entry, schema).read_all()


def no_manifest(location: str, *, staged: bool) -> NotAPoolError:
    """Return the error of a place without pool.json."""
    return NotAPoolError(
        "not a label pool: no pool.json",
        where=location,
        hint="an unfinished build is staged here: run the same command again to finish it"
        if staged
        else "give the directory that holds pool.json",
    )


def wrong_size(entry: FileEntry, size: int, where: str) -> PoolCorruptError:
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


class LocalFiles:
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
            staged = Path(self.at(STAGING_DIRECTORY)).is_dir()
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
        self.check_links(manifest)

    def check_links(self, manifest: Manifest) -> None:
        """Look where links lead."""
        refuse_links_out(self.path, [MANIFEST_FILE, *(entry.path for entry in manifest.files)])

    def whole(self, entry: FileEntry) -> bytes:
        """Read it and compare its digest."""
        file = self.open(entry)
        if file.size != entry.bytes:
            raise wrong_size(entry, file.size, self.at(entry.path))
        data = file.read(0, file.size).to_pybytes()
        require_digest(entry, bytes_digest(data), self.at(entry.path))
        return data

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        """Read it piece by piece."""
        try:
            with os.fdopen(open_regular(self.at(entry.path))[0], "rb", buffering=0) as stream:
                while chunk := stream.read(_CHUNK):
                    yield chunk
        except OSError as error:
            where = self.at(entry.path)
            raise PoolCorruptError(
                f"cannot be read: {error}", where=where, hint="restore this file"
            ) from None

    def open(self, entry: FileEntry) -> ByteSource:
        """Open it."""
        return open_file(self.at(entry.path))

    def problem(self, entry: FileEntry) -> str | None:
        """Compare size and digest."""
        size = size_of_regular(self.at(entry.path))
        if size is None:
            return "file is missing"
        if size != entry.bytes:
            return f"file has the wrong size (expected {entry.bytes} bytes, got {size})"
        state = hashlib.sha256()
        try:
            for chunk in self.chunks(entry):
                state.update(chunk)
        except PoolCorruptError as error:
            return error.problem
        return changed_bytes(entry, state.hexdigest())

    def strangers(self, known: set[str]) -> Sequence[str]:
        """Look into the folders of shards."""
        found = []
        for folder in FOLDERS:
            place = Path(self.at(folder))
            names = sorted(path.name for path in place.iterdir()) if place.is_dir() else []
            found += [f"{folder}/{name}" for name in names if f"{folder}/{name}" not in known]
        return found

    def beside(self, known: set[str]) -> Iterator[tuple[str, str]]:
        """Look at everything in the directory."""
        for place in sorted(Path(self.path).rglob("*")):
            name = place.relative_to(self.path).as_posix()
            if place.is_symlink():
                yield name, "a symbolic link, not a file"
            elif not place.is_dir() and name not in known:
                yield name, "file is not part of the pool"

    def release(self, entry: FileEntry) -> None:
        """Nothing is kept."""

    def cut(
        self, parts: Callable[[], Mapping[str, CutFile]], check: Callable[[Range, pa.Buffer], None]
    ) -> None:
        """Files are read as they are."""

    def expect(self, ranges: Callable[[], Iterable[Range]], views: Sequence[FileEntry]) -> None:
        """Nothing is to be done ahead of those who read."""

    def reached(self) -> None:
        """Nothing waits for this."""

    def close(self) -> None:
        """Nothing goes on."""


def changed_bytes(entry: FileEntry, digest: str) -> str | None:
    """Return what to say about a file of this digest, or None if it is the one the manifest names."""
    if digest == entry.digest:
        return None
    return f"bytes changed (expected SHA-256 {entry.digest[:12]}..., got {digest[:12]}...)"


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
