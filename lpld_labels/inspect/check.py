"""Check a pool from end to end: every byte, every row, every label.

Lists all damaged files instead of stopping at the first. A strict check, for untrusted pools, runs in a
child process with limits on memory and time, so that no file can crash the caller or exhaust its memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.errors import LabelPoolError, PoolCorruptError
from lpld_labels.exec.job import Progress
from lpld_labels.format import schema
from lpld_labels.format.digests import batch_digest, views_digest
from lpld_labels.format.limits import TABLE_GROWTH, TABLE_SPARE_BYTES
from lpld_labels.format.manifest import FILE_COMPONENTS, FileEntry, FileRole, Manifest
from lpld_labels.io.addresses import Location, is_address, local_path
from lpld_labels.io.disk_cache import DiskCache
from lpld_labels.io.parquet_files import VIEW_OWNERS, component_bytes, label_owners
from lpld_labels.io.parquet_pages import Chunk
from lpld_labels.io.storage import refuse_links_out
from lpld_labels.io.verified_parquet import VerifiedParquet
from lpld_labels.pool.index import Group
from lpld_labels.pool.packing import packed_images
from lpld_labels.pool.pool_files import PoolFiles, open_files, read_manifest, verified
from lpld_labels.pool.publish import coverage_of
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard import label_schema
from lpld_labels.pool.sizes import pool_bytes

_FOLDERS = tuple(f"{name}/" for name in schema.POOL_DIRECTORIES)
_WITH_CONTENTS: tuple[FileRole, ...] = ("views", "labels", "packed")  # Contents are checked after the bytes.
MEMORY_BYTES = 4 * 1024**3
"""Memory limit, on top of what the child uses at its start. Valid pools need a few hundred MB."""
SECONDS, SECONDS_PER_MEGABYTE = 600, 1
"""Limit on CPU time of a strict check: SECONDS, plus SECONDS_PER_MEGABYTE for each megabyte of the pool."""
_OUT_OF_MEMORY = 77


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is wrong with a file of the pool."""

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
    strict: check in a child process with limits; also report what is valid but never written by lpld-labels.
    progress: called with (bytes done, bytes in total).
    """
    if strict:
        return _check_in_child(os.fspath(location), read_manifest(open_files(location)), progress)
    return _check_here(location, strict=False, progress=progress)


def _check_here(location: Location, *, strict: bool, progress: Progress | None) -> CheckReport:
    with contextlib.ExitStack() as stack:
        cache = None
        if is_address(location):
            # Caches the files of a shard while it is checked, so that each is downloaded once.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lpld-labels-"))
            cache = DiskCache(Path(folder))
        return _Check(location, cache, progress).run(strict=strict)


class _Check:
    def __init__(self, location: Location, cache: DiskCache | None, progress: Progress | None) -> None:
        self._location, self._cache, self._progress = location, cache, progress
        self._files = open_files(location, cache)
        self._manifest = read_manifest(self._files)
        self._total = sum(entry.bytes for entry in self._manifest.files)
        self._done = self._batches = self._rows = 0
        self._damaged: set[str] = set()
        self._problems: list[Problem] = []
        self._components: dict[schema.Component, int] = dict.fromkeys(schema.COMPONENTS, 0)

    def run(self, *, strict: bool) -> CheckReport:
        manifest = self._manifest
        with self._blame(schema.MANIFEST_FILE):
            if not is_address(self._location):
                # The target of a symlink out of the pool may change.
                paths = [schema.MANIFEST_FILE, *(entry.path for entry in manifest.files)]
                refuse_links_out(str(local_path(self._location)), paths)
        if not self._problems:
            with contextlib.ExitStack() as stack:
                pool = self._opened(stack)
                self._check_packed(pool)
                self._check_shards(pool)
        self._check_names(strict=strict)
        if strict:
            self._record(schema.MANIFEST_FILE, _manifest_oddities(self._files, manifest))
        return CheckReport(
            files=len(manifest.files) + 1,
            bytes=pool_bytes(manifest),
            batches=self._batches,
            rows=self._rows,
            problems=tuple(self._problems),
        )

    @contextlib.contextmanager
    def _blame(self, file: str) -> Iterator[None]:
        """Record an error that the block raises as a problem of `file`."""
        try:
            yield
        except LabelPoolError as error:
            self._problems.append(Problem(file=file, message=str(error)))

    def _record(self, file: str, messages: Iterable[str]) -> None:
        with self._blame(file):
            for message in messages:
                self._problems.append(Problem(file=file, message=message))

    def _check_bytes(self, entry: FileEntry) -> None:
        try:
            for _ in verified(entry, self._files.chunks(entry), self._files.at(entry.path)):
                pass
        except PoolCorruptError as error:
            facts = f" (expected {error.expected}, got {error.got})" if error.got else ""
            self._damaged.add(entry.path)
            self._record(entry.path, [f"{error.problem}{facts}"])

    def _finish(self, entry: FileEntry) -> None:
        if self._cache is not None and entry.role in _WITH_CONTENTS:
            self._cache.drop(entry.digest)
        self._done += entry.bytes
        if self._progress is not None:
            self._progress(self._done, self._total)

    def _check_names(self, *, strict: bool) -> None:
        """Report unknown files in the pool's folders. strict: report unknown files and symlinks anywhere."""
        known = {schema.MANIFEST_FILE, schema.README_FILE, *(entry.path for entry in self._manifest.files)}
        for name, link in self._files.names():
            if name not in known and (strict or name.startswith(_FOLDERS)):
                self._record(
                    name, ["not part of the pool; finish the interrupted command, or delete the file"]
                )
            if strict and link:
                self._record(name, ["a symbolic link, not a file"])

    def _opened(self, stack: contextlib.ExitStack) -> PoolReader | None:
        manifest = self._manifest
        for entry in manifest.files:
            if entry.role not in _WITH_CONTENTS:
                self._check_bytes(entry)
                self._finish(entry)
        if self._damaged:
            return None
        for role, columns in (("batches", schema.BATCH_SCHEMA), ("images", schema.IMAGE_SCHEMA)):
            entry = next(entry for entry in manifest.files if entry.role == role)
            self._record(entry.path, _table(self._files, entry, columns))
        if self._problems:
            return None
        pool = None
        with self._blame(schema.MANIFEST_FILE):
            opened = stack.enter_context(PoolReader(self._location, check_sizes=False, cache=self._cache))
            with self._blame(manifest.files_of("images")[0].path):
                opened.images  # noqa: B018  # Reading the table checks it.
                pool = opened
        return pool

    def _check_shards(self, pool: PoolReader | None) -> None:
        counted = np.zeros(0 if pool is None else len(pool.images), np.int64)
        views = dict(enumerate(self._manifest.files_of("views")))
        for shard, labels in enumerate(self._manifest.files_of("labels")):
            entries = [views[shard], labels] if shard in views else [labels]
            for entry in entries:
                self._check_bytes(entry)
            if pool is not None:
                numbers = pool.index.in_shard(shard).tolist()
                sound = self._check_shard(pool, shard, numbers, views.get(shard), labels)
                if not self._damaged.intersection(entry.path for entry in entries):
                    self._batches += len(numbers)
                    self._rows += int(pool.index.rows[numbers].sum())
                for number in numbers if sound else ():
                    np.add.at(counted, pool.images_at(number), 1)
            for entry in entries:
                self._finish(entry)
        if pool is not None and not self._problems:
            for role, owner in FILE_COMPONENTS.items():
                self._components[owner] += sum(entry.bytes for entry in self._manifest.files_of(role))
            self._record(schema.MANIFEST_FILE, _manifest_problems(pool, self._components, counted))

    def _check_packed(self, pool: PoolReader | None) -> None:
        packed = None if pool is None else packed_images(pool)
        for entry in self._manifest.files_of("packed"):
            self._check_bytes(entry)
            if packed is not None and entry.path not in self._damaged:
                self._record(entry.path, packed.problems(entry))
            self._finish(entry)

    def _check_shard(
        self, pool: PoolReader, shard: int, numbers: list[int], views: FileEntry | None, labels: FileEntry
    ) -> bool:
        """Check the contents of a shard's undamaged files; return whether no problem was found."""
        before = len(self._problems)
        intact = views is None or views.path not in self._damaged
        if intact:
            blamed = self._manifest.files_of("batches")[0] if views is None else views
            with self._blame(blamed.path):
                if views is not None:
                    # Pages are checked before Arrow decodes them.
                    self._add_bytes(pool.open_parquet(views, schema.VIEW_SCHEMA).chunks(), views, VIEW_OWNERS)
                self._record(blamed.path, _view_problems(pool, numbers))
        digests = intact and len(self._problems) == before
        if labels.path not in self._damaged:
            self._record(labels.path, self._label_pages(pool, labels, shard))
            self._record(labels.path, _label_problems(pool, numbers, digests=digests))
        return intact and len(self._problems) == before

    def _label_pages(self, pool: PoolReader, entry: FileEntry, shard: int) -> Iterator[str]:
        """Yield how a labels file, read through its Parquet footer, differs from the batch index."""
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
            yield "row groups are not where the batch index says"
            return
        for number, group in enumerate(groups):
            problem = _wrong_keys(pool, file, shard, number)
            problem = problem or _other_payload(pool, file, shard, number, group)
            if problem is not None:
                yield problem
                return

    def _add_bytes(
        self, chunks: list[Chunk], entry: FileEntry, owners: Mapping[str, schema.Component]
    ) -> None:
        parts = component_bytes(((chunk.column, chunk.bytes) for chunk in chunks), entry.bytes, owners)
        for name, size in parts.items():
            self._components[name] += size


