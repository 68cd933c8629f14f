"""Check a pool from end to end: every byte, every row, every label.

Works through everything it can reach and names each damaged file, instead of stopping at the first. A strict
check, for a pool from a stranger, runs in a child process with limits of memory and time, so that no file,
however it was made, ends or fills the caller's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels import errors
from lpld_labels.errors import LabelPoolError, PoolCorruptError
from lpld_labels.exec.job import Progress
from lpld_labels.format.digests import batch_digest, views_digest
from lpld_labels.format.limits import TABLE_GROWTH, TABLE_SPARE_BYTES
from lpld_labels.format.manifest import FILE_COMPONENTS, FileEntry, FileRole, Manifest
from lpld_labels.format.schema import (
    BATCH_SCHEMA,
    CODEC_DIRECTORY,
    COMPONENTS,
    IMAGE_SCHEMA,
    LABELS_DIRECTORY,
    MANIFEST_FILE,
    PACKED_DIRECTORY,
    README_FILE,
    RESIZE_CODES,
    VIEW_SCHEMA,
    VIEWS_DIRECTORY,
    Component,
)
from lpld_labels.io.addresses import Location, is_address, local_path
from lpld_labels.io.disk_cache import DiskCache
from lpld_labels.io.parquet_files import VIEW_OWNERS, label_owners, weighed
from lpld_labels.io.parquet_pages import Chunk
from lpld_labels.io.storage import refuse_links_out
from lpld_labels.io.verified_parquet import VerifiedParquet
from lpld_labels.pool.index import Group
from lpld_labels.pool.packed_images import packed_images
from lpld_labels.pool.pool_files import PoolFiles, open_files, read_manifest
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard_files import label_schema
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.pool.view_counts import coverage_of

_FOLDERS = tuple(
    f"{name}/" for name in (VIEWS_DIRECTORY, LABELS_DIRECTORY, CODEC_DIRECTORY, PACKED_DIRECTORY)
)
_READ_TWICE: tuple[FileRole, ...] = ("views", "labels", "packed")
"""By their bytes, and by what they hold."""


MEMORY_BYTES = 4 * 1024**3
"""Beyond what the child has taken when it begins. Whole pools need a few hundred MB."""
SECONDS, SECONDS_PER_MEGABYTE = 600, 1
"""Of processor time: in any case, and for each megabyte of the pool."""
_OUT_OF_MEMORY = 77
_FIELDS = ("problem", "where", "expected", "got", "hint")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something wrong with a file of the pool."""

    file: str
    message: str


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """What was checked and what was found wrong."""

    files: int
    bytes: int
    batches: int
    rows: int
    problems: tuple[Problem, ...]

    @property
    def whole(self) -> bool:
        return not self.problems


def check_pool(location: Location, *, strict: bool = False, progress: Progress | None = None) -> CheckReport:
    """Check digests, page checksums, counts, key order, ranges, duplicates and labels of a pool.

    Raises only when there is no readable manifest; everything else is a problem in the report.
    strict: in a child process with limits, and report what no pool of ours has, too.
    progress: called with (bytes done, bytes in all); shards and packed images are read twice.
    """
    if strict:
        return _check_in_child(os.fspath(location), read_manifest(open_files(location)), progress)
    return _check_here(location, strict=False, progress=progress)


def _check_here(location: Location, *, strict: bool, progress: Progress | None) -> CheckReport:
    """Check a pool in this process."""
    with contextlib.ExitStack() as stack:
        cache = None
        if is_address(location):
            # Keeps the files of a shard while it is checked, so that each is fetched once.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lpld-labels-"))
            cache = DiskCache(Path(folder))
        return _Check(location, cache, progress).run(strict=strict)


