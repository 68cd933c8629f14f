"""Copy pools from and to remote addresses. Commands that write pools accept addresses too.

Files that already are at the target are not sent again. Digests are verified when a file is read and when it
arrives. The manifest is sent last, so an interrupted transfer leaves no pool and can be resumed. The card is
copied with the pool.

A command first writes its pool to a local staging folder, one per address, and then uploads it. After an
interruption, even of the upload, it resumes from this folder. A refused upload loses nothing.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from lpld_labels.errors import LabelPoolError, PoolConflictError, StoreError
from lpld_labels.exec.job import Progress, say_reused
from lpld_labels.format.digests import bytes_digest
from lpld_labels.format.manifest import FileEntry, Manifest
from lpld_labels.format.schema import MANIFEST_FILE, README_FILE
from lpld_labels.io.addresses import Location, is_address, local_path, normalize_url
from lpld_labels.io.disk_cache import cache_folder
from lpld_labels.io.hub import HubCommit, is_hub
from lpld_labels.io.locks import locked_directory
from lpld_labels.io.random_access import retry_corrupt
from lpld_labels.io.remote import PreconditionError, RemoteStore
from lpld_labels.io.storage import write_atomically, write_errors
from lpld_labels.pool.own_files import is_our_card, own_paths, require_own_files, send_card, write_card
from lpld_labels.pool.pool_files import PoolFiles, copy_file, verified
from lpld_labels.pool.publish import put_in_place
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.pool.unfinished import unfinished
from lpld_labels.results import Result
from lpld_labels.transforms.outputs import OVERWRITE_HINT
from lpld_labels.transforms.pipeline import manifest_there

_FILES_AT_ONCE = 4
_FIXED_ROLES = ("images", "codec")
"""Roles of files whose names do not depend on contents: writers may send different bytes to the same name."""
_OPENING_ROLES = ("batches", "images", "codec")
Source = TypeVar("Source")
Rest = ParamSpec("Rest")
Returned = TypeVar("Returned")


@dataclass(frozen=True, kw_only=True, repr=False)
class Copied(Result):
    """Result of a copy. files: number copied. sent: bytes copied. found: bytes already at the target."""

    manifest: Manifest
    files: int
    sent: int
    found: int

    def as_json(self) -> dict[str, Any]:
        return {
            "batches": self.manifest.counts.batches,
            "images": self.manifest.counts.images,
            "bytes": pool_bytes(self.manifest),
            "image_bytes": self.manifest.components["packed"],
            "files": self.files,
            "sent": self.sent,
            "found": self.found,
            "content_digest": self.manifest.content_digest,
        }


def fetch_pool(
    pool: PoolReader, out: Path, *, overwrite: bool = False, progress: Progress | None = None
) -> Copied:
    """Copy a pool's files to a directory. overwrite: replace a different pool that is there."""
    files, text = pool.files, pool.files.manifest_text()
    with unfinished(out) as work:
        there = manifest_there(out, overwrite=overwrite)
        if there == pool.manifest:
            copied = _nothing(pool.manifest)
        else:
            if there is not None and not overwrite:
                raise PoolConflictError("a different pool is already here", where=out, hint=OVERWRITE_HINT)
            if there is not None:
                require_own_files(out)
            work.begin({"copy": bytes_digest(text)}, overwrite=overwrite)
            copied = _copy_files(
                out,
                pool.manifest,
                lambda entry: copy_file(files, entry, work.pool, within=work.directory),
                progress,
            )
            put_in_place(work, text, overwrite=overwrite)
    card = files.card()
    if card is not None:
        # Keep an edited card at the target.
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
    """Send a pool's files to an address. base: manifest that this pool extends and may replace."""
    text = files.manifest_text()
    manifest = Manifest.parse(text, where=files.at(MANIFEST_FILE))
    # Order matters: the commit must not be based on a newer state than the manifest that is compared.
    commit = HubCommit(store.address) if is_hub(store.address) else None
    there = manifest_at(store)
    if there == text:
        _send_card(files, store)
        return _nothing(manifest)
    if there not in (None, base) and not overwrite:
        raise PoolConflictError("a different pool is already here", where=store.shown, hint=OVERWRITE_HINT)
    if commit is not None:
        return _send_commit(files, manifest, store, commit)
    if overwrite and (there is None or there != base):
        _clear(store)
        there = None
    upload = Upload(store, there)
    copied = _copy_files(store.shown, manifest, lambda entry: upload.put(files, entry), progress)
    upload.publish(text, {entry.path for entry in manifest.files})
    # Send the card after the manifest, so that of two writers only the winner sends it.
    _send_card(files, store)
    return copied


