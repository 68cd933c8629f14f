"""Copy pools between directories and addresses, file by file; files that are there are not sent again.

Every file is compared with its digest when it is read and when it arrives. The manifest comes last, so an
interrupted transfer leaves no pool, and the same transfer resumes. The card is copied with the pool.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lpld_labels.errors import PoolConflictError, StoreError
from lpld_labels.exec.job import Progress
from lpld_labels.format.digests import bytes_digest
from lpld_labels.format.manifest import FileEntry, Manifest
from lpld_labels.format.schema import MANIFEST_FILE, README_FILE
from lpld_labels.io.random_access import retry_corrupt
from lpld_labels.io.remote import PreconditionError, RemoteStore
from lpld_labels.pool.own_files import is_our_card, own_paths, send_card, write_card
from lpld_labels.pool.pool_files import PoolFiles, copy_file, verified
from lpld_labels.pool.publish import put_in_place
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.unfinished import unfinished
from lpld_labels.transforms.outputs import OVERWRITE_HINT
from lpld_labels.transforms.pipeline import manifest_there

FILES_AT_ONCE = 4
_FIXED_ROLES = ("images", "codec")
"""Files that have the same name in every pool, so that two writers could want it for different bytes."""


@dataclass(frozen=True, kw_only=True)
class Copied:
    """Result of a copy. sent, found: bytes that were copied, and that were there already."""

    manifest: Manifest
    files: int
    sent: int
    found: int


def fetch_pool(
    pool: PoolReader, out: Path, *, overwrite: bool = False, progress: Progress | None = None
) -> Copied:
    """Copy a pool's files to a directory. overwrite: replace another pool that is there."""
    text = pool.files.manifest_text()
    with unfinished(out) as work:
        there = manifest_there(out, overwrite=overwrite)
        if there == pool.manifest:
            copied = _nothing(pool.manifest)
        else:
            if there is not None and not overwrite:
                raise PoolConflictError("another pool is already here", where=out, hint=OVERWRITE_HINT)
            work.begin({"copy": bytes_digest(text)}, overwrite=overwrite)

            def bring(entry: FileEntry) -> bool:
                return copy_file(pool.files, entry, work.pool, within=work.directory)

            copied = _bring(pool.manifest, bring, progress)
            put_in_place(work, text, overwrite=overwrite)
    card = pool.files.card()
    if card is not None:
        # An edited card at the target stays.
        with contextlib.suppress(PoolConflictError):
            write_card(out / README_FILE, card)
    return copied


def send_pool(
    files: PoolFiles,
    store: RemoteStore,
    *,
    overwrite: bool = False,
    base: bytes | None = None,
    progress: Progress | None = None,
) -> Copied:
    """Send a pool's files to an address.

    base: the manifest there that this pool extends, and may replace.
    """
    text = files.manifest_text()
    manifest = Manifest.parse(text, where=files.at(MANIFEST_FILE))
    there = manifest_at(store)
    if there == text:
        _send_card(files, store)
        return _nothing(manifest)
    if there is not None and there != base:
        if not overwrite:
            raise PoolConflictError("another pool is already here", where=store.shown, hint=OVERWRITE_HINT)
        clear(store)
        there = None
    elif overwrite and there is None:
        clear(store)
    upload = Upload(store, there)
    copied = _bring(manifest, lambda entry: upload.put(files, entry), progress)
    upload.publish(text)
    # After the manifest: of two writers, only the winner sends its card.
    _send_card(files, store)
    return copied


def manifest_at(store: RemoteStore) -> bytes | None:
    """Return the manifest at an address, or None."""
    try:
        return store.read(MANIFEST_FILE)
    except FileNotFoundError:
        return None


def _nothing(manifest: Manifest) -> Copied:
    size = sum(entry.bytes for entry in manifest.files)
    return Copied(manifest=manifest, files=0, sent=0, found=size)