class _Check:
    """One check of one pool.

    damaged: files whose bytes are wrong. unread: files that are read twice and were not looked at yet.
    components: bytes by component, added up as files are read.
    """

    def __init__(self, location: Location, cache: DiskCache | None, progress: Progress | None) -> None:
        self._location, self._cache, self._progress = location, cache, progress
        self._files = open_files(location, cache)
        self._manifest = read_manifest(self._files)
        again = [entry for role in _READ_TWICE for entry in self._manifest.files_of(role)]
        self._done, self._total = 0, sum(entry.bytes for entry in (*self._manifest.files, *again))
        self._unread = {entry.path: entry for entry in again}
        self._damaged: set[str] = set()
        self._problems: list[Problem] = []
        self._batches = self._rows = 0
        self._components: dict[Component, int] = dict.fromkeys(COMPONENTS, 0)

    def run(self, *, strict: bool) -> CheckReport:
        """Check everything that opening a pool needs, then shard after shard."""
        manifest = self._manifest
        if not self._note(MANIFEST_FILE, self._links()):
            # What lies outside the pool is not read.
            self._damaged = {entry.path for entry in manifest.files}
            self._unread.clear()
        for entry in manifest.files:
            if entry.path not in self._unread and entry.path not in self._damaged:
                self._check_bytes(entry)
        self._check_names()
        images = manifest.files_of("images")[0]
        tables = ((manifest.files_of("batches")[0], BATCH_SCHEMA), (images, IMAGE_SCHEMA))
        blamed = MANIFEST_FILE
        sound = not self._damaged
        for entry, schema in tables if sound else ():
            sound &= self._note(entry.path, _table(self._files, entry, schema))
        if sound:
            try:
                with PoolReader(self._location, check_sizes=False, cache=self._cache) as pool:
                    # Everything is compared with the image table.
                    blamed = images.path
                    self._check_contents(pool)
                if strict:
                    self._problems += _strict_problems(self._files, manifest)
            except LabelPoolError as error:
                self._problems.append(Problem(file=blamed, message=str(error)))
        for entry in list(self._unread.values()):
            self._check_bytes(entry)
        self._add_done(self._total - self._done)
        return CheckReport(
            files=len(manifest.files) + 1,
            bytes=pool_bytes(manifest),
            batches=self._batches,
            rows=self._rows,
            problems=tuple(self._problems),
        )

    # Files

    def _note(self, file: str, messages: Iterable[str]) -> bool:
        """Record what a check yields, or the error that ends it; return whether there was nothing."""
        before = len(self._problems)
        try:
            self._problems.extend(Problem(file=file, message=message) for message in messages)
        except LabelPoolError as error:
            self._problems.append(Problem(file=file, message=str(error)))
        return len(self._problems) == before

    def _check_bytes(self, entry: FileEntry) -> None:
        """Compare a file with its digest."""
        self._unread.pop(entry.path, None)
        problem = _wrong_bytes(self._files, entry)
        if problem is not None:
            self._damaged.add(entry.path)
            self._problems.append(Problem(file=entry.path, message=problem))
        self._add_done(entry.bytes)

    def _finish(self, entry: FileEntry) -> None:
        """Drop a file whose contents have been checked from the cache."""
        if self._cache is not None:
            self._cache.drop(entry.digest)
        self._add_done(entry.bytes)

    def _add_done(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total)

    def _check_names(self) -> None:
        """Report unknown files in the pool's folders."""
        known = {entry.path for entry in self._manifest.files}
        for name, _ in self._files.names():
            if name.startswith(_FOLDERS) and name not in known:
                message = "file is not part of the pool; finish the interrupted commit or delete it"
                self._problems.append(Problem(file=name, message=message))

    def _links(self) -> Iterator[str]:
        """Refuse links out of the pool: what they lead to may be another file tomorrow."""
        if not is_address(self._location):
            paths = [MANIFEST_FILE, *(entry.path for entry in self._manifest.files)]
            refuse_links_out(str(local_path(self._location)), paths)
        yield from ()

    # Contents

    def _check_contents(self, pool: PoolReader) -> None:
        """Check shards and packed images, bytes and contents; then the manifest's sums."""
        for role, owner in FILE_COMPONENTS.items():
            self._components[owner] += sum(entry.bytes for entry in pool.manifest.files_of(role))
        counted = np.zeros(len(pool.images), np.int64)
        views = dict(enumerate(pool.manifest.files_of("views")))
        sound = True
        for shard, labels in enumerate(pool.manifest.files_of("labels")):
            numbers = pool.index.in_shard(shard).tolist()
            entries = [views[shard], labels] if shard in views else [labels]
            for entry in entries:
                self._check_bytes(entry)
            sound &= self._check_shard(pool, shard, views.get(shard), labels)
            if not self._damaged.intersection(entry.path for entry in entries):
                self._batches += len(numbers)
                self._rows += int(pool.index.rows[numbers].sum())
            if sound and not self._damaged and numbers:
                shown = np.concatenate([pool.images_at(number) for number in numbers])
                counted += np.bincount(shown, minlength=len(counted))
            for entry in entries:
                self._finish(entry)
        packed = packed_images(pool)
        for entry in pool.manifest.files_of("packed"):
            self._check_bytes(entry)
            if packed is not None and entry.path not in self._damaged:
                sound &= self._note(entry.path, packed.problems(entry))
            self._finish(entry)
        if sound and not self._damaged:
            self._note(MANIFEST_FILE, _manifest_problems(pool, self._components, counted))

    def _check_shard(self, pool: PoolReader, shard: int, views: FileEntry | None, labels: FileEntry) -> bool:
        """Check the contents of a shard's intact files; return whether they are right."""
        numbers = pool.index.in_shard(shard).tolist()
        intact = views is None or views.path not in self._damaged
        sound = True
        if views is None:
            sound = self._note(pool.manifest.files_of("batches")[0].path, _view_problems(pool, numbers))
        elif intact:
            # Pages are checked before Arrow decodes them.
            sound = self._note(views.path, self._view_pages(pool, views))
            sound = sound and self._note(views.path, _view_problems(pool, numbers))
        digests = intact and sound
        if labels.path not in self._damaged:
            sound &= self._note(labels.path, self._label_pages(pool, labels, shard))
            sound &= self._note(labels.path, _label_problems(pool, numbers, digests=digests))
        return sound

    def _view_pages(self, pool: PoolReader, entry: FileEntry) -> Iterator[str]:
        """Check the pages of a views file and add up its bytes."""
        self._add_bytes(pool.open_parquet(entry, VIEW_SCHEMA).chunks(), entry, VIEW_OWNERS)
        yield from ()

    def _label_pages(self, pool: PoolReader, entry: FileEntry, shard: int) -> Iterator[str]:
        """Yield where a labels file, read by its footer as other programs do, is not what the index says."""
        columns = pool.codec.payload_columns(pool.classes)
        names = [column.name for column in columns]
        file = pool.open_parquet(entry, label_schema(pool.codec, pool.classes))
        chunks = file.chunks(plain=names)
        self._add_bytes(chunks, entry, label_owners(columns))
        groups = pool.index.groups_of(shard)
        payload = [
            [c for c in chunks if c.group == group and c.column in names] for group in range(file.groups)
        ]
        by_view = pool.codec.granularity == "view"
        rows = np.diff(file.starts).tolist()
        found = [(p[0].offset, sum(c.bytes for c in p), r) for p, r in zip(payload, rows, strict=True) if p]
        if found != [(g.offset, g.bytes, g.rows if by_view else g.batches) for g in groups]:
            yield "row groups do not lie where the batch index says"
            return
        for number, group in enumerate(groups):
            problem = _wrong_keys(pool, file, shard, number)
            problem = problem or _other_payload(pool, file, shard, number, group)
            if problem is not None:
                yield problem
                return

    def _add_bytes(self, chunks: list[Chunk], entry: FileEntry, owners: Mapping[str, Component]) -> None:
        parts = weighed(((chunk.column, chunk.bytes) for chunk in chunks), entry.bytes, owners)
        for name, size in parts.items():
            self._components[name] += size


