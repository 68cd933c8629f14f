"""Local files: atomic writes, durable renames, and checks for symlinks."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import stat
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from lpld_labels.errors import PoolConflictError, PoolCorruptError, PoolWriteError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)

TEMPORARY = ".tmp-"  # Prefix of unfinished files and directories.


@contextlib.contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Convert an OSError raised while writing into a PoolWriteError."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL or "No space left" in str(error):
            problem, hint = "disk is full", "free some space and run again: finished work is kept"
        elif error.errno in _DENIED:
            problem, hint = "no permission to write", "choose another directory or change its permissions"
        elif error.errno == errno.ENOTDIR:
            problem, hint = "part of the path is not a directory", "choose another path"
        else:
            problem, hint = f"cannot write: {error.strerror or error}", "finished work is kept"
        raise PoolWriteError(problem, where=path, hint=hint) from error


def fsync(path: Path) -> None:
    """Flush a file's content, or a directory's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file and flush its content to disk, but not its directory entry."""
    with path.open("wb") as stream:
        stream.writelines(parts)
        stream.flush()
        os.fsync(stream.fileno())


class DigestingFile(io.BufferedWriter):
    """A file that is hashed while it is written, and flushed to disk on exit. size: bytes written so far.

    path: None for a file in memory, which is gone on exit.
    """

    def __init__(self, path: Path | None) -> None:
        super().__init__(cast("io.RawIOBase", io.BytesIO()) if path is None else io.FileIO(path, "w+"))
        self._state = hashlib.sha256()
        self.size = 0

    @property
    def digest(self) -> str:
        return self._state.hexdigest()

    def write(self, data: Any) -> int:
        self._state.update(data)
        written = super().write(data)
        self.size += written
        return written

    def tail(self, count: int) -> bytes:
        """Return the last `count` bytes written so far."""
        self.flush()
        raw = cast("io.RawIOBase", self.raw)
        raw.seek(-count, os.SEEK_END)
        return raw.read(count) or b""

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is None and isinstance(self.raw, io.FileIO):
                self.flush()
                os.fsync(self.fileno())
        finally:
            self.close()


def write_atomically(path: Path, *parts: bytes | memoryview, within: Path | None = None) -> None:
    """Write a file atomically: readers see either the old content or all of the new content.

    within: directory for the temporary file, on the same file system. A crash may leave a file there.
    """
    _refuse_devices(path)
    temporary = (within or path.parent) / f"{TEMPORARY}{uuid.uuid4().hex}"
    with write_errors(path):
        try:
            write_durably(temporary, *parts)
            temporary.replace(path)
        except BaseException:
            # A failed cleanup must not hide the original error.
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        fsync(path.parent)


def _refuse_devices(path: Path) -> None:
    # All other errors are reported when the file is written.
    with contextlib.suppress(OSError):
        mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
            raise PoolWriteError("not a regular file", where=path, hint="choose a path for a new file")


def refuse_links(paths: Iterable[Path]) -> None:
    """Refuse symlinks: writing or deleting through them would change files outside the pool."""
    for path in paths:
        if os.path.islink(path):  # noqa: PTH114  # False without permission; writing then fails
            raise PoolConflictError(
                "path is a symlink, but must be a regular file or directory",
                where=path,
                hint="delete the symlink, or choose another path",
            )


def move(source: Path, target: Path) -> None:
    """Rename a file or directory within a file system, and flush both parent directories to disk."""
    with write_errors(target):
        source.replace(target)
        fsync(target.parent)
        fsync(source.parent)


def refuse_links_out(root: str, paths: Sequence[str]) -> None:
    """Refuse files whose path leads outside `root` through a symlink. paths: files relative to `root`."""
    top = os.path.realpath(root)
    folders = {path.rsplit("/", 1)[0] for path in paths if "/" in path}
    known = {f"{root}/{path}" for path in (*paths, *folders)}
    # List each folder once: resolving every file would take longer than the rest of opening a pool.
    for folder in ("", *sorted(folders)):
        try:
            with os.scandir(f"{root}/{folder}".rstrip("/")) as entries:
                links = [entry.path for entry in entries if entry.is_symlink() and entry.path in known]
        except (FileNotFoundError, NotADirectoryError):
            # Missing files are reported elsewhere.
            continue
        for place in links:
            if not os.path.realpath(place).startswith(top + os.sep):
                raise PoolCorruptError(
                    "symlink leads outside the pool",
                    where=place,
                    hint="replace the symlink with a copy of its target",
                )
