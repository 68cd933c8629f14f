"""Ranges of remote files, fetched before they are read.

`DirectRanges` keeps them in memory, for a single pass through a pool. `CachedRanges` keeps them on disk in
blocks, for training, which reads the same labels every epoch.
"""

from __future__ import annotations

import itertools
import os
import resource
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.errors import LabelPoolError
from lpld_labels.io.disk_cache import DiskCache
from lpld_labels.io.random_access import LocalFile
from lpld_labels.io.remote import RemoteStore
from lpld_labels.io.retry import REQUESTS_AT_ONCE

T = TypeVar("T")

BLOCK_BYTES = 1024 * 1024
"""Size of a block on disk. Small blocks arrive in the order in which they are needed."""
_MOST_OPEN_BLOCKS = 4096
_MOST_OPEN_OF_MANY = 512
"""The limit if the cache is smaller than the pool: an open block takes disk space even after its eviction."""
_REQUEST_BYTES = 4 * 1024 * 1024
_WINDOW_BYTES = 64 * 1024 * 1024
_GAP = 16 * 1024
"""Bytes between two ranges that cost less than another request."""


class Range(NamedTuple):
    """Bytes [start, stop) of a file."""

    path: str
    start: int
    stop: int

    def covers(self, path: str, start: int, stop: int) -> bool:
        return self.path == path and self.start <= start and stop <= self.stop


def coalesced(ranges: Iterable[Range], limit: int) -> Iterator[Range]:
    """Join ranges that follow each other closely in one file, up to `limit` bytes."""
    joined: Range | None = None
    for one in ranges:
        if joined is None:
            joined = one
        elif (
            one.path == joined.path
            and joined.start <= one.start <= joined.stop + _GAP
            and one.stop - joined.start <= limit
        ):
            joined = joined._replace(stop=max(joined.stop, one.stop))
        else:
            yield joined
            joined = one
    if joined is not None:
        yield joined


class Prefetcher(Generic[T]):
    """Fetches ranges in the background, in order and several at a time.

    fetch: fetches one; errors surface when the range is read. skip: ranges that need not be fetched.
    window: bytes that may be fetched and neither taken nor passed by `advance`; None for no limit, and then
        no results are kept.
    """

    def __init__(
        self,
        fetch: Callable[[Range], T],
        ranges: Iterable[Range],
        *,
        window: int | None,
        skip: Callable[[Range], bool] = lambda one: False,
    ) -> None:
        self._fetch, self._ranges, self._window, self._skip = fetch, iter(ranges), window, skip
        self._ahead: deque[tuple[Range, Future[T] | None]] = deque()
        self._bytes_ahead = 0
        self._running = 0
        self._filling = False
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._threads = ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="fetch")
        # In a thread, because finding the first ranges can take a while.
        self._threads.submit(self._fill)

    def take(self, path: str, start: int, stop: int) -> tuple[Range, Future[T] | None] | None:
        """Return the request that covers these bytes, if there is one, and drop those before it."""
        with self._lock:
            places = (n for n, (one, _) in enumerate(self._ahead) if one.covers(path, start, stop))
            found = next(places, None)
            if found is None:
                return None
            for _ in range(found):
                if (passed := self._pop()) is not None:
                    passed.cancel()
            self._fill()
            return self._ahead[0]

    def advance(self) -> None:
        """Advance the window by a range, for readers that do not take ranges from here."""
        if self._window is not None:
            with self._lock:
                if self._ahead:
                    self._pop()
                self._fill()

    def forget(self, path: str, start: int, stop: int) -> None:
        """Drop results with these bytes."""
        with self._lock:
            while self._ahead and self._ahead[0][0].covers(path, start, stop):
                self._pop()

    def stop(self, *, wait: bool = True) -> None:
        """Send no more requests. wait: until those in flight have ended."""
        self._ranges = iter(())
        if self._process == os.getpid():
            self._threads.shutdown(wait=wait, cancel_futures=True)

    def _pop(self) -> Future[T] | None:
        one, future = self._ahead.popleft()
        self._bytes_ahead -= one.stop - one.start
        return future

    def _fill(self) -> None:
        """Begin requests until enough are in flight or the window is full."""
        with self._lock:
            if self._filling:
                return
            self._filling = True
            try:
                while self._running < 2 * REQUESTS_AT_ONCE and self._bytes_ahead <= (self._window or 0):
                    one = next(self._ranges, None)
                    if one is None:
                        return
                    self._begin(one)
            except RuntimeError:
                # `stop` was called, or the interpreter is shutting down.
                self._ranges = iter(())
            finally:
                self._filling = False

    def _begin(self, one: Range) -> None:
        future = None if self._skip(one) else self._threads.submit(self._fetch, one)
        if self._window is not None:
            self._ahead.append((one, future))
            self._bytes_ahead += one.stop - one.start
        if future is not None:
            self._running += 1
            future.add_done_callback(self._done)

    def _done(self, future: Future[T]) -> None:
        with self._lock:
            self._running -= 1
            self._fill()


