"""A disk cache of remote bytes with a size limit, shared by processes.

The name of an entry is a digest, or a digest with a byte range, and determines the content of the entry.
Entries are created by a rename and never changed.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from lpld_labels.errors import InvalidArgumentError, PoolWriteError
from lpld_labels.io.locks import locked
from lpld_labels.io.storage import TEMPORARY

CACHE_VARIABLE = "LPLD_LABELS_CACHE"
CACHE_BYTES = 64 * 1024**3
_LOCKS = "locks"
_SHARE_KEPT = 0.9  # Evict to this share of the limit: listing entries is slow.


def cache_folder() -> Path:
    """Return the cache directory: $LPLD_LABELS_CACHE, or lpld-labels in $XDG_CACHE_HOME or ~/.cache."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lpld-labels"


class DiskCache:
    """Files in a directory; the oldest are evicted first. Picklable. Processes and threads may share it.

    limit: maximum total size of all entries in bytes, not counting files that are still being written.
    """

    def __init__(self, directory: Path, limit: int = CACHE_BYTES) -> None:
        if limit < 1:
            raise InvalidArgumentError("cache size is out of range", expected="at least 1", got=limit)
        self.directory = directory.absolute()
        self.limit = limit
        self._held: int | None = None

    def path(self, name: str) -> Path:
        return self.directory / name[:2] / name

    def get(self, name: str, size: int, make: Callable[[], Iterable[bytes | pa.Buffer]]) -> Path:
        """Return an entry's path. One caller writes a missing entry; others wait. Errors leave no entry."""
        path = self.path(name)
        if path.exists():
            return path
        lock = self.directory / _LOCKS / name
        with contextlib.ExitStack() as stack:
            with self._errors():
                stack.enter_context(locked(lock))
            if not path.exists():
                self._write(path, size, make())
        with contextlib.suppress(OSError):
            lock.unlink()
        return path

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise PoolWriteError(
                f"cannot write to the cache: {error.strerror or error}",
                where=self.directory,
                hint=f"free some space, or choose another directory ({CACHE_VARIABLE}, cache_directory)",
            ) from None

    def _write(self, path: Path, size: int, pieces: Iterable[bytes | pa.Buffer]) -> None:
        temporary = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
        with self._errors():
            self._make_room(size)
            path.parent.mkdir(parents=True, exist_ok=True)
            stream = temporary.open("wb")
        try:
            with stream:
                # Errors raised by `pieces` are not cache errors, so they are not converted.
                for piece in pieces:
                    with self._errors():
                        stream.write(piece)
                with self._errors():
                    stream.flush()
                    temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def drop(self, name: str) -> None:
        self.path(name).unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        if self._held is None or self._held + size > self.limit:
            # List the entries again: other processes may have added or evicted some.
            entries = []
            for path in self.directory.glob("??/*"):
                with contextlib.suppress(OSError):
                    found = path.stat()
                    entries.append((found.st_mtime_ns, found.st_size, path))
            self._held = sum(weight for _, weight, _ in entries)
            full = self._held + size > self.limit
            for _, weight, path in sorted(entries) if full else ():
                if self._held + size <= self.limit * _SHARE_KEPT:
                    break
                path.unlink(missing_ok=True)
                self._held -= weight
        self._held += size
