"""Commands that write pools to an address: the pool is made on this machine and then sent.

It is made in a folder of the cache that belongs to the address, so an interrupted command resumes there, also
in the middle of sending, and a refused one loses nothing.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from lpld_labels.errors import LabelPoolError, PoolConflictError
from lpld_labels.exec.job import Progress
from lpld_labels.format.manifest import Manifest
from lpld_labels.format.schema import MANIFEST_FILE
from lpld_labels.io.addresses import Location, is_address, local_path, normalize_url, redact
from lpld_labels.io.disk_cache import cache_folder
from lpld_labels.io.locks import locked
from lpld_labels.io.remote import RemoteStore
from lpld_labels.io.storage import write_atomically, write_errors
from lpld_labels.pool.pool_files import PoolFiles, copy_file
from lpld_labels.pool.reader import PoolReader
from lpld_labels.transforms.transfer import fetch_pool, manifest_at, send_pool

_OPENING_ROLES = ("batches", "images", "codec")
Source = TypeVar("Source")
Rest = ParamSpec("Rest")
Result = TypeVar("Result")


def outgoing_folder(address: str) -> Path:
    """Return the local folder for pools that are sent to an address."""
    name = hashlib.sha256(normalize_url(address).partition("?")[0].encode()).hexdigest()[:16]
    return cache_folder() / "outgoing" / name


def gathered_at(out: Location) -> Path:
    """Return the directory that a pool for `out` is written to: `out`, or the folder that is then sent."""
    if not is_address(out):
        return local_path(out)
    return outgoing_folder(RemoteStore(os.fspath(out)).address) / "pool"


@contextlib.contextmanager
def destination(
    out: Location, *, overwrite: bool = False, extend: bool = False, progress: Progress | None = None
) -> Iterator[Path]:
    """Yield a directory to write a pool to; if `out` is an address, the pool is then sent there.

    extend: the command adds to a pool that is there, so it is fetched first.
    progress: called with (sent, total) bytes.
    """
    if not is_address(out):
        yield local_path(out)
        return
    store = RemoteStore(os.fspath(out))
    store.require_writable()
    path = outgoing_folder(store.address) / "pool"
    with _alone(path.parent, store):
        base = manifest_at(store)
        if not _is_whole(path):
            _fetch(base, store, path, whole=extend)
        try:
            yield path
        except LabelPoolError as error:
            raise _at_address(error, path, store) from None
        if not _is_whole(path):
            # A part of a larger job, with nothing to publish yet; or the pool at the address is the result.
            if (path / MANIFEST_FILE).exists():
                shutil.rmtree(path)
            return
        files = PoolFiles(path)
        send_pool(files, store, overwrite=overwrite, base=base if extend else None, progress=progress)
        shutil.rmtree(path)


def writes_pools(
    write: Callable[Concatenate[Source, Location, Rest], Result],
) -> Callable[Concatenate[Source, Location, Rest], Result]:
    """Let a function f(source, out, ...) that writes a pool take an address for `out`."""

    @functools.wraps(write)
    def anywhere(source: Source, out: Location, /, *rest: Rest.args, **options: Rest.kwargs) -> Result:
        with destination(out, overwrite=bool(options.get("overwrite"))) as path:
            return write(source, path, *rest, **options)

    return anywhere


@contextlib.contextmanager
def _alone(folder: Path, store: RemoteStore) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        with write_errors(folder):
            try:
                stack.enter_context(locked(folder / "lock", wait=False))
            except BlockingIOError:
                raise PoolConflictError(
                    "another process is writing here",
                    where=store.shown,
                    hint="wait until it is done, or stop it; then run the same command again",
                ) from None
        yield


def _is_whole(path: Path) -> bool:
    """Whether a whole pool is in a folder: one that was made there, or fetched to be added to."""
    if not (path / MANIFEST_FILE).is_file():
        return False
    manifest = Manifest.parse((path / MANIFEST_FILE).read_bytes(), where=str(path))
    places = [(path / entry.path, entry.bytes) for entry in manifest.files]
    return all(place.is_file() and place.stat().st_size == size for place, size in places)


def _fetch(text: bytes | None, store: RemoteStore, path: Path, *, whole: bool) -> None:
    """Fetch the pool at the address, so that a command finds it as it would in a directory.

    The files that opening a pool reads are enough to see whether the work is done already.
    text: the manifest there; None where there is none.
    """
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


def _at_address(error: LabelPoolError, path: Path, store: RemoteStore) -> LabelPoolError:
    """Return an error that names the address instead of the folder that stands for it."""
    facts: dict[str, Any] = {
        name: str(getattr(error, name)).replace(str(path), redact(store.address))
        for name in ("where", "expected", "got", "hint")
    }
    return type(error)(error.problem, **facts)
