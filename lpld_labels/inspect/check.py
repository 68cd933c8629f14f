"""Checking a pool from end to end: every byte, every row, every label.

Works through everything it can reach and names each damaged file, instead of stopping at the first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lpld_labels.errors import LabelPoolError, PoolCorruptError
from lpld_labels.exec.job import Progress
from lpld_labels.format.files import FileEntry, FileRole
from lpld_labels.format.manifest import Manifest
from lpld_labels.format.schema import (
    CODEC_DIRECTORY,
    LABELS_DIRECTORY,
    MANIFEST_FILE,
    PACKED_DIRECTORY,
    VIEWS_DIRECTORY,
)
from lpld_labels.inspect.check_shards import CheckReport, Problem, check_contents, table_problems
from lpld_labels.inspect.strict import check_in_child, strict_problems
from lpld_labels.io.addresses import Location, is_address, local_path
from lpld_labels.io.disk_cache import DiskCache
from lpld_labels.io.storage import refuse_links_out
from lpld_labels.pool.pool_files import PoolFiles, open_files, read_manifest
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.sizes import pool_bytes

_STRANGER = "file is not part of the pool; finish the interrupted commit or delete it"
_FOLDERS = tuple(
    f"{name}/" for name in (VIEWS_DIRECTORY, LABELS_DIRECTORY, CODEC_DIRECTORY, PACKED_DIRECTORY)
)
_READ_TWICE: tuple[FileRole, ...] = ("views", "labels", "packed")
"""By their bytes, and by what they hold."""


def check_pool(location: Location, *, strict: bool = False, progress: Progress | None = None) -> CheckReport:
    """Check digests, page checksums, counts, key order, ranges, duplicates and labels of a pool.

    Raises only when there is no readable manifest; everything else is a problem in the report.
    strict: in a child process with limits, and report what no pool of ours has, too (see strict.py).
    progress: called with (bytes done, bytes in all); shards and packed images are read twice.
    """
    if strict:
        manifest = read_manifest(open_files(location))
        return check_in_child(os.fspath(location), manifest, progress)
    return check_here(location, strict=False, progress=progress)


def check_here(location: Location, *, strict: bool, progress: Progress | None) -> CheckReport:
    """Check a pool in this process."""
    with _kept(location) as cache:
        return _Check(location, cache, progress).run(strict=strict)


@contextlib.contextmanager
def _kept(location: Location) -> Iterator[DiskCache | None]:
    """Give a place for some files of a pool elsewhere at a time, so that each is fetched once."""
    if not is_address(location):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="lpld-labels-") as folder:
        yield DiskCache(Path(folder))


class _Check:
    """One check of one pool. damaged: files whose bytes are wrong."""

    def __init__(self, location: Location, cache: DiskCache | None, progress: Progress | None) -> None:
        self._location, self._cache = location, cache
        self._files = open_files(location, cache)
        self._manifest = read_manifest(self._files)
        again = [entry for role in _READ_TWICE for entry in self._manifest.files_of(role)]
        total = sum(entry.bytes for entry in (*self._manifest.files, *again))
        self._ticker = _Ticker(total, progress)
        self._problems: list[Problem] = []
        self._left = {entry.path: entry for entry in again}
        self.damaged: set[str] = set()

    def run(self, *, strict: bool) -> CheckReport:
        """Look at everything that opening a pool needs, then at shard after shard."""
        manifest = self._manifest
        for entry in manifest.files:
            if entry.path not in self._left:
                self.check(entry)
        known = {entry.path for entry in manifest.files}
        unknown = [name for name, _ in self._files.names() if name.startswith(_FOLDERS) and name not in known]
        self._problems += [Problem(file=name, message=_STRANGER) for name in unknown]
        self._problems += _links(self._location, manifest)
        batches = rows = 0
        blamed = MANIFEST_FILE
        large = [] if self.damaged else table_problems(self._files, manifest)
        self._problems += large
        if not self.damaged and not large:
            try:
                with PoolReader(self._location, check_sizes=False, cache=self._cache) as pool:
                    # Everything is held against the image table.
                    blamed = manifest.files_of("images")[0].path
                    len(pool.images)
                    found, batches, rows = check_contents(pool, self)
                    self._problems += found
                if strict:
                    self._problems += strict_problems(self._files, manifest)
            except LabelPoolError as error:
                self._problems.append(Problem(file=blamed, message=str(error)))
        for entry in list(self._left.values()):
            self.check(entry)
            self.finish(entry)
        self._ticker.finish()
        return CheckReport(
            files=len(manifest.files) + 1,
            bytes=pool_bytes(manifest),
            batches=batches,
            rows=rows,
            problems=tuple(self._problems),
        )

    def check(self, entry: FileEntry) -> None:
        """Compare a file with its digest."""
        self._left.pop(entry.path, None)
        problem = _wrong_bytes(self._files, entry)
        if problem is not None:
            self.damaged.add(entry.path)
            self._problems.append(Problem(file=entry.path, message=problem))
        self._ticker.add(entry.bytes)

    def finish(self, entry: FileEntry) -> None:
        """Let go of a file."""
        if self._cache is not None:
            self._cache.drop(entry.digest)
        self._ticker.add(entry.bytes)


def _wrong_bytes(files: PoolFiles, entry: FileEntry) -> str | None:
    """Read every byte of a file and return what is wrong with it, or None."""
    state, size = hashlib.sha256(), 0
    try:
        for chunk in files.chunks(entry):
            state.update(chunk)
            size += len(chunk)
    except PoolCorruptError as error:
        return error.problem
    if size != entry.bytes:
        return f"file has the wrong size (expected {entry.bytes} bytes, got {size})"
    if state.hexdigest() != entry.digest:
        return f"bytes changed (expected SHA-256 {entry.digest[:12]}..., got {state.hexdigest()[:12]}...)"
    return None


def _links(location: Location, manifest: Manifest) -> list[Problem]:
    """Report a file that is a link out of the pool: its bytes may be another's tomorrow."""
    try:
        if not is_address(location):
            paths = [MANIFEST_FILE, *(entry.path for entry in manifest.files)]
            refuse_links_out(str(local_path(location)), paths)
    except LabelPoolError as error:
        return [Problem(file=MANIFEST_FILE, message=str(error))]
    return []


class _Ticker:
    """Adds up finished bytes for a progress callback."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def add(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)

    def finish(self) -> None:
        """Say that nothing is left, also of what damage made pointless."""
        self.add(self._total - self._done)