def _send_commit(files: PoolFiles, manifest: Manifest, store: RemoteStore, commit: HubCommit) -> Copied:
    """Send a local pool and its card to the hub, in place of any other pool at this address."""
    sent: dict[str, Path | bytes] = {}
    for entry in manifest.files:
        for _ in verified(entry, files.chunks(entry), files.at(entry.path)):
            pass
        sent[entry.path] = Path(files.at(entry.path))
    sent[MANIFEST_FILE] = files.manifest_text()
    card, paths = files.card(), sorted(store.sizes())
    old = own_paths(paths)
    if README_FILE in paths and is_our_card(store.read(README_FILE)):
        old.add(README_FILE)
    if card is not None and (README_FILE not in paths or README_FILE in old):
        sent[README_FILE] = card
    commit.send(sent, sorted(old - sent.keys()))
    size = sum(entry.bytes for entry in manifest.files)
    return Copied(manifest=manifest, files=len(manifest.files), sent=size, found=0)


def manifest_at(store: RemoteStore) -> bytes | None:
    """Return the manifest at an address, or None."""
    try:
        return store.read(MANIFEST_FILE)
    except FileNotFoundError:
        return None


def _nothing(manifest: Manifest) -> Copied:
    size = sum(entry.bytes for entry in manifest.files)
    return Copied(manifest=manifest, files=0, sent=0, found=size)


def _copy_files(
    out: object, manifest: Manifest, copy: Callable[[FileEntry], bool], progress: Progress | None
) -> Copied:
    """Copy all files to `out`, several at a time. copy: copies a file; returns False if it was there."""
    total = sum(entry.bytes for entry in manifest.files)
    done = sent = count = 0
    # Files that reveal another pool at the target go first.
    fixed = [entry for entry in manifest.files if entry.role in _FIXED_ROLES]
    others = [entry for entry in manifest.files if entry.role not in _FIXED_ROLES]
    with ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="copy") as threads:
        for group in (fixed, others):
            for entry, new in zip(group, threads.map(copy, group), strict=True):
                done += entry.bytes
                sent += entry.bytes * new
                count += new
                if progress is not None:
                    progress(done, total)
    say_reused(out, len(manifest.files) - count, len(manifest.files), "files")
    return Copied(manifest=manifest, files=count, sent=sent, found=total - sent)


def _send_card(files: PoolFiles, store: RemoteStore) -> None:
    card = files.card()
    if card is not None:
        with contextlib.suppress(PoolConflictError):
            send_card(store, card)


class Upload:
    """Sends a pool to an address.

    old: the manifest to replace, as read when the work began; None if there was none. S3 replaces the
    manifest only if it is still `old`, so the first of two writers wins. On other stores, the manifest is
    compared just before it is replaced, so the later of two simultaneous writers wins.
    """

    def __init__(self, store: RemoteStore, old: bytes | None) -> None:
        self._store = store
        self._old = old
        self._sizes = store.sizes()
        self._sent: set[str] = set()

    def put(self, files: PoolFiles, entry: FileEntry) -> bool:
        """Send a file unless the store's copy has the same size and SHA-256; return whether it was sent."""
        same_size = self._sizes.get(entry.path) == entry.bytes
        if same_size and self._store.digest(entry.path) == entry.digest:
            return False
        self._sent.add(entry.path)
        retry_corrupt(lambda: self._send(files, entry))
        return True

    def _send(self, files: PoolFiles, entry: FileEntry) -> None:
        pieces = verified(entry, files.chunks(entry), files.at(entry.path))
        if entry.role in _FIXED_ROLES:
            self._create(entry, b"".join(map(memoryview, pieces)))
            return
        try:
            self._store.send(entry.path, entry.bytes, pieces, digest=entry.digest)
        except StoreError:
            # A writer that publishes aborts the uploads of all other writers.
            if manifest_at(self._store) != self._old:
                raise self._late() from None
            raise

    def _create(self, entry: FileEntry, data: bytes) -> None:
        try:
            self._store.create(entry.path, data, digest=entry.digest)
        except PreconditionError:
            if self._store.read(entry.path) != data:
                raise PoolConflictError(
                    "this file belongs to a different pool, published or unfinished",
                    where=self._store.at(entry.path),
                    hint=OVERWRITE_HINT,
                ) from None

    def publish(self, text: bytes, named: Collection[str]) -> None:
        """Write the manifest unless another writer was first. named: the file paths in the manifest."""
        try:
            if self._old is None:
                self._store.create(MANIFEST_FILE, text)
            else:
                self._store.replace(MANIFEST_FILE, text, old=self._old)
        except PreconditionError:
            # Delete the files we sent that are not part of the published pool.
            winner = Manifest.parse(self._store.read(MANIFEST_FILE), where=self._store.at(MANIFEST_FILE))
            self._store.delete(sorted(self._sent - {entry.path for entry in winner.files}))
            raise self._late() from None
        old = [path for path in self._sizes if path.startswith("batches-") and path not in named]
        self._store.delete(sorted(own_paths(old)))
        self._store.abort_uploads()

    def _late(self) -> PoolConflictError:
        return PoolConflictError(
            "another writer has published a pool here",
            where=self._store.shown,
            hint=f"your pool is not lost: run the same command again and {OVERWRITE_HINT}",
        )


