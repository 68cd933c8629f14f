"""Where the files of a pool are brought: a directory or an address, one file at a time, the manifest last."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from lpld_labels.errors import PoolConflictError, StoreError
from lpld_labels.format.files import FileEntry
from lpld_labels.format.manifest import Manifest
from lpld_labels.format.schema import MANIFEST_FILE, README_FILE
from lpld_labels.io.byte_access import once_more
from lpld_labels.io.remote import PreconditionError, RemoteStore
from lpld_labels.io.storage import write_atomically
from lpld_labels.io.uploads import abort_uploads, send
from lpld_labels.pool.card_file import is_ours, send_card, write_card
from lpld_labels.pool.copying import copy_file
from lpld_labels.pool.own_files import own_paths
from lpld_labels.pool.pool_files import PoolFiles, require_digest
from lpld_labels.transforms.outputs import OVERWRITE_HINT

FIXED_ROLES = ("images", "codec")
"""Files that have the same name in every pool, so that two writers could want it for different bytes."""


class Target(Protocol):
    """What a pool's files are brought to."""

    def has(self, entry: FileEntry) -> bool:
        """Whether the file is there, known to be the right one."""
        ...

    def put(self, files: PoolFiles, entry: FileEntry) -> None:
        """Bring a file; it is there as a whole or not at all."""
        ...

    def put_card(self, text: bytes) -> None:
        """Bring README.md; PoolConflictError where there is another that somebody has edited."""
        ...

    def publish(self, text: bytes) -> None:
        """Write the manifest: from now on this is a pool."""
        ...


class LocalTarget:
    """A directory. within: for bytes on their way."""

    def __init__(self, pool: Path, within: Path) -> None:
        self._pool, self._within = pool, within

    def has(self, entry: FileEntry) -> bool:
        """Left to `put`, which compares digests itself."""
        del entry
        return False

    def put(self, files: PoolFiles, entry: FileEntry) -> None:
        """Copy it unless it is there."""
        copy_file(files, entry, self._pool, within=self._within)

    def put_card(self, text: bytes) -> None:
        """Rename it into place."""
        write_card(self._pool / README_FILE, text, within=self._within)

    def publish(self, text: bytes) -> None:
        """Rename it into place."""
        write_atomically(self._pool / MANIFEST_FILE, text, within=self._within)


class RemoteTarget:
    """An address.

    old: the manifest that is to be replaced, as it was when the work began; None where there was none.
    S3 writes the manifest only if nothing, or exactly that, is there; so of two writers one wins. Other
    stores are asked before, and of two that ask within the same moment the later wins.
    """

    def __init__(self, store: RemoteStore, old: bytes | None) -> None:
        self.store = store
        self._old = old
        self._sizes = store.sizes()
        self._sent: set[str] = set()
        self._lock = threading.Lock()

    def has(self, entry: FileEntry) -> bool:
        """Believe the store's own SHA-256; without one, the file is sent again."""
        return self._sizes.get(entry.path) == entry.bytes and self.store.digest(entry.path) == entry.digest

    def put(self, files: PoolFiles, entry: FileEntry) -> None:
        """Send it; a name that every pool has is taken only once."""
        with self._lock:
            self._sent.add(entry.path)
        # Bytes from elsewhere may have been changed on the way.
        once_more(lambda: self._send(files, entry), lambda: None)

    def _send(self, files: PoolFiles, entry: FileEntry) -> None:
        pieces = _proven(files, entry)
        if entry.role in FIXED_ROLES:
            self._create(entry, b"".join(map(memoryview, pieces)))
            return
        try:
            send(self.store, entry.path, entry.bytes, pieces, digest=entry.digest)
        except StoreError:
            # Whoever publishes aborts the uploads of all others.
            if self._published() != self._old:
                raise self._late() from None
            raise

    def _published(self) -> bytes | None:
        try:
            return self.store.read(MANIFEST_FILE)
        except FileNotFoundError:
            return None

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

    def know_sent(self, paths: Iterable[str]) -> None:
        """Learn which files others have sent for this pool."""
        with self._lock:
            self._sent.update(paths)

    def put_card(self, text: bytes) -> None:
        """Send it."""
        send_card(self.store, text)

    def publish(self, text: bytes) -> None:
        """Write the manifest if nobody else has."""
        try:
            if self._old is None:
                self.store.create(MANIFEST_FILE, text)
            else:
                self.store.replace(MANIFEST_FILE, text, old=self._old)
        except PreconditionError:
            self._give_way()
            raise self._late() from None
        named = {entry.path for entry in Manifest.parse(text, where=self.store.at(MANIFEST_FILE)).files}
        self.store.delete([path for path in self._sizes if _is_index(path) and path not in named])
        abort_uploads(self.store)

    def _late(self) -> PoolConflictError:
        return PoolConflictError(
            "another writer has published a pool here meanwhile",
            where=self.store.shown,
            hint=f"nothing of this one is lost: {OVERWRITE_HINT}, and run the same command again",
        )

    def _give_way(self) -> None:
        """Delete what was sent and is not part of the pool that is there now."""
        where = self.store.at(MANIFEST_FILE)
        winner = Manifest.parse(self.store.read(MANIFEST_FILE), where=where)
        self.store.delete(sorted(self._sent - {entry.path for entry in winner.files}))


def clear(store: RemoteStore) -> None:
    """Delete a pool at an address, finished or not; refuse where there is anything else."""
    paths = sorted(store.sizes())
    ours = own_paths(paths)
    for path in paths:
        if path not in ours and not (path == README_FILE and is_ours(store.read(path))):
            raise PoolConflictError(
                "something is here that is no label pool",
                where=store.at(path),
                hint="choose another address, or move it away: --overwrite replaces only what we wrote",
            )
    # First what makes it a pool: nobody shall open what is being deleted.
    store.delete([path for path in (MANIFEST_FILE, *paths) if path != MANIFEST_FILE or path in paths])
    abort_uploads(store)


def _proven(files: PoolFiles, entry: FileEntry) -> Iterator[bytes | pa.Buffer]:
    """Yield a file piece by piece; PoolCorruptError behind the last one if it is not the right file."""
    state = hashlib.sha256()
    for piece in files.chunks(entry):
        state.update(piece)
        yield piece
    require_digest(entry, state.hexdigest(), files.at(entry.path))


def _is_index(path: str) -> bool:
    return path.startswith("batches-") and path.endswith(".parquet")