class DirectRanges:
    """Ranges of the files of a store, kept in memory until they are read."""

    def __init__(self, store: RemoteStore, *, window: int = _WINDOW_BYTES) -> None:
        self._store = store
        self._window = window
        self._prefetcher: Prefetcher[pa.Buffer] | None = None

    def prefetch(self, ranges: Iterable[Range]) -> None:
        """Fetch these in the background, in order and in large requests, as far as the window reaches."""
        self.close()
        joined = coalesced(ranges, _REQUEST_BYTES)
        self._prefetcher = Prefetcher(lambda one: self._store.read_range(*one), joined, window=self._window)

    def read(self, path: str, start: int, stop: int) -> pa.Buffer:
        """Return bytes that were prefetched, or fetch them now."""
        found = self._prefetcher.take(path, start, stop) if self._prefetcher is not None else None
        if found is None or found[1] is None:
            return self._store.read_range(path, start, stop)
        return found[1].result().slice(start - found[0].start, stop - start)

    def forget(self, path: str, start: int, stop: int) -> None:
        """Fetch these bytes again when they are read next: they were corrupt."""
        if self._prefetcher is not None:
            self._prefetcher.forget(path, start, stop)

    def close(self) -> None:
        """Stop fetching."""
        if self._prefetcher is not None:
            self._prefetcher.stop(wait=False)
            self._prefetcher = None


@dataclass(frozen=True, kw_only=True, eq=False)
class CutFile:
    """A file in parts, each read as one. digest: of the file. starts: int64 [n]; stop: of the last part."""

    digest: str
    starts: npt.NDArray[np.int64]
    stop: int

    def blocks(self, size: int) -> npt.NDArray[np.int64]:
        """Return the starts of blocks of whole parts, at most about `size` bytes, and the end of the last."""
        if not len(self.starts):
            return np.array([0, self.stop], np.int64)
        chosen = [int(self.starts[0])]
        for start, following in itertools.pairwise([*self.starts.tolist(), self.stop]):
            if following - chosen[-1] > size and start != chosen[-1]:
                chosen.append(start)
        return np.array([*chosen, self.stop], np.int64)


