"""A file of one pool, copied into another: known to be the one its manifest names, or not there at all."""

from __future__ import annotations

import uuid
from pathlib import Path

from lpld_labels.format.digests import file_digest
from lpld_labels.format.manifest import FileEntry
from lpld_labels.io.random_access import retry_corrupt
from lpld_labels.io.storage import TEMPORARY, DigestingFile, move, write_errors
from lpld_labels.pool.pool_files import PoolFiles, require_digest


def copy_file(files: PoolFiles, entry: FileEntry, pool: Path, *, within: Path) -> bool:
    """Copy a file to the same place of a local pool unless it is there; return whether it was not.

    within: directory on the same file system for the bytes on their way, where a crash may leave them.
    """
    target = pool / entry.path
    if target.is_file() and target.stat().st_size == entry.bytes and file_digest(target) == entry.digest:
        return False
    temporary = within / f"{TEMPORARY}{uuid.uuid4().hex}"
    with write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Bytes from elsewhere may have been changed on the way.
            retry_corrupt(lambda: _pour(files, entry, temporary))
            move(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    return True


def _pour(files: PoolFiles, entry: FileEntry, path: Path) -> None:
    with DigestingFile(path) as sink:
        for chunk in files.chunks(entry):
            sink.write(memoryview(chunk).cast("B"))
        require_digest(entry, sink.digest, files.at(entry.path))