def _wrong_bytes(files: PoolFiles, entry: FileEntry) -> str | None:
    """Read every byte of a file and return what is wrong with it, or None."""
    state, size = hashlib.sha256(), 0
    try:
        for chunk in files.chunks(entry):
            state.update(chunk)
            size += len(chunk)
    except PoolCorruptError as error:
        told = f" (expected {error.expected}, got {error.got})" if error.got else ""
        return f"{error.problem}{told}"
    if size != entry.bytes:
        return f"file has the wrong size (expected {entry.bytes} bytes, got {size})"
    if state.hexdigest() != entry.digest:
        return f"bytes changed (expected SHA-256 {entry.digest[:12]}..., got {state.hexdigest()[:12]}...)"
    return None


def _table(files: PoolFiles, entry: FileEntry, schema: pa.Schema) -> Iterator[str]:
    """Check the pages of the batch index or the image table, before anything is decoded."""
    chunks = VerifiedParquet(files.open(entry), entry, schema).chunks()
    limit, size = TABLE_GROWTH * entry.bytes + TABLE_SPARE_BYTES, sum(chunk.plain for chunk in chunks)
    if size > limit:
        yield f"table is far larger than its file (expected at most {limit} bytes, got {size})"


def _view_problems(pool: PoolReader, numbers: list[int]) -> Iterator[str]:
    """Yield batches whose views are not what index and image table say; reading them looks at everything."""
    for number in numbers:
        try:
            # Building the record again applies every rule a writer has to keep.
            replace(pool.views_at(number))
        except LabelPoolError as error:
            yield f"{pool.index.key(number)}: {error}"
            # The rest of its row group would say the same again.
            return


