"""Files of a pool sent to an address by the workers of an engine: they do not pass through its driver.

The pool lies in a directory that all workers share. Each file is a task; the manifest is not among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lpld_labels.exec.job import Engine, Job, Progress, Steps
from lpld_labels.format.files import FileEntry
from lpld_labels.io.remote import RemoteStore
from lpld_labels.pool.pool_files import LocalFiles
from lpld_labels.transforms.targets import RemoteTarget


def send_by_workers(
    engine: Engine,
    pool: Path,
    entries: Sequence[FileEntry],
    store: RemoteStore,
    *,
    found: int = 0,
    progress: Progress | None = None,
) -> list[str]:
    """Send files of a pool; return the paths of those that were not there already.

    found: bytes of the pool that need no sending any more, for the progress.
    """
    job = Job(
        start=partial(_started, pool, store),
        tasks=entries,
        name=lambda entry: f"sending {entry.path}",
        total=found + sum(entry.bytes for entry in entries),
        done=found,
        where=store.shown,
    )
    sent: list[str] = engine.run(job, progress)
    return sent


def _started(pool: Path, store: RemoteStore, number: int) -> _Sender:
    del number  # all workers are alike
    return _Sender(LocalFiles(pool), RemoteTarget(store, None))


@dataclass(frozen=True)
class _Sender:
    files: LocalFiles
    target: RemoteTarget

    def do(self, entry: FileEntry, *, again: bool) -> Steps:
        """Send a file; return its path, or None if it was there."""
        del again
        there = self.target.has(entry)
        if not there:
            self.target.put(self.files, entry)
        yield entry.bytes
        return None if there else entry.path