def _clear(store: RemoteStore) -> None:
    """Delete a pool at an address, published or unfinished; refuse if there are other files."""
    paths = sorted(store.sizes())
    ours = own_paths(paths)
    for path in paths:
        if path not in ours and not (path == README_FILE and is_our_card(store.read(path))):
            raise PoolConflictError(
                "this file does not belong to a label pool",
                where=store.at(path),
                hint="choose another address or move the file: --overwrite only replaces our own files",
            )
    # Delete the manifest first, so that no reader opens a pool that is being deleted.
    store.delete(sorted(paths, key=lambda path: path != MANIFEST_FILE))
    store.abort_uploads()


def outgoing_folder(address: str) -> Path:
    """Return the local staging folder for pools to upload to an address."""
    name = hashlib.sha256(normalize_url(address).partition("?")[0].encode()).hexdigest()[:16]
    return cache_folder() / "outgoing" / name


def gathered_at(out: Location) -> Path:
    """Return the local directory to write the pool to: `out`, or a staging folder to upload."""
    return outgoing_folder(os.fspath(out)) / "pool" if is_address(out) else local_path(out)


@contextlib.contextmanager
def destination(out: Location, *, overwrite: bool = False, extend: bool = False) -> Iterator[Path]:
    """Yield a directory to write to; upload it if `out` is an address. extend: fetch the old pool first."""
    if not is_address(out):
        yield local_path(out)
        return
    store = RemoteStore(os.fspath(out))
    store.require_writable()
    path = gathered_at(out)
    with _naming_address(store, path), locked_directory(path.parent):
        base = manifest_at(store)
        if not _is_complete(path):
            _fetch(base, store, path, whole=extend)
        yield path
        if _is_complete(path):
            send_pool(PoolFiles(path), store, overwrite=overwrite, base=base if extend else None)
            shutil.rmtree(path)
        elif (path / MANIFEST_FILE).exists():
            # The pool at the address is already the result.
            shutil.rmtree(path)


def writes_pools(
    write: Callable[Concatenate[Source, Location, Rest], Returned],
) -> Callable[Concatenate[Source, Location, Rest], Returned]:
    """Decorate a function f(source, out, ...) that writes a pool, so that `out` may be an address."""

    @functools.wraps(write)
    def anywhere(source: Source, out: Location, /, *rest: Rest.args, **options: Rest.kwargs) -> Returned:
        with destination(out, overwrite=bool(options.get("overwrite"))) as path:
            return write(source, path, *rest, **options)

    return anywhere


def _is_complete(path: Path) -> bool:
    """Return whether a folder has a manifest and all files that it names, each of the right size."""
    if not (path / MANIFEST_FILE).is_file():
        return False
    manifest = Manifest.parse((path / MANIFEST_FILE).read_bytes(), where=str(path))
    places = [(path / entry.path, entry.bytes) for entry in manifest.files]
    return all(place.is_file() and place.stat().st_size == size for place, size in places)


def _fetch(text: bytes | None, store: RemoteStore, path: Path, *, whole: bool) -> None:
    """Fetch a pool's files: all if `whole`, else those that opening reads. text: manifest; None: no pool."""
    if path.exists():
        shutil.rmtree(path)
    if text is None:
        return
    with PoolReader(store.address, check_sizes=whole) as pool:
        if whole:
            fetch_pool(pool, path)
            return
        with write_errors(path):
            path.mkdir(parents=True)
        for entry in pool.manifest.files:
            if entry.role in _OPENING_ROLES:
                copy_file(pool.files, entry, path, within=path)
    write_atomically(path / MANIFEST_FILE, text)


@contextlib.contextmanager
def _naming_address(store: RemoteStore, path: Path) -> Iterator[None]:
    """Make errors name the address instead of the staging folder."""
    try:
        yield
    except LabelPoolError as error:
        parts = {
            name: text.replace(str(path), store.shown).replace(str(path.parent), store.shown)
            for name, text in error.parts().items()
            if name != "problem"
        }
        raise type(error)(error.problem, **parts) from None
