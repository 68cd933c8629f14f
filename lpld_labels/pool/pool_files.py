"""The files of a pool, each verified before it is used: whole ones by their digest, Parquet by its footer.

`PoolFiles` reads a directory, `RemoteFiles` an address.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from lpld_labels.errors import NotAPoolError, PoolCorruptError
from lpld_labels.format.digests import bytes_digest, file_digest
from lpld_labels.format.limits import MAX_JSON_BYTES
from lpld_labels.format.manifest import FileEntry, Manifest
from lpld_labels.format.schema import MANIFEST_FILE, README_FILE
from lpld_labels.io.addresses import Location, is_address, local_path
from lpld_labels.io.random_access import (
    ByteSource,
    LocalFile,
    MemoryFile,
    open_file,
    open_regular,
    retry_corrupt,
    size_of_regular,
)
from lpld_labels.io.storage import TEMPORARY, DigestingFile, move, refuse_links_out, write_errors
from lpld_labels.io.verified_parquet import VerifiedParquet

if TYPE_CHECKING:
    from lpld_labels.io.disk_cache import DiskCache
    from lpld_labels.pool.label_pages import LabelLayout

_CHUNK = 1 << 22


class PoolFiles:
    """The files of a pool in a directory, or as a base class anywhere."""

    def __init__(self, location: Location) -> None:
        self._location = os.fspath(location)
        self._path = str(local_path(location))

    def at(self, path: str) -> str:
        """Return the place of a file below the pool, for messages."""
        return f"{self._path}/{path}"

    def manifest_text(self) -> bytes:
        """Return pool.json, cut one byte above the size limit; NotAPoolError without one."""
        try:
            if Path(self.at(MANIFEST_FILE)).is_symlink():
                # Before it is read: a message about its contents would show some of another file.
                refuse_links_out(self._path, [MANIFEST_FILE])
            return _start_of(self.at(MANIFEST_FILE))
        except FileNotFoundError:
            raise no_manifest(self._location, staged=Path(f"{self._path}.partial").is_dir()) from None
        except OSError as error:
            raise NotAPoolError(f"cannot read pool.json: {error}", where=self._location) from None

    def card(self) -> bytes | None:
        """Return README.md, or None. It is not part of the pool."""
        path = self.at(README_FILE)
        return _start_of(path) if Path(path).is_file() else None

    def check_sizes(self, manifest: Manifest) -> None:
        """Refuse missing and truncated files, and links out of the pool, before any is read."""
        for entry in manifest.files:
            require_size(entry, size_of_regular(self.at(entry.path)), self.at(entry.path))
        refuse_links_out(self._path, [MANIFEST_FILE, *(entry.path for entry in manifest.files)])

    def names(self) -> Iterator[tuple[str, bool]]:
        """Yield the names of all files at the pool's place, in order, and whether each is a link."""
        for place in sorted(Path(self._path).rglob("*")):
            if place.is_symlink() or not place.is_dir():
                yield place.relative_to(self._path).as_posix(), place.is_symlink()

    def chunks(self, entry: FileEntry) -> Iterable[bytes | pa.Buffer]:
        """Yield a whole file piece by piece; the caller compares the digest."""
        path = self.at(entry.path)
        size = size_of_regular(path)
        if size is not None:
            # One of another size may be another file, behind a link.
            require_size(entry, size, path)
        return file_chunks(path)

    def whole(self, entry: FileEntry) -> bytes:
        """Return a whole file, its digest verified."""
        data = b"".join(map(memoryview, self.chunks(entry)))
        require_digest(entry, bytes_digest(data), self.at(entry.path))
        return data

    def open(self, entry: FileEntry) -> ByteSource:
        """Open a file for random access."""
        return open_file(self.at(entry.path))

    def cut_labels(self, layout: LabelLayout) -> None:
        """Set which parts of labels files are fetched as one."""

    def prefetch(self, layout: LabelLayout, numbers: Iterable[int], views: Sequence[FileEntry]) -> None:
        """Begin to fetch what these batches need, in this order, where files are remote."""

    def advance(self) -> None:
        """Note that the next of the prefetched batches is being read."""

    def close(self) -> None:
        """Stop fetching in the background."""