def _bring(manifest: Manifest, bring: Callable[[FileEntry], bool], progress: Progress | None) -> Copied:
    """Copy all files, several at a time. bring: returns whether a file was not there yet."""
    total = sum(entry.bytes for entry in manifest.files)
    done = sent = count = 0
    # First those that reveal another pool on its way.
    ordered = sorted(manifest.files, key=lambda entry: entry.role not in _FIXED_ROLES)
    fixed = sum(entry.role in _FIXED_ROLES for entry in ordered)
    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="copy") as threads:
        for group in (ordered[:fixed], ordered[fixed:]):
            for entry, brought in zip(group, threads.map(bring, group), strict=True):
                done += entry.bytes
                sent += entry.bytes * brought
                count += brought
                if progress is not None:
                    progress(done, total)
    return Copied(manifest=manifest, files=count, sent=sent, found=total - sent)


def _send_card(files: PoolFiles, store: RemoteStore) -> None:
    card = files.card()
    if card is not None:
        with contextlib.suppress(PoolConflictError):
            send_card(store, card)


class Upload:
    """Sends a pool to an address.

    old: the manifest to replace, as it was when the work began; None where there was none. S3 writes the
    manifest only if nothing, or exactly that, is there, so one of two writers wins. Other stores are checked
    before; of two writers at the same moment the later one wins.
    """

    def __init__(self, store: RemoteStore, old: bytes | None) -> None:
        self.store = store
        self._old = old
        self._sizes = store.sizes()
        self._sent: set[str] = set()
        self._lock = threading.Lock()

    def put(self, files: PoolFiles, entry: FileEntry) -> bool:
        """Send a file unless it is there; return whether it was sent.

        The store's own SHA-256 is trusted; without one, the file is sent again.
        """
        there = self._sizes.get(entry.path) == entry.bytes
        if there and self.store.digest(entry.path) == entry.digest:
            return False
        with self._lock:
            self._sent.add(entry.path)
        retry_corrupt(lambda: self._send(files, entry))
        return True

    def _send(self, files: PoolFiles, entry: FileEntry) -> None:
        pieces = verified(entry, files.chunks(entry), files.at(entry.path))
        if entry.role in _FIXED_ROLES:
            self._create(entry, b"".join(map(memoryview, pieces)))
            return
        try:
            self.store.send(entry.path, entry.bytes, pieces, digest=entry.digest)
        except StoreError:
            # The writer that publishes aborts the uploads of all others.
            if manifest_at(self.store) != self._old:
                raise self._late() from None
            raise

    def _create(self, entry: FileEntry, data: bytes) -> None:
        try:
            self.store.create(entry.path, data, digest=entry.digest)
        except PreconditionError:
            if self.store.read(entry.path) != data:
                raise PoolConflictError(
                    "files of another pool are here, or on their way",
                    where=self.store.at(entry.path),
                    hint=OVERWRITE_HINT,
                ) from None

    def publish(self, text: bytes) -> None:
        """Write the manifest unless another writer has."""
        try:
            if self._old is None:
                self.store.create(MANIFEST_FILE, text)
            else:
                self.store.replace(MANIFEST_FILE, text, old=self._old)
        except PreconditionError:
            # Delete what was sent and is not part of the pool that is there now.
            winner = Manifest.parse(self.store.read(MANIFEST_FILE), where=self.store.at(MANIFEST_FILE))
            self.store.delete(sorted(self._sent - {entry.path for entry in winner.files}))
            raise self._late() from None
        named = {entry.path for entry in Manifest.parse(text, where=self.store.at(MANIFEST_FILE)).files}
        old = [path for path in self._sizes if path.startswith("batches-") and path not in named]
        self.store.delete(sorted(own_paths(old)))
        self.store.abort_uploads()

    def _late(self) -> PoolConflictError:
        return PoolConflictError(
            "another writer has published a pool here meanwhile",
            where=self.store.shown,
            hint=f"nothing of this one is lost: {OVERWRITE_HINT}, and run the same command again",
        )


def clear(store: RemoteStore) -> None:
    """Delete a pool at an address, finished or not; refuse where there is anything else."""
    paths = sorted(store.sizes())
    ours = own_paths(paths)
    for path in paths:
        if path not in ours and not (path == README_FILE and is_our_card(store.read(path))):
            raise PoolConflictError(
                "something is here that is no label pool",
                where=store.at(path),
                hint="choose another address, or move it away: --overwrite replaces only what we wrote",
            )
    # The manifest first: nobody may open a pool that is being deleted.
    store.delete(sorted(paths, key=lambda path: path != MANIFEST_FILE))
    store.abort_uploads()