def _table(files: PoolFiles, entry: FileEntry, columns: pa.Schema) -> Iterator[str]:
    """Check the pages of the batch index or image table before decoding. Yield the problem, if any."""
    chunks = VerifiedParquet(files.open(entry), entry, columns).chunks()
    limit, size = TABLE_GROWTH * entry.bytes + TABLE_SPARE_BYTES, sum(chunk.plain for chunk in chunks)
    if size > limit:
        yield f"table is far larger than its file (expected at most {limit} bytes, got {size})"


def _view_problems(pool: PoolReader, numbers: list[int]) -> Iterator[str]:
    """Yield the problem of the first batch with views that are invalid or contradict index or image table."""
    for number in numbers:
        try:
            # Constructing the record again validates it by all rules for writers.
            replace(pool.views_at(number))
        except LabelPoolError as error:
            yield f"{pool.index.key(number)}: {error}"
            # Other batches of the same row group would have the same problem.
            return


def _other_payload(
    pool: PoolReader, file: VerifiedParquet, shard: int, number: int, group: Group
) -> str | None:
    """Return a problem if a row group's payload differs between footer and batch index, else None."""
    direct = pool.label_files.block(shard, group)
    table = file.read(number, list(direct))
    for name, array in direct.items():
        other = table[name].combine_chunks()
        if not other.equals(array.cast(other.type)):
            return f"column '{name}' differs between footer and batch index, in row group {number}"
    return None