def open_files(location: Location, cache: DiskCache | None = None) -> PoolFiles:
    """Return the files of a pool. cache: keeps remote ones on disk."""
    if is_address(location):
        from lpld_labels.pool.remote_files import RemoteFiles

        return RemoteFiles(os.fspath(location), cache)
    return PoolFiles(location)


def read_manifest(files: PoolFiles) -> Manifest:
    """Read and parse pool.json."""
    return Manifest.parse(files.manifest_text(), where=files.at(MANIFEST_FILE))


def manifest_of(location: Location) -> Manifest:
    """Return the manifest of a pool, given the pool or the manifest alone, as a file of any name."""
    if not is_address(location) and local_path(location).is_file():
        return Manifest.parse(_start_of(str(local_path(location))), where=os.fspath(location))
    return read_manifest(open_files(os.fspath(location).removesuffix(f"/{MANIFEST_FILE}")))


def read_table(files: PoolFiles, entry: FileEntry, schema: pa.Schema) -> pa.Table:
    """Return a whole Parquet file, its digest verified."""
    data = MemoryFile(files.whole(entry), files.at(entry.path))
    return VerifiedParquet(data, entry, schema).read_all()


def copy_file(files: PoolFiles, entry: FileEntry, pool: Path, *, within: Path) -> bool:
    """Copy a file to the same place of a local pool unless it is there; return whether it was not.

    within: directory on the same file system for the temporary file, which a crash may leave there.
    """
    target = pool / entry.path
    if target.is_file() and target.stat().st_size == entry.bytes and file_digest(target) == entry.digest:
        return False
    temporary = within / f"{TEMPORARY}{uuid.uuid4().hex}"

    def pour() -> None:
        with DigestingFile(temporary) as sink:
            for chunk in verified(entry, files.chunks(entry), files.at(entry.path)):
                sink.write(memoryview(chunk).cast("B"))

    with write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            retry_corrupt(pour)
            move(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    return True


def no_manifest(location: str, *, staged: bool) -> NotAPoolError:
    """Return the error of a place without pool.json."""
    return NotAPoolError(
        "not a label pool: no pool.json",
        where=location,
        hint="the pool is unfinished: run the same command again to finish it"
        if staged
        else "give the directory that holds pool.json",
    )


def require_size(entry: FileEntry, size: int | None, where: str) -> None:
    """Refuse a file that is missing (None) or of another size than the manifest says."""
    if size is None:
        raise PoolCorruptError("file is missing", where=where, hint="restore this file")
    if size != entry.bytes:
        raise PoolCorruptError(
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


def verified(
    entry: FileEntry, chunks: Iterable[bytes | pa.Buffer], where: str
) -> Iterator[bytes | pa.Buffer]:
    """Yield a file piece by piece; raise PoolCorruptError at the end if its digest is wrong."""
    state = hashlib.sha256()
    for chunk in chunks:
        state.update(chunk)
        yield chunk
    require_digest(entry, state.hexdigest(), where)


def file_chunks(path: str | Path) -> Iterator[bytes]:
    """Yield a local file piece by piece."""
    try:
        with os.fdopen(open_regular(path)[0], "rb", buffering=0) as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk
    except FileNotFoundError:
        raise PoolCorruptError("file is missing", where=path, hint="restore this file") from None
    except OSError as error:
        raise PoolCorruptError(f"cannot be read: {error}", where=path, hint="restore this file") from None


def _start_of(path: str) -> bytes:
    """Return a file, or one byte more than MAX_JSON_BYTES of it, which is enough to refuse it."""
    file = LocalFile(path)
    return file.read(0, min(file.size, MAX_JSON_BYTES + 1)).to_pybytes()