def _other_payload(
    pool: PoolReader, file: VerifiedParquet, shard: int, number: int, group: Group
) -> str | None:
    """Return which payload column of a row group is another one when Arrow reads it by the footer."""
    direct = pool.label_pages(shard).block(group)
    table = file.read(number, list(direct))
    for name, array in direct.items():
        other = table[name].combine_chunks()
        if not other.equals(array.cast(other.type)):
            return f"column '{name}' is another one by the footer than by the batch index, row group {number}"
    return None


def _wrong_keys(pool: PoolReader, file: VerifiedParquet, shard: int, group: int) -> str | None:
    """Return which key column of a row group is not what the index says."""
    index = pool.index
    by_view = pool.codec.granularity == "view"
    first, last = int(file.starts[group]), int(file.starts[group + 1])
    numbers = index.in_rows(shard, first, last) if by_view else index.in_shard(shard)[first:last]
    rows = index.rows[numbers].astype(np.int64) if by_view else np.ones(len(numbers), np.int64)
    expected = {
        "epoch": np.repeat(index.epochs[numbers], rows),
        "batch": np.repeat(index.batches[numbers], rows),
    }
    if by_view:
        expected["slot"] = np.arange(rows.sum()) - np.repeat(np.cumsum(rows) - rows, rows)
    table = file.read(group, list(expected))
    for name, values in expected.items():
        found = table[name].to_numpy()
        if not np.array_equal(found, values):
            row = int(np.flatnonzero(found != values)[0]) if len(found) == len(values) else 0
            return f"column '{name}' is not what the batch index says, first at row {first + row}"
    return None


def _label_problems(pool: PoolReader, numbers: list[int], *, digests: bool) -> Iterator[str]:
    """Yield batches whose labels are wrong; with `digests`, also those that have other digests."""
    for number in numbers:
        key = pool.index.key(number)
        try:
            labels = pool.labels_at(number)
            if not np.isfinite(labels).all():
                yield f"{key}: a label is not finite"
            elif pool.header.label_kind == "probabilities" and (labels < 0).any():
                yield f"{key}: a probability is negative"
            if digests:
                encoded = pool.encoded_at(number)
                canonical = pool.codec.canonical(
                    encoded.payload, rows=encoded.views.rows, classes=pool.classes
                )
                if batch_digest(views_digest(encoded.views), canonical) != encoded.digest:
                    yield f"{key}: digest of the batch is wrong"
        except LabelPoolError as error:
            yield f"{key}: {error}"


