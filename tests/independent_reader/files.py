"""Files of a pool as the manifest names them: bounded reads and SHA-256 of regular files."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from .errors import need
from .names import regular_file

_PIECE = 2**22


@dataclass(frozen=True)
class FileEntry:
    """One entry of the manifest's `files`."""

    path: str
    role: str
    name: str
    bytes: int
    rows: int
    digest: str
    footer_bytes: int | None
    footer_digest: str | None

    @property
    def body(self) -> int:
        """Give where the footer of a Parquet file begins."""
        return self.bytes - (self.footer_bytes or 0)


class PoolFile:
    """A file of the pool; every read is within the size that the manifest gives."""

    def __init__(self, root: Path, entry: FileEntry) -> None:
        """Wrap an entry of `files`."""
        self.root, self.entry = root, entry

    def read(self, offset: int, size: int) -> bytes:
        """Read bytes of the file; what is asked for is bounded by the file's size."""
        entry = self.entry
        inside = offset >= 0 and size >= 0 and offset + size <= entry.bytes
        need(inside, entry.path, "offset", "out of the file")
        real, found = regular_file(self.root, entry.path)
        need(found == entry.bytes, entry.path, "bytes", f"{found}, but the manifest says {entry.bytes}")
        handle = os.open(real, os.O_RDONLY)
        try:
            data = os.pread(handle, size, offset)
        finally:
            os.close(handle)
        need(len(data) == size, entry.path, "bytes", "the file is shorter than it was")
        return data

    def proven(self) -> bytes:
        """Read the whole of a small file and refuse it if its SHA-256 is not the manifest's."""
        data = self.read(0, self.entry.bytes)
        same = hashlib.sha256(data).hexdigest() == self.entry.digest
        need(same, self.entry.path, "digest", "the file has another SHA-256")
        return data

    def prove(self) -> None:
        """Refuse a file whose SHA-256 is not the manifest's."""
        digest, left, at = hashlib.sha256(), self.entry.bytes, 0
        while left:
            piece = self.read(at, min(left, _PIECE))
            digest.update(piece)
            at, left = at + len(piece), left - len(piece)
        same = digest.hexdigest() == self.entry.digest
        need(same, self.entry.path, "digest", "the file has another SHA-256")
