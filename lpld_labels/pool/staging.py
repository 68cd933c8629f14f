"""The staging area: where unfinished pools wait, safe against crashes, shared by several writers.

pool/staging/
  plan.json        header, codec and images of the pool to be, on which every writer must agree; and what
                   the work is for
  codec/           the codec's tables
  NAME/            sealed shards (see shard.py)
  checkpoint/      what scoring and fitting have come to (see checkpoint.py); it outlasts drafts of the pool
  .tmp-*           what is being written, or was when a process died
  lock             held while the area is joined, and while it is swept away
  commit.lock      held by whoever commits

A shard comes and goes by renaming its directory, so at any moment it is there as a whole or not at all.
While the area is there the pool is unfinished: `sweep` deletes it as the last act of a commit.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lpld_labels.codecs import Codec, restore_codec
from lpld_labels.errors import PoolCorruptError
from lpld_labels.format.digests import bytes_digest, file_digest
from lpld_labels.format.files import CodecEntry
from lpld_labels.format.images import ImageTable
from lpld_labels.format.json_records import convert
from lpld_labels.format.limits import MAX_JSON_BYTES
from lpld_labels.format.manifest import PoolHeader
from lpld_labels.format.schema import (
    CODEC_DIRECTORY,
    LABELS_DIRECTORY,
    MANIFEST_FILE,
    STAGING_DIRECTORY,
    VIEWS_DIRECTORY,
    Views,
)
from lpld_labels.format.strict_json import from_json, to_json
from lpld_labels.io.locks import FileLock, in_use, locked
from lpld_labels.io.random_access import read_regular
from lpld_labels.io.storage import (
    TEMPORARY,
    fsync,
    move,
    write_atomically,
    write_errors,
)
from lpld_labels.pool.own_files import (
    CHECKPOINT_DIRECTORY,
    COMMIT_LOCK,
    LOCK,
    PLAN,
    require_own_staging,
)
from lpld_labels.pool.shard import EncodedBatch
from lpld_labels.pool.staged_shard import LABELS, SEAL, VIEWS, SealedShard, load_sealed, write_shard
from lpld_labels.pool.staging_plan import PURPOSE, describe, joined_plan

_LAST = {PLAN: 1, COMMIT_LOCK: 2, LOCK: 3}
Stamps = tuple[tuple[int, ...] | None, ...]
Receipts = dict[str, Stamps]
"""Shards that a process has sealed, by name, with the stamps their files had then."""
_PLACES = ((VIEWS, VIEWS_DIRECTORY), (LABELS, LABELS_DIRECTORY))


class StagingArea:
    """The staging directory of one pool.

    One that somebody else has made is refused, and so is a pool with links for directories: it is elsewhere.
    """

    def __init__(self, pool: Path) -> None:
        self.pool = pool
        self.directory = pool / STAGING_DIRECTORY
        require_own_staging(pool)
        self._plan: dict[str, Any] = {}
        self._tables: dict[str, bytes] = {}
        self._written: Receipts = {}
        self._told: set[str] = set()

    # What is staged

    def prepare(
        self,
        header: PoolHeader,
        codec: Codec,
        images: ImageTable,
        *,
        views: Views = "stored",
        purpose: Mapping[str, Any] | None = None,
    ) -> None:
        """Create the area, or join the one that is there if it is for the same pool.

        views: whether the pool will keep its views files.
        purpose: what the work is for, as JSON values; kept for `purpose` to give back (see staging_plan.py).
        """
        self._plan = describe(header, codec, images.digest(), views) | {PURPOSE: purpose}
        self._tables = codec.tables()
        with write_errors(self.directory), locked(self.directory / LOCK):
            self._join()

    def _join(self) -> None:
        """Write the plan, or compare it with the one that is there."""
        path = self.directory / PLAN
        if found := self._document():
            plan = joined_plan(found, self._plan, where=str(path))
            if plan != found:
                write_atomically(path, to_json(plan), within=self.directory)
            return
        (self.directory / CODEC_DIRECTORY).mkdir(exist_ok=True)
        for name, data in self._tables.items():
            write_atomically(self.directory / CODEC_DIRECTORY / name, data, within=self.directory)
        write_atomically(path, to_json(self._plan), within=self.directory)

    def _document(self) -> dict[str, Any]:
        path = self.directory / PLAN
        if not path.exists():
            return {}
        with write_errors(path):
            found = from_json(read_regular(path, most=MAX_JSON_BYTES), where=str(path))
        if not isinstance(found, dict):
            raise PoolCorruptError(
                "the plan of unfinished work is damaged", where=path, hint=f"delete {self.directory}"
            )
        return found

    def purpose(self) -> Any:
        """Return what the staged work is for, or None."""
        return self._document().get(PURPOSE)

    def codec(self) -> Codec | None:
        """Return the codec staged shards are encoded with, or None if nothing is staged."""
        document = self._document()
        if not document:
            return None
        where = str(self.directory / PLAN)
        entry = convert(document["codec"], CodecEntry, where=where, prefix="codec")
        tables = {}
        for name, digest in document["codec_tables"].items():
            path = self.directory / CODEC_DIRECTORY / name
            tables[name] = path.read_bytes()
            if bytes_digest(tables[name]) != digest:
                raise PoolCorruptError(
                    "a staged codec table is damaged", where=path, hint=f"delete {self.directory}"
                )
        return restore_codec(
            entry, tables, classes=document["classes"], label_kind=document["label_kind"], where=where
        )

    @property
    def drawn(self) -> bool:
        """Whether the pool to be leaves its views out."""
        return bool(self._document().get("views") == "drawn")

    @property
    def _places(self) -> tuple[tuple[str, str], ...]:
        """The files of a shard that become files of the pool, and where."""
        return _PLACES[1:] if self.drawn else _PLACES

    def file(self, shard: SealedShard, name: str) -> Path:
        """Return where a file of a sealed shard is: staged, or in the pool if a commit has moved it."""
        staged = self.directory / shard.name / name
        moved = self.pool / dict(_PLACES)[name] / f"{shard.name}.parquet"
        return moved if not staged.exists() and moved.exists() else staged

    def sealed(self) -> list[SealedShard]:
        """Return the sealed shards by name, without those that a merge has replaced."""
        return self._kept_and_replaced()[0]

    def _kept_and_replaced(self) -> tuple[list[SealedShard], list[SealedShard]]:
        """Return the sealed shards that count and those that a merge has replaced, as one look finds them."""
        names = self._names() if self.directory.is_dir() else []
        shards = []
        for name in names:
            # Another writer's commit may be clearing away what it has published.
            with contextlib.suppress(FileNotFoundError):
                shards.append(load_sealed(self.directory / name))
        replaced = {name for shard in shards for name in shard.replaces}
        return [s for s in shards if s.name not in replaced], [s for s in shards if s.name in replaced]

    def _names(self) -> list[str]:
        entries = sorted(path for path in self.directory.iterdir() if not path.name.startswith(TEMPORARY))
        return [path.name for path in entries if (path / SEAL).exists()]

    def is_whole(self, shard: SealedShard) -> bool:
        """Whether no file of a sealed shard has been moved into the pool yet."""
        return all((self.directory / shard.name / file).exists() for file, _ in self._places)

    # Coming and going

    def seal(
        self, batches: Sequence[EncodedBatch], codec: Codec, classes: int, *, replaces: Sequence[str] = ()
    ) -> SealedShard:
        """Write batches as one sealed shard."""
        drawn = self._plan.get("views") == "drawn" if self._plan else self.drawn
        with write_errors(self.directory), self._workplace() as workplace:
            shard = write_shard(workplace, batches, codec, classes, drawn=drawn, replaces=replaces)
            fsync(workplace)
            self._give_name(workplace, shard)
            fsync(self.directory)
            self._written[shard.name] = self._stamps(shard)
        return shard

    def _give_name(self, workplace: Path, shard: SealedShard) -> None:
        """Rename a finished shard; where another writer has sealed the same one, that one stays."""
        try:
            workplace.rename(self.directory / shard.name)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            there = load_sealed(self.directory / shard.name)
            if (there.views, there.labels) != (shard.views, shard.labels):
                raise
            shutil.rmtree(workplace)

    @contextlib.contextmanager
    def _workplace(self) -> Iterator[Path]:
        """Give a directory that no commit sweeps away while it is in use."""
        path = self.directory / f"{TEMPORARY}{uuid.uuid4().hex}"
        with locked(self.directory / LOCK):
            # Another writer's commit may have swept the area away.
            self._join()
            path.mkdir()
            hold = FileLock(path / LOCK)
        try:
            yield path
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        finally:
            hold.release()

    def check(self, shard: SealedShard) -> None:
        """Read a shard's files, wherever an interrupted commit has left them, and compare their digests.

        Those that were written here or by whoever gave a receipt, and that nobody has touched since, need not
        be read again. A damaged shard is forgotten, so that its batches are done again.
        """
        if self._written.get(shard.name) == (stamps := self._stamps(shard)) and None not in stamps:
            return
        for file, facts in ((VIEWS, shard.views), (LABELS, shard.labels)):
            path = self.file(shard, file)
            if not path.exists() or file_digest(path) != facts.digest:
                self.discard(shard.name, moved=True)
                raise PoolCorruptError(
                    "a staged file was missing or damaged; it has been removed",
                    where=path,
                    hint="run the same command again to redo its batches",
                )

    def receipts(self) -> Receipts:
        """Return what was sealed here since this was last asked."""
        new = {name: stamps for name, stamps in self._written.items() if name not in self._told}
        self._told |= new.keys()
        return new

    def believe(self, receipts: Receipts) -> None:
        """Take shards that others have sealed for proven, as long as their files' stamps are these."""
        self._written |= receipts

    def _stamps(self, shard: SealedShard) -> Stamps:
        """Return what changes whenever the bytes of a shard's files are changed, by whatever means."""
        paths = [self.file(shard, name) for name in (VIEWS, LABELS)]
        stats = [path.stat() if path.exists() else None for path in paths]
        return tuple(s and (s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in stats)

    def publish(self, shard: SealedShard) -> None:
        """Move a sealed shard's files to their place in the pool. Doing it twice does no harm."""
        for file, folder in self._places:
            source = self.directory / shard.name / file
            target = self.pool / folder / f"{shard.name}.parquet"
            with write_errors(target):
                target.parent.mkdir(exist_ok=True)
                if source.exists():
                    move(source, target)

    def discard(self, name: str, *, moved: bool = False) -> None:
        """Forget a sealed shard; with `moved`, also what an interrupted commit has moved of it."""
        with write_errors(self.directory / name):
            if moved:
                for _, folder in _PLACES:
                    (self.pool / folder / f"{name}.parquet").unlink(missing_ok=True)
            hidden = self.directory / f"{TEMPORARY}{uuid.uuid4().hex}"
            (self.directory / name).rename(hidden)
            shutil.rmtree(hidden)

    def discard_replaced(self) -> list[SealedShard]:
        """Forget what merges have replaced, lest it outlive the merged shards that say so; return others."""
        # One look: what another writer seals after it is neither, and stays.
        kept, replaced = self._kept_and_replaced()
        for shard in replaced:
            self.discard(shard.name)
        return kept

    def sweep(self, published: Collection[str], *, keep_checkpoint: bool = False) -> bool:
        """Delete published shards and what dead writers left, then the area; return whether it is gone.

        It stays if other writers have sealed shards meanwhile, or are about to.
        keep_checkpoint: leave the checkpoint there, if there is one.
        """
        if not self.directory.is_dir():
            return True
        require_own_staging(self.pool)
        with write_errors(self.directory), locked(self.directory / LOCK):
            for name in self._names():
                if name in published:
                    self.discard(name)
            for path in sorted(self.directory.glob(f"{TEMPORARY}*")):
                if path.is_file():
                    path.unlink()
                elif not in_use(path / LOCK):
                    # Its writer may have sealed it a moment ago: then it has another name.
                    with contextlib.suppress(FileNotFoundError):
                        shutil.rmtree(path)
            # In this order: what is sealed in between would else be seen by neither look.
            if any(self.directory.glob(f"{TEMPORARY}*")) or self._names():
                return False
            return self._delete(CHECKPOINT_DIRECTORY if keep_checkpoint else "")

    def _delete(self, kept: str) -> bool:
        """Delete the area, but for what is kept; return False if somebody begins to use it at this moment."""
        # The plan goes last: without it, nobody would know what the rest is. Then the locks: whoever
        # waits for one starts over, perhaps before the directory is gone.
        for path in sorted(self.directory.iterdir(), key=lambda path: _LAST.get(path.name, 0)):
            if path.name == kept:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        try:
            self.directory.rmdir()
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            return False
        return True

    def abandon(self, *, keep_checkpoint: bool = False) -> None:
        """Delete all staged work and what an interrupted commit has moved of it."""
        moved = not (self.pool / MANIFEST_FILE).exists()
        for name in self._names() if self.directory.is_dir() else []:
            self.discard(name, moved=moved)
        self.sweep((), keep_checkpoint=keep_checkpoint)
