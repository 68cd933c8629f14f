"""Prefetch byte ranges of remote files.

`DirectRanges` keeps them in memory, for a single pass over a pool. `CachedRanges` keeps them on disk in
blocks, for training, which reads the same labels every epoch.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.io.disk_cache import DiskCache
from lpld_labels.io.random_access import LocalFile, retry_corrupt
from lpld_labels.io.remote import RemoteStore
from lpld_labels.io.retry import REQUESTS_AT_ONCE

T = TypeVar("T")

BLOCK_BYTES = 1024 * 1024  # On disk. Small blocks arrive in the order in which they are needed.
_MOST_OPEN_BLOCKS = 4096
_MOST_OPEN_OF_MANY = 512  # If the pool exceeds the cache: open blocks use disk space after eviction.
_REQUEST_BYTES = 4 * 1024 * 1024
_WINDOW_BYTES = 64 * 1024 * 1024
_GAP = 16 * 1024  # Bytes between two joined ranges. Fetching them costs less than another request.


class Range(NamedTuple):
    """Bytes [start, stop) of a file."""

    path: str
    start: int
    stop: int

    def covers(self, path: str, start: int, stop: int) -> bool:
        return self.path == path and self.start <= start and stop <= self.stop


def coalesced(ranges: Iterable[Range], limit: int) -> Iterator[Range]:
    """Join consecutive ranges of a file if the gap is small. Joined ranges have at most `limit` bytes."""
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
    """Fetches ranges in the background, in order, several at a time. Errors surface on read.

    window: limit on the bytes fetched ahead of the reader. None: no limit, and results are not kept.
    """

    def __init__(self, fetch: Callable[[Range], T], ranges: Iterable[Range], *, window: int | None) -> None:
        self._fetch, self._ranges, self._window = fetch, iter(ranges), window
        self._ahead: deque[tuple[Range, Future[T]]] = deque()
        self._bytes_ahead = 0
        self._running = 0
        self._filling = False
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._threads = ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="fetch")
        # Fill in a thread, because finding the first ranges can take a while.
        self._threads.submit(self._fill)

    def take(self, path: str, start: int, stop: int) -> tuple[Range, Future[T]] | None:
        """Return the request that covers bytes [start, stop), if any, and drop all earlier requests."""
        with self._lock:
            if not any(one.covers(path, start, stop) for one, _ in self._ahead):
                return None
            while not self._ahead[0][0].covers(path, start, stop):
                self._pop().cancel()
            self._fill()
            return self._ahead[0]

    def advance(self) -> None:
        """Advance the window by one range, for readers that do not call `take`."""
        if self._window is not None:
            with self._lock:
                if self._ahead:
                    self._pop()
                self._fill()

    def forget(self, path: str, start: int, stop: int) -> None:
        with self._lock:
            while self._ahead and self._ahead[0][0].covers(path, start, stop):
                self._pop()

    def stop(self, *, wait: bool) -> None:
        """Send no more requests. wait: block until the requests in flight have finished."""
        self._ranges = iter(())
        if self._process == os.getpid():
            self._threads.shutdown(wait=wait, cancel_futures=True)

    def _pop(self) -> Future[T]:
        one, future = self._ahead.popleft()
        self._bytes_ahead -= one.stop - one.start
        return future

    def _fill(self) -> None:
        with self._lock:
            if self._filling:
                return
            self._filling = True
            try:
                while self._running < 2 * REQUESTS_AT_ONCE and self._bytes_ahead <= (self._window or 0):
                    one = next(self._ranges, None)
                    if one is None:
                        return
                    self._submit(one)
            except RuntimeError:
                # `stop` was called, or the interpreter is shutting down.
                self._ranges = iter(())
            finally:
                self._filling = False

    def _submit(self, one: Range) -> None:
        future = self._threads.submit(self._fetch, one)
        if self._window is not None:
            self._ahead.append((one, future))
            self._bytes_ahead += one.stop - one.start
        self._running += 1
        future.add_done_callback(self._done)

    def _done(self, future: Future[T]) -> None:
        with self._lock:
            self._running -= 1
            self._fill()


class DirectRanges:
    """Byte ranges of a store's files, prefetched into memory."""

    def __init__(self, store: RemoteStore) -> None:
        self._store = store
        self._prefetcher: Prefetcher[pa.Buffer] | None = None

    def prefetch(self, ranges: Iterable[Range]) -> None:
        self.close()
        joined = coalesced(ranges, _REQUEST_BYTES)
        self._prefetcher = Prefetcher(lambda one: self._store.read_range(*one), joined, window=_WINDOW_BYTES)

    def read(self, path: str, start: int, stop: int) -> pa.Buffer:
        """Return bytes [start, stop) of a file; fetch them now if they were not prefetched."""
        found = self._prefetcher.take(path, start, stop) if self._prefetcher is not None else None
        if found is None:
            return self._store.read_range(path, start, stop)
        joined, future = found
        return future.result().slice(start - joined.start, stop - start)

    def forget(self, path: str, start: int, stop: int) -> None:
        if self._prefetcher is not None:
            self._prefetcher.forget(path, start, stop)

    def close(self) -> None:
        if self._prefetcher is not None:
            self._prefetcher.stop(wait=False)
            self._prefetcher = None