def _wrong_keys(pool: PoolReader, file: VerifiedParquet, shard: int, group: int) -> str | None:
    """Return a problem if the key columns of a row group differ from the batch index, else None."""
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
            return f"column '{name}' differs from the batch index, first at row {first + row}"
    return None


def _label_problems(pool: PoolReader, numbers: list[int], *, digests: bool) -> Iterator[str]:
    """Yield the problems of batches with wrong labels. digests: also check the digest of each batch."""
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
    pool: PoolReader, components: dict[schema.Component, int], counted: npt.NDArray[np.int64]
) -> Iterator[str]:
    """Yield a problem for each wrong total in the manifest. counted: how many views of each image exist."""
    manifest = pool.manifest
    facts = {
        "content_digest": (manifest.content_digest, pool.digest_of(pool.index.digests())),
        "coverage": (manifest.coverage, coverage_of(counted, pool.images.classes)),
        "components": (manifest.components, components),
    }
    for name, (stated, got) in facts.items():
        if stated != got:
            yield f"field '{name}' is wrong (expected {stated}, got {got})"


def _manifest_oddities(files: PoolFiles, manifest: Manifest) -> Iterator[str]:
    """Yield what the format allows but lpld-labels never writes. This changes no label, but may hide data."""
    if json.loads(files.manifest_text()) != json.loads(manifest.dump()):
        yield "holds fields that readers of this version ignore ('must_understand' is false)"
    resize = manifest.header.augmentation.resize
    if resize not in schema.RESIZE_CODES:
        yield f"field 'augmentation.resize' names an unknown resize code: {resize[:100]!r}"


def _check_in_child(location: str, manifest: Manifest, progress: Progress | None) -> CheckReport:
    """Check a pool strictly in a child process; if the child dies, report a problem of the pool."""
    seconds = SECONDS + SECONDS_PER_MEGABYTE * pool_bytes(manifest) // 10**6
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
    words = [sys.executable, "-m", "lpld_labels.inspect.check", str(MEMORY_BYTES), str(seconds)]
    with subprocess.Popen(  # noqa: S603  # our own module
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as child:
        try:
            # Use stdin, not the command line: an address may contain a password.
            cast("IO[str]", child.stdin).write(location)
            cast("IO[str]", child.stdin).close()
            for line in cast("IO[str]", child.stdout):
                message = json.loads(line)
                if isinstance(message, dict):
                    return msgspec.convert(message, CheckReport)
                if isinstance(message, str):
                    return _failed(manifest, message)
                if progress is not None:
                    progress(*message)
        except BaseException:
            child.kill()
            raise
    how = f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"
    ended = f"the check ended with {how} (limit: {seconds} s of processor time)"
    if child.returncode == _OUT_OF_MEMORY:
        ended = f"the check needs more than {MEMORY_BYTES // 1024**2} MiB of memory"
    return _failed(manifest, ended)


def _failed(manifest: Manifest, message: str) -> CheckReport:
    problem = Problem(file=schema.MANIFEST_FILE, message=message)
    files, size = len(manifest.files) + 1, pool_bytes(manifest)
    return CheckReport(files=files, bytes=size, batches=0, rows=0, problems=(problem,))


def _limit(memory: int, seconds: int) -> None:
    try:
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        return
    resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _child() -> int:
    """Check the pool that stdin names; write lines of JSON: [done, total], then the report or an error."""
    location = sys.stdin.read()
    _limit(int(sys.argv[1]), int(sys.argv[2]))

    def send(message: object) -> None:
        sys.stdout.write(f"{json.dumps(message)}\n")
        sys.stdout.flush()

    try:
        report = _check_here(location, strict=True, progress=lambda done, total: send([done, total]))
        send(asdict(report))
    except LabelPoolError as error:
        send(str(error))
    except MemoryError:
        return _OUT_OF_MEMORY
    return 0


if __name__ == "__main__":
    sys.exit(_child())
