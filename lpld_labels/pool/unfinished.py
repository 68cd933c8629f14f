"""Unfinished work: the directory OUT.partial beside the pool OUT.

OUT.partial/
  plan.json      identity of the work and its shards; without this file, nothing in OUT.partial is deleted
  records/K      the record of finished shard K (shard.py)
  pool/          files of the new pool
  published      SHA-256 of the manifest, written just before the pool is published (publish.py)
  .tmp-*         temporary files, including those of dead processes

The directory is locked while a process works in it; parts of one job share the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lpld_labels.errors import PoolConflictError, StagingMismatchError
from lpld_labels.format.digests import file_digest
from lpld_labels.format.manifest import Manifest
from lpld_labels.format.probe import PROBE, TOLERANCE, probe_difference
from lpld_labels.format.schema import MANIFEST_FILE, POOL_DIRECTORIES
from lpld_labels.format.strict_json import from_json, to_json
from lpld_labels.io.locks import locked_directory, try_lock
from lpld_labels.io.storage import TEMPORARY, refuse_links, write_durably, write_errors
from lpld_labels.pool.own_files import delete_unnamed, read_document
from lpld_labels.pool.pool_files import is_intact
from lpld_labels.pool.shard import POOL, RECORDS, ShardRecord, record_path

log = logging.getLogger(__name__)

PLAN = "plan.json"
PUBLISHED = "published"
_FORMAT = "lpld-label-pool work"
_OURS = (PLAN, PUBLISHED, RECORDS, POOL)
CHECKS_AT_ONCE = 8


def partial_directory(out: Path) -> Path:
    """Return OUT.partial for a pool OUT."""
    return out.with_name(f"{out.name}.partial")


class Unfinished:
    """Unfinished work on a pool, locked by this process. Use `unfinished` to create this object."""

    def __init__(self, out: Path, descriptor: int, *, shared: bool = False) -> None:
        self.out = out
        self.directory = partial_directory(out)
        self.pool = self.directory / POOL
        self._descriptor = descriptor
        names = sorted(path.name for path in self.directory.iterdir())
        foreign = [name for name in names if name not in _OURS and not name.startswith(TEMPORARY)]
        begun = [name for name in names if not name.startswith(TEMPORARY)]
        if foreign or (begun and not self._plan()):
            raise PoolConflictError(
                "this is not part of an unfinished pool",
                where=self.directory / (foreign or begun)[0],
                hint="move this away: the directory is for unfinished work on a pool",
            )
        refuse_links([self.directory / name for name in names])
        refuse_links(self.pool / name for name in POOL_DIRECTORIES)
        self._finish(bare=begun == [PLAN] and not shared)

    def _finish(self, *, bare: bool) -> None:
        """Empty OUT.partial if the work in it has been published, or if only the plan is left (`bare`)."""
        mark, manifest = self.directory / PUBLISHED, self.out / MANIFEST_FILE
        published = mark.is_file() and manifest.is_file() and mark.read_text() == file_digest(manifest)
        if published:
            files = Manifest.parse(manifest.read_bytes(), where=str(manifest)).files
            with write_errors(self.out):
                delete_unnamed(self.out, {entry.path for entry in files})
        if published or bare:
            self.delete()

    def _plan(self) -> dict[str, Any]:
        return read_document(self.directory / PLAN, _FORMAT)

    def begin(
        self, identity: Mapping[str, Any], cut: Sequence[int] = (), *, overwrite: bool = False
    ) -> list[int]:
        """Begin work, or resume work with the same identity. Return the number of items per shard.

        cut: number of items per shard, for new work. overwrite: delete work that has another identity.
        """
        wanted = as_json(identity)
        plan = {"format": _FORMAT, "identity": wanted, "cut": list(cut)}
        if not self._plan():
            self._create(plan)
        found = self._plan()
        different = differences(found["identity"], wanted)
        if different and overwrite:
            self.delete()
            self._create(plan)
            return list(cut)
        if different:
            field, expected, got = different[0]
            raise StagingMismatchError(
                f"unfinished work does not match this command: field '{field}' differs",
                where=self.directory,
                expected=expected,
                got=got,
                hint="finish it with its original settings, delete this directory, or use --overwrite",
            )
        return [int(count) for count in found["cut"]]

    def _create(self, plan: dict[str, Any]) -> None:
        """Write the plan unless another part of the same job has just done so."""
        temporary = self.directory / f"{TEMPORARY}{uuid.uuid4().hex}"
        with write_errors(self.directory):
            write_durably(temporary, to_json(plan))
            try:
                # Unlike a rename, a hard link does not replace the plan of another part.
                os.link(temporary, self.directory / PLAN)
            except FileExistsError:
                pass
            except OSError:
                # The file system has no hard links.
                temporary.replace(self.directory / PLAN)
            temporary.unlink(missing_ok=True)
            os.fsync(self._descriptor)

    def numbers(self) -> list[int]:
        folder = self.directory / RECORDS
        return sorted(int(path.name) for path in folder.iterdir()) if folder.is_dir() else []

    def records(self, numbers: Sequence[int], *, checked: bool) -> dict[int, ShardRecord]:
        """Return records of finished shards; delete damaged records. checked: verify the shards' files."""

        def load(number: int) -> ShardRecord | None:
            path = record_path(self.directory, number)
            record = ShardRecord.parse(path.read_bytes(), where=str(path))
            return record if record is not None and (not checked or self._is_whole(record)) else None

        found = {}
        with ThreadPoolExecutor(CHECKS_AT_ONCE, thread_name_prefix="check") as threads:
            for number, record in zip(numbers, threads.map(load, numbers), strict=True):
                if record is None:
                    log.warning("%s: shard %d is damaged and will be written again", self.directory, number)
                    record_path(self.directory, number).unlink(missing_ok=True)
                else:
                    found[number] = record
        return found

    def _is_whole(self, record: ShardRecord) -> bool:
        for entry in record.files:
            path = self.pool / entry.path
            if not is_intact(path if path.exists() else self.out / entry.path, entry):
                return False
        return True

    def alone(self) -> bool:
        """Try to lock this directory exclusively; return False if another process is using it."""
        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return try_lock(self._descriptor, fcntl.LOCK_EX)

    def delete(self) -> None:
        """Delete everything. The plan is deleted last, because it proves that the other files are ours."""
        with write_errors(self.directory):
            for path in sorted(
                self.directory.iterdir(), key=lambda path: (path.name == PLAN, path.name == PUBLISHED)
            ):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()


