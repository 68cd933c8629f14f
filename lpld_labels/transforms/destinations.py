"""Commands that write pools, writing to an address: the pool is made on this machine and then sent.

What is made lies in a folder of the cache that belongs to the address, so an interrupted command goes on from
there, also in the middle of sending, and a refused one has lost nothing.
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

from lpld_labels.codecs.fitting import NO_KEEPER, Keeper
from lpld_labels.errors import LabelPoolError, PoolConflictError, StoreError
from lpld_labels.exec.job import Engine, Progress
from lpld_labels.exec.local import ONE_PROCESS
from lpld_labels.format.schema import MANIFEST_FILE
from lpld_labels.io.addresses import Location, is_address, local_path, normal, shown
from lpld_labels.io.disk_cache import cache_folder
from lpld_labels.io.locks import locked
from lpld_labels.io.remote import RemoteStore
from lpld_labels.io.storage import write_atomically, write_errors
from lpld_labels.pool.checkpoint import Checkpoint, is_all_there_is
from lpld_labels.pool.copying import copy_file
from lpld_labels.pool.pool_files import LocalFiles
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.staging import StagingArea
from lpld_labels.transforms.copying import COPY_PURPOSE, copy_pool, manifest_at, send_pool
from lpld_labels.transforms.outputs import sole_writer

_OUTGOING = "outgoing"
_OPENING_ROLES = ("batches", "images", "codec")
Source = TypeVar("Source")
Rest = ParamSpec("Rest")
Result = TypeVar("Result")


def outgoing_folder(address: str) -> Path:
    """Return where pools on their way to an address are made."""
    name = hashlib.sha256(normal(address).partition("?")[0].encode()).hexdigest()[:16]
    return cache_folder() / _OUTGOING / name


def gathered_at(out: Location) -> Path:
    """Return the directory that a pool for `out` is written to: `out` itself, or what is then sent there."""
    if not is_address(out):
        return local_path(out)
    return outgoing_folder(RemoteStore(os.fspath(out)).address) / "pool"


@contextlib.contextmanager
def unfinished_at(out: Location | None, pool: PoolReader, *, overwrite: bool = False) -> Iterator[Keeper]:
    """Give the keeper of what is computed before a pool is made of this one at `out`.

    Meanwhile no other process writes there. If the new pool turns out to be impossible, nothing is left.
    out: None if nothing will be written; then nothing is kept.
    """
    if out is None:
        yield NO_KEEPER
        return
    path = gathered_at(out)
    checkpoint = Checkpoint.at(path, pool.manifest.content_digest)
    with sole_writer(path), checkpoint.unless_refused():
        if (path / MANIFEST_FILE).exists() and not overwrite:
            # Done already, or to be refused: a finished pool gets no staging area again.
            checkpoint.close()
        yield checkpoint


@contextlib.contextmanager
def destination(
    out: Location,
    *,
    overwrite: bool = False,
    extend: bool = False,
    engine: Engine = ONE_PROCESS,
    progress: Progress | None = None,
) -> Iterator[Path]:
    """Give a directory to write a pool to; if `out` is an address, what is written is then sent there.

    extend: the command adds to a pool that is there, so it is fetched first.
    engine: whose workers write there, and send it if they are elsewhere: they must share the cache folder.
    progress: called with (bytes, bytes in all) that are sent.
    """
    if not is_address(out):
        yield local_path(out)
        return
    store = RemoteStore(os.fspath(out))
    if store.scheme in ("http", "https"):
        raise StoreError("cannot be written to", where=store.shown, hint="write to s3:// or a directory")
    folder = outgoing_folder(store.address)
    path = folder / "pool"
    with _alone(folder, store):
        base = _fetched(store, path, whole=extend)
        try:
            yield path
        except LabelPoolError as error:
            raise _at_address(error, path, store) from None
        if not (path / MANIFEST_FILE).exists():
            # A part of a larger job: there is nothing to publish yet.
            return
        ours = base if extend else None
        files = LocalFiles(path)
        send_pool(files, store, overwrite=overwrite, base=ours, engine=engine, progress=progress)
        shutil.rmtree(path)


def writes_pools(
    write: Callable[Concatenate[Source, Location, Rest], Result],
) -> Callable[Concatenate[Source, Location, Rest], Result]:
    """Let a function f(source, out, ...) that writes a pool take an address for `out`."""

    @functools.wraps(write)
    def anywhere(source: Source, out: Location, /, *rest: Rest.args, **options: Rest.kwargs) -> Result:
        if not is_address(out):
            return write(source, local_path(out), *rest, **options)
        engine = options.get("executor", options.get("engine"))
        workers = engine if isinstance(engine, Engine) else ONE_PROCESS
        with destination(out, overwrite=bool(options.get("overwrite")), engine=workers) as path:
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


def _fetched(store: RemoteStore, path: Path, *, whole: bool) -> bytes | None:
    """Bring what is at the address, so that a command finds it as it would in a directory.

    What opening a pool reads is enough to tell whether the work is done already. Returns its manifest, or
    None where there is none.
    """
    text = manifest_at(store)
    unfinished = path.exists() and not is_all_there_is(path)
    half_fetched = whole and COPY_PURPOSE in (StagingArea(path).purpose() or {})
    if text is None or (unfinished and not half_fetched):
        return text
    with write_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    if whole:
        copy_pool(store.address, path)
        return text
    with PoolReader(store.address, check_sizes=False) as pool:
        for entry in pool.manifest.files:
            if entry.role in _OPENING_ROLES:
                copy_file(pool.files, entry, path, within=path)
    write_atomically(path / MANIFEST_FILE, text)
    return text


def _at_address(error: LabelPoolError, path: Path, store: RemoteStore) -> LabelPoolError:
    """Return an error that names the address instead of the folder that stands for it."""
    facts: dict[str, Any] = {
        name: str(getattr(error, name)).replace(str(path), shown(store.address))
        for name in ("where", "expected", "got", "hint")
    }
    return type(error)(error.problem, **facts)
