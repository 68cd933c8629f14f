"""Touching the disk: atomic writes and durable renames."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from lpld_labels.errors import PoolConflictError, PoolCorruptError, PoolWriteError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)

TEMPORARY = ".tmp-"
"""How names of unfinished files and directories begin."""


@contextlib.contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system says while writing into one clear PoolWriteError."""
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
    """Make a file's bytes, or a directory's entries, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file of its own and make its bytes survive a power cut; its name may not."""
    with path.open("wb") as stream:
        stream.writelines(parts)
        stream.flush()
        os.fsync(stream.fileno())


class DigestingFile:
    """A new file that is digested while it is written, and durable when it is closed.

    size: bytes written so far.
    """

    def __init__(self, path: Path) -> None:
        self._stream = path.open("wb")
        self._state = hashlib.sha256()
        self.size = 0

    @property
    def digest(self) -> str:
        """Hex SHA-256 of what was written."""
        return self._state.hexdigest()

    @property
    def closed(self) -> bool:
        return self._stream.closed

    def write(self, data: bytes | memoryview) -> int:
        """Write and digest. A view is one of bytes."""
        self._state.update(data)
        self.size += len(data)
        return self._stream.write(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._stream.flush()

    def __enter__(self) -> DigestingFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stream:
            if error is None:
                self._stream.flush()
                os.fsync(self._stream.fileno())


def write_atomically(path: Path, *parts: bytes | memoryview, within: Path | None = None) -> None:
    """Write a file so that a reader sees the old bytes or the new ones, never some of them.

    parts: the bytes, one after the other.

    within: directory on the same file system for the bytes on their way, where a crash may leave them.
    """
    refuse_devices(path)
    temporary = (within or path.parent) / f"{TEMPORARY}{uuid.uuid4().hex}"
    with write_errors(path):
        try:
            write_durably(temporary, *parts)
            temporary.replace(path)
        except BaseException:
            # Failing to delete it, too, says less about what went wrong.
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        fsync(path.parent)


def refuse_devices(path: Path) -> None:
    """Refuse to put a file in the place of a device, a pipe or a socket: a rename would do away with it."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        # What is wrong with the place is for the write itself to say.
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
        raise PoolWriteError("this is no file", where=path, hint="choose a path for a file of its own")


def refuse_links(paths: Iterable[Path]) -> None:
    """Refuse symbolic links before anything is put or deleted behind them: that belongs to somebody else."""
    for path in paths:
        if _is_link(path):
            raise PoolConflictError(
                "a link stands where a pool has its own files",
                where=path,
                hint="delete the link, or choose another path",
            )


def _is_link(path: Path) -> bool:
    try:
        return path.is_symlink()
    except PermissionError:
        # Whoever may not look may not write either, and says so.
        return False


def move(source: Path, target: Path) -> None:
    """Rename durably within one file system."""
    with write_errors(target):
        source.replace(target)
        fsync(target.parent)
        fsync(source.parent)


def refuse_links_out(root: str, paths: Sequence[str]) -> None:
    """Refuse files that are symbolic links, or lie behind one, out of a directory."""
    top = os.path.realpath(root)
    folders = {path.rsplit("/", 1)[0] for path in paths if "/" in path}
    known = {f"{root}/{path}" for path in (*paths, *folders)}
    # Asking for each file where it really is would take longer than everything else about opening.
    for folder in ("", *sorted(folders)):
        try:
            with os.scandir(f"{root}/{folder}".rstrip("/")) as entries:
                links = [entry.path for entry in entries if entry.is_symlink() and entry.path in known]
        except (FileNotFoundError, NotADirectoryError):
            # That files are missing is for others to say.
            continue
        for place in links:
            if not os.path.realpath(place).startswith(top + os.sep):
                raise PoolCorruptError(
                    "file of the pool is a link to somewhere else",
                    where=place,
                    hint="replace the link by the file itself",
                )
