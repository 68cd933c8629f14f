"""Copying pools from anywhere to anywhere, file by file: what is there already is not sent again.

Every file is compared with its digest when it is read and when it arrives. The manifest comes last, so what
is left of an interrupted copy is no pool, and the same copy goes on from there. The card goes with the pool.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lpld_labels.errors import InvalidArgumentError, PoolConflictError
from lpld_labels.exec.job import Engine, Progress
from lpld_labels.exec.local import ONE_PROCESS
from lpld_labels.format.files import FileEntry
from lpld_labels.format.manifest import Manifest
from lpld_labels.format.schema import MANIFEST_FILE
from lpld_labels.io.addresses import Location, is_address, local_path
from lpld_labels.io.remote import RemoteStore
from lpld_labels.pool.commit import finish_commit
from lpld_labels.pool.pool_files import LocalFiles, PoolFiles
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.staging import StagingArea
from lpld_labels.transforms.engine import published
from lpld_labels.transforms.outputs import OVERWRITE_HINT, require_apart, sole_writer
from lpld_labels.transforms.sending import send_by_workers
from lpld_labels.transforms.targets import FIXED_ROLES, LocalTarget, RemoteTarget, Target, clear

FILES_AT_ONCE = 4
COPY_PURPOSE = "copy"
"""What unfinished work is for (`StagingArea.purpose`)."""


@dataclass(frozen=True, kw_only=True)
class Copied:
    """What a copy did. sent, found: bytes that were brought, and that were there already."""

    manifest: Manifest
    files: int
    sent: int
    found: int


def copy_pool(
    source: Location, target: Location, *, overwrite: bool = False, progress: Progress | None = None
) -> Copied:
    """Copy a pool from a directory or an address to another.

    overwrite: replace another pool that is there; otherwise it is refused.
    """
    with PoolReader(source) as pool:
        if is_address(target):
            store = RemoteStore(os.fspath(target))
            if is_address(source) and store == RemoteStore(os.fspath(source)):
                raise InvalidArgumentError("source and target are the same", where=store.shown)
            return send_pool(pool.files, store, overwrite=overwrite, progress=progress)
        return _to_directory(pool, local_path(target), overwrite, progress)


def _to_directory(pool: PoolReader, path: Path, overwrite: bool, progress: Progress | None) -> Copied:
    manifest, text = pool.manifest, pool.files.manifest_text()
    require_apart(path, pool.location)
    purpose = {COPY_PURPOSE: pool.manifest.content_digest}
    with sole_writer(path):
        found = published(path, lambda there: there == manifest, purpose=purpose, overwrite=overwrite)
        if found is not None:
            _bring_card(pool.files, LocalTarget(path, path))
            return Copied(manifest=manifest, files=0, sent=0, found=sum(e.bytes for e in manifest.files))
        staging = StagingArea(path)
        staging.prepare(pool.header, pool.codec, pool.images, views=manifest.views, purpose=purpose)
        copied = _bring(pool.files, manifest, text, LocalTarget(path, staging.directory), progress)
        finish_commit(path, manifest)
        return copied


def send_pool(
    files: PoolFiles,
    store: RemoteStore,
    *,
    overwrite: bool = False,
    base: bytes | None = None,
    engine: Engine = ONE_PROCESS,
    progress: Progress | None = None,
) -> Copied:
    """Send a pool's files to an address.

    base: the manifest there that this pool was made from, and may replace.
    engine: workers of other machines send the files of a directory that they share; else this process does.
    """
    text = files.manifest_text()
    manifest = Manifest.parse(text, where=files.at(MANIFEST_FILE))
    there = manifest_at(store)
    if there == text:
        _bring_card(files, RemoteTarget(store, there))
        return Copied(manifest=manifest, files=0, sent=0, found=sum(e.bytes for e in manifest.files))
    if there is not None and there != base:
        if not overwrite:
            raise PoolConflictError("another pool is already here", where=store.shown, hint=OVERWRITE_HINT)
        clear(store)
        there = None
    elif overwrite and there is None:
        clear(store)
    target = RemoteTarget(store, there)
    if engine.on_this_machine or not isinstance(files, LocalFiles):
        return _bring(files, manifest, text, target, progress)
    first, rest = _in_order(manifest.files)
    found, total = sum(entry.bytes for entry in first), sum(entry.bytes for entry in manifest.files)
    for entry in first:
        target.put(files, entry)
    sent = set(send_by_workers(engine, Path(files.path), rest, store, found=found, progress=progress))
    target.know_sent(sent)
    target.publish(text)
    size = found + sum(entry.bytes for entry in rest if entry.path in sent)
    return Copied(manifest=manifest, files=len(first) + len(sent), sent=size, found=total - size)


def manifest_at(store: RemoteStore) -> bytes | None:
    """Return the manifest at an address, or None."""
    try:
        return store.read(MANIFEST_FILE)
    except FileNotFoundError:
        return None


def _bring(
    files: PoolFiles, manifest: Manifest, text: bytes, target: Target, progress: Progress | None
) -> Copied:
    """Bring what is missing, several files at a time, and publish."""
    total = sum(entry.bytes for entry in manifest.files)
    done = sent = count = 0

    def bring(entry: FileEntry) -> tuple[FileEntry, bool]:
        there = target.has(entry)
        if not there:
            target.put(files, entry)
        return entry, not there

    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="copy") as threads:
        for group in _in_order(manifest.files):
            for entry, brought in threads.map(bring, group):
                done += entry.bytes
                sent += entry.bytes * brought
                count += brought
                if progress is not None:
                    progress(done, total)
    target.publish(text)
    # Behind the manifest: of two writers, only the one that has won brings its card.
    _bring_card(files, target)
    return Copied(manifest=manifest, files=count, sent=sent, found=total - sent)


def _bring_card(files: PoolFiles, target: Target) -> None:
    """Bring README.md, if there is one; who has edited the one at the target keeps it."""
    card = files.card()
    if card is not None:
        with contextlib.suppress(PoolConflictError):
            target.put_card(card)


def _in_order(entries: Sequence[FileEntry]) -> tuple[list[FileEntry], list[FileEntry]]:
    """Return the files in two groups; first those by which another pool on its way is noticed."""
    first = [entry for entry in entries if entry.role in FIXED_ROLES]
    return first, [entry for entry in entries if entry.role not in FIXED_ROLES]
