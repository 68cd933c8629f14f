"""Files of a pool: regular, inside the pool's directory, of the size and digest that the manifest gives."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path


class Refused(Exception):  # noqa: N818
    """A pool, or a part of it, that a reader must refuse."""


def need(condition: object, where: str, why: str) -> None:
    """Refuse unless the condition holds. `where`: the file, and the field or column."""
    if not condition:
        raise Refused(f"{where}: {why}")


@dataclass(frozen=True)
class FileEntry:
    """One entry of the manifest's `files`."""

    path: str
    role: str
    bytes: int
    rows: int
    digest: str
    footer_bytes: int | None
    footer_digest: str | None


def regular_file(root: Path, path: str) -> Path:
    """Return a file of the pool; refuse what is missing, not a regular file, or a link out of the pool."""
    real = (root / path).resolve()
    need(root.resolve() in real.parents and real.is_file(), path, "no regular file of the pool")
    return real


def check_size(root: Path, entry: FileEntry) -> None:
    size = regular_file(root, entry.path).stat().st_size
    need(size == entry.bytes, entry.path, f"{size} bytes, but the manifest says {entry.bytes}")


def load(root: Path, entry: FileEntry, *, proven: bool = False) -> bytes:
    """Return a file's bytes. `proven`: also compare its SHA-256 with the manifest."""
    check_size(root, entry)
    data = regular_file(root, entry.path).read_bytes()
    need(not proven or hashlib.sha256(data).hexdigest() == entry.digest, entry.path, "another SHA-256")
    return data