def _manifest_problems(
    pool: PoolReader, components: dict[Component, int], counted: npt.NDArray[np.int64]
) -> Iterator[str]:
    """Yield what the manifest says of the whole pool that is not so. counted: views of each image."""
    manifest = pool.manifest
    facts = {
        "content_digest": (manifest.content_digest, pool.digest_of(pool.index.digests())),
        "coverage": (manifest.coverage, coverage_of(counted, pool.images.classes)),
        "components": (manifest.components, components),
    }
    for name, (stated, got) in facts.items():
        if stated != got:
            yield f"field '{name}' is wrong (expected {stated}, got {got})"


# Pools from strangers


def _strict_problems(files: PoolFiles, manifest: Manifest) -> Iterator[Problem]:
    """Yield what the format allows and no pool of ours has.

    None of it changes a label. It is where something else could travel along, or where two programs could
    come to see different things: files beside the pool, links, manifest fields that readers ignore, names of
    resize code that nothing here can run.
    """
    known = {MANIFEST_FILE, README_FILE, *(entry.path for entry in manifest.files)}
    for name, link in files.names():
        if link or name not in known:
            message = "a symbolic link, not a file" if link else "file is not part of the pool"
            yield Problem(file=name, message=message)
    if json.loads(files.manifest_text()) != json.loads(manifest.dump()):
        message = "holds fields that readers of this version ignore ('must_understand' is false)"
        yield Problem(file=MANIFEST_FILE, message=message)
    resize = manifest.header.augmentation.resize
    if resize not in RESIZE_CODES:
        message = f"field 'augmentation.resize' names code that is not known: {resize[:100]!r}"
        yield Problem(file=MANIFEST_FILE, message=message)


def _check_in_child(location: str, manifest: Manifest, progress: Progress | None) -> CheckReport:
    """Check a pool strictly in a child process; its death is a problem of the pool."""
    seconds = SECONDS + SECONDS_PER_MEGABYTE * pool_bytes(manifest) // 10**6
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
    words = [sys.executable, "-m", "lpld_labels.inspect.check", str(MEMORY_BYTES), str(seconds)]
    with subprocess.Popen(  # noqa: S603  # our own module
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as child:
        try:
            # An address may hold a password: not on a command line.
            cast("IO[str]", child.stdin).write(location)
            cast("IO[str]", child.stdin).close()
            report = _told(cast("IO[str]", child.stdout), progress)
        except BaseException:
            child.kill()
            raise
    if report is not None:
        return report
    ended = f"checking it ended the process: signal {-child.returncode}, or {seconds} s of processor time"
    if child.returncode == _OUT_OF_MEMORY:
        ended = f"checking it takes more than {MEMORY_BYTES // 1024**2} MiB of memory"
    files, size = len(manifest.files) + 1, pool_bytes(manifest)
    problem = Problem(file=MANIFEST_FILE, message=ended)
    return CheckReport(files=files, bytes=size, batches=0, rows=0, problems=(problem,))


def _told(lines: Iterable[str], progress: Progress | None) -> CheckReport | None:
    """Return what the child reports, raise its error, or return None if it ended without a word."""
    for line in lines:
        told = json.loads(line)
        if "error" in told:
            raise getattr(errors, told["kind"], LabelPoolError)(**told["error"])
        if "report" in told:
            problems = tuple(Problem(**problem) for problem in told["report"].pop("problems"))
            return CheckReport(**told["report"], problems=problems)
        if progress is not None:
            progress(told["done"], told["total"])
    return None


def _limit(memory: int, seconds: int) -> None:
    """Limit this process, where the system can."""
    try:
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        return
    resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _child() -> int:
    location = sys.stdin.read()
    _limit(int(sys.argv[1]), int(sys.argv[2]))

    def tell(**facts: object) -> None:
        sys.stdout.write(f"{json.dumps(facts)}\n")
        sys.stdout.flush()

    try:
        report = _check_here(location, strict=True, progress=lambda done, total: tell(done=done, total=total))
    except LabelPoolError as error:
        tell(error={field: getattr(error, field) for field in _FIELDS}, kind=type(error).__name__)
    except MemoryError:
        return _OUT_OF_MEMORY
    else:
        tell(report=asdict(report))
    return 0


if __name__ == "__main__":
    sys.exit(_child())