@dataclass(frozen=True, kw_only=True, eq=False)
class CutFile:
    """A file split into parts. digest: file digest. starts: int64 [n], offsets. stop: end of last part."""

    digest: str
    starts: npt.NDArray[np.int64]
    stop: int

    def blocks(self, size: int) -> npt.NDArray[np.int64]:
        """Group parts into blocks of up to `size` bytes; a larger part is one block. Return block offsets."""
        if not len(self.starts):
            return np.array([0, self.stop], np.int64)
        chosen = [int(self.starts[0])]
        for start, following in itertools.pairwise([*self.starts.tolist(), self.stop]):
            if following - chosen[-1] > size and start != chosen[-1]:
                chosen.append(start)
        return np.array([*chosen, self.stop], np.int64)


class CachedRanges:
    """Byte ranges of a store's files in a disk cache. check: function that refuses corrupt bytes.

    If the cache can hold all files, a block has about a megabyte, because all of its parts will be read.
    Otherwise, a block is one part of a file: further parts would be evicted before they are needed.
    """

    _prefetcher: Prefetcher[str | None] | None = None

    def __init__(
        self,
        store: RemoteStore,
        cache: DiskCache,
        files: Mapping[str, CutFile],
        *,
        check: Callable[[Range, pa.Buffer], None],
    ) -> None:
        self._fits = sum(file.stop for file in files.values()) <= cache.limit
        self._window = None if self._fits else cache.limit // 2
        self._blocks = _Blocks(store, cache, files, check, BLOCK_BYTES if self._fits else 0)
        most = _MOST_OPEN_BLOCKS if self._fits else _MOST_OPEN_OF_MANY
        files_allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files_allowed != resource.RLIM_INFINITY:
            most = min(most, files_allowed // 2)
        self._most_open = most
        self._open: OrderedDict[Range, LocalFile] = OrderedDict()
        self._lock = threading.Lock()

    def prefetch(self, ranges: Iterable[Range]) -> None:
        """Fetch the blocks of `ranges` in the background, in order, without overfilling the cache."""
        self.close()
        # The threads must not keep this object alive: fetching stops when it is garbage-collected.
        fetch, opened = self._blocks.fetch, self._open
        self._prefetcher = Prefetcher(
            lambda block: None if block in opened else fetch(block),
            self._blocks.of(ranges, once=self._fits),
            window=self._window,
        )

    def read(self, path: str, start: int, stop: int) -> pa.Buffer:
        """Return bytes [start, stop) of a file, which must be in one block."""
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
        if self._prefetcher is not None:
            self._prefetcher.advance()

    def forget(self, path: str, start: int, stop: int) -> None:
        """Drop the block with the corrupt bytes [start, stop) from memory and disk."""
        del stop
        block = self._blocks.at(path, start)
        with self._lock:
            self._open.pop(block, None)
        self._blocks.cache.drop(self._blocks.name(block))

    def close(self, *, wait: bool = True) -> None:
        if self._prefetcher is not None:
            self._prefetcher.stop(wait=wait)
            self._prefetcher = None

    def __del__(self) -> None:
        self.close(wait=False)


@dataclass(frozen=True, eq=False)
class _Blocks:
    """The blocks of files, see `CachedRanges`. size: maximum bytes per block, or 0 for one part per block."""

    store: RemoteStore
    cache: DiskCache
    files: Mapping[str, CutFile]
    check: Callable[[Range, pa.Buffer], None]
    size: int

    @cached_property
    def _cuts(self) -> dict[str, npt.NDArray[np.int64]]:
        return {path: file.blocks(self.size) for path, file in self.files.items()}

    def at(self, path: str, start: int) -> Range:
        cuts = self._cuts[path]
        number = int(np.searchsorted(cuts, start, side="right")) - 1
        return Range(path, int(cuts[number]), int(cuts[number + 1]))

    def of(self, ranges: Iterable[Range], *, once: bool) -> Iterator[Range]:
        """Yield the block of each range. once: never repeat a block, and stop after the last new one."""
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

    def fetch(self, block: Range) -> str:

        def verified() -> pa.Buffer:
            data = self.store.read_range(*block)
            self.check(block, data)
            return data

        size = block.stop - block.start
        return str(self.cache.get(self.name(block), size, lambda: [retry_corrupt(verified)]))

    def open(self, block: Range) -> LocalFile:
        while True:
            path = self.fetch(block)
            # Another process may evict the block before it is opened.
            with contextlib.suppress(FileNotFoundError):
                return LocalFile(path)

    def name(self, block: Range) -> str:
        return f"{self.files[block.path].digest}-{block.start}-{block.stop}"