@contextlib.contextmanager
def unfinished(out: Path, *, shared: bool = False) -> Iterator[Unfinished]:
    """Lock OUT.partial and yield the unfinished work in it. On exit, delete the directory if it is empty.

    If the pool has been published, its leftover work files are deleted first. shared: other processes may
    hold the lock, too.
    """
    directory = partial_directory(out)
    refuse_links([directory])
    with locked_directory(directory, shared=shared) as descriptor:
        yield Unfinished(out, descriptor, shared=shared)


def finish(out: Path, *, shared: bool = False) -> None:
    """Delete OUT.partial if the work in it has been published."""
    if partial_directory(out).is_dir():
        with unfinished(out, shared=shared):
            pass


def as_json(values: Mapping[str, Any]) -> Any:
    """Return values after a round trip through JSON, to compare them with values read from a file."""
    return from_json(to_json({**values}), where="plan")


def differences(found: Any, wanted: Any) -> list[tuple[str, str, str]]:
    """Return (field, found, wanted) for each difference of two JSON documents. Probes may differ slightly."""
    return sorted(_differences(found, wanted, ""), key=lambda one: (one[0].endswith(PROBE), one))


def _differences(found: Any, wanted: Any, name: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in found.keys() | wanted.keys():
            yield from _differences(found.get(key), wanted.get(key), f"{name}.{key}" if name else key)
    elif name.endswith(PROBE) and isinstance(wanted, list):
        difference = probe_difference(found, wanted)
        if difference > TOLERANCE:
            yield name, "the same outputs on random images", f"outputs that differ by {difference:.0%}"
    elif isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        for number, pair in enumerate(zip(found, wanted, strict=True)):
            yield from _differences(*pair, f"{name}.{number}")
    elif found != wanted:
        yield name, repr(found)[:200], repr(wanted)[:200]