class CachedRanges:
    """Ranges of files of a store, through a cache on disk.

    files: those that may be read, by path. check: refuses corrupt bytes of a range (LabelPoolError).

    If the cache can hold everything, a block is about a megabyte, because all of it will be read. If not, a
    block is the smallest part that is ever read, because the rest would be evicted before its turn.
    """

    def __init__(
        self,
        store: RemoteStore,
        cache: DiskCache,
        files: Mapping[str, CutFile],
        *,
        check: Callable[[Range, pa.Buffer], None],
    ) -> None:
        self._whole = sum(file.stop for file in files.values()) <= cache.limit
        self._blocks = _Blocks(store, cache, files, check, BLOCK_BYTES if self._whole else 0)
        self._window = None if self._whole else cache.limit // 2
        self._open: OrderedDict[Range, LocalFile] = OrderedDict()
        files_allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = _MOST_OPEN_BLOCKS if self._whole else _MOST_OPEN_OF_MANY
        self._most_open = most if files_allowed == resource.RLIM_INFINITY else min(files_allowed // 2, most)
        self._lock = threading.Lock()
        self._prefetcher: Prefetcher[os.PathLike[str]] | None = None

    def prefetch(self, ranges: Iterable[Range]) -> None:
        """Fetch the blocks of these in the background, in order, as far as the cache reaches."""
        self.close()
        blocks = self._blocks.of(ranges, once=self._whole)
        # The threads must not keep this object alive: fetching stops when it is garbage-collected.
        self._prefetcher = Prefetcher(
            self._blocks.fetch, blocks, window=self._window, skip=self._open.__contains__
        )
        self._stopper = weakref.finalize(self, self._prefetcher.stop, wait=False)
        self._stopper.atexit = False

    def read(self, path: str, start: int, stop: int) -> pa.Buffer:
        """Return bytes of one block."""
        block = self._blocks.at(path, start)
        with self._lock:
            file = self._open.get(block)
        if file is None:
            file = self._blocks.open(block)
            with self._lock:
                self._open[block] = file
                while len(self._open) > self._most_open:
                    self._open.popitem(last=False)
        return file.read(start - block.start, stop - start)

    def advance(self) -> None:
        """Advance the prefetch window: the next range is being read, here or in another process."""
        if self._prefetcher is not None:
            self._prefetcher.advance()

    def forget(self, path: str, start: int, stop: int) -> None:
        """Drop the block of these bytes from memory and disk: they were corrupt."""
        del stop
        block = self._blocks.at(path, start)
        with self._lock:
            self._open.pop(block, None)
        self._blocks.drop(block)

    def close(self) -> None:
        """Stop fetching."""
        if self._prefetcher is not None:
            self._stopper.detach()
            self._prefetcher.stop()
            self._prefetcher = None


class _Blocks:
    """The blocks of files: where they are, and how they come into the cache. See `CachedRanges`."""

    def __init__(
        self,
        store: RemoteStore,
        cache: DiskCache,
        files: Mapping[str, CutFile],
        check: Callable[[Range, pa.Buffer], None],
        size: int,
    ) -> None:
        self._store, self._cache, self._files, self._check = store, cache, files, check
        self._cuts = {path: file.blocks(size) for path, file in files.items()}

    def at(self, path: str, start: int) -> Range:
        """Return the block that holds a byte of a file."""
        cuts = self._cuts[path]
        number = int(np.searchsorted(cuts, start, side="right")) - 1
        return Range(path, int(cuts[number]), int(cuts[number + 1]))

    def of(self, ranges: Iterable[Range], *, once: bool) -> Iterator[Range]:
        """Yield the blocks of ranges. once: each block once, and stop after all, as ranges may be endless."""
        count = sum(len(cuts) - 1 for cuts in self._cuts.values())
        seen: set[Range] = set()
        for one in ranges:
            if len(seen) == count:
                return
            block = self.at(one.path, one.start)
            if block not in seen:
                yield block
            if once:
                seen.add(block)

    def fetch(self, block: Range) -> os.PathLike[str]:
        """Return the file of a block in the cache, fetched unless it is there."""
        return self._cache.get(self._name(block), block.stop - block.start, lambda: (self._checked(block),))

    def _checked(self, block: Range) -> pa.Buffer:
        """Fetch a block; once more if it arrives corrupt."""
        data = self._store.read_range(*block)
        try:
            self._check(block, data)
        except LabelPoolError:
            data = self._store.read_range(*block)
            self._check(block, data)
        return data

    def open(self, block: Range) -> LocalFile:
        """Open a block, fetched unless it is there."""
        while True:
            try:
                return LocalFile(os.fspath(self.fetch(block)))
            except FileNotFoundError:
                # Another process has just evicted it.
                continue

    def drop(self, block: Range) -> None:
        """Delete a block from the cache."""
        self._cache.drop(self._name(block))

    def _name(self, block: Range) -> str:
        return f"{self._files[block.path].digest}-{block.start}-{block.stop}"
