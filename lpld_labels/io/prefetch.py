"""Ranges of remote files, fetched before they are read.

`DirectRanges` keeps them in memory: for work that goes through a pool once. `CachedRanges` keeps them on disk
in blocks: for training, which comes back to the same labels epoch after epoch.
"""

from __future__ import annotations

import itertools
import os
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
from lpld_labels.io.remote import RemoteStore
from lpld_labels.io.retry import REQUESTS_AT_ONCE

T = TypeVar("T")

BLOCK_BYTES = 1024 * 1024
"""Of a block on disk. Small blocks arrive in the order in which they are needed."""
_MOST_OPEN_BLOCKS = 4096
_MOST_OPEN_OF_MANY = 512
"""Where the cache cannot hold everything: an open block takes its place on disk even when it had to go."""
_REQUEST_BYTES = 4 * 1024 * 1024
_WINDOW_BYTES = 64 * 1024 * 1024
_GAP = 16 * 1024
"""Bytes between two ranges that are cheaper to fetch than a request of their own."""


class Range(NamedTuple):
    """Bytes [start, stop) of a file."""

    path: str
    start: int
    stop: int


def coalesced(ranges: Iterable[Range], limit: int) -> Iterator[Range]:
    """Join ranges that follow each other closely in one file, up to `limit` bytes."""
    joined: Range | None = None
    for one in ranges:
        if (
            joined is not None
            and one.path == joined.path
            and joined.start <= one.start <= joined.stop + _GAP
            and one.stop - joined.start <= limit
        ):
            joined = joined._replace(stop=max(joined.stop, one.stop))
            continue
        if joined is not None:
            yield joined
        joined = one
    if joined is not None:
        yield joined


class Prefetcher(Generic[T]):
    """Fetches ranges in the background, in order and several at a time.

    fetch: gets one; an error surfaces when the range is read. skip: ranges that need not be fetched.
    window: bytes that may be fetched and neither taken nor passed by `advance`; None for no limit, and then
        nothing is kept to be taken.
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
        # In a thread of its own: to find the first ranges can take a while.
        self._threads.submit(self._fill)

    def take(self, path: str, start: int, stop: int) -> tuple[Range, Future[T] | None] | None:
        """Return the request that covers these bytes, if there is one, and give up those before it."""
        with self._lock:
            places = (n for n, (one, _) in enumerate(self._ahead) if _inside(one, path, start, stop))
            found = next(places, None)
            if found is None:
                return None
            for _ in range(found):
                if (passed := self._pop()) is not None:
                    passed.cancel()
            self._fill()
            return self._ahead[0]

    def advance(self) -> None:
        """Say that the next range is being read, for those who do not take it from here."""
        if self._window is None:
            return
        with self._lock:
            if self._ahead:
                self._pop()
            self._fill()

    def forget(self, path: str, start: int, stop: int) -> None:
        """Do not give out these bytes again."""
        with self._lock:
            while self._ahead and _inside(self._ahead[0][0], path, start, stop):
                self._pop()

    def stop(self, *, wait: bool = True) -> None:
        """Begin no more requests. wait: until those under way have ended."""
        self._ranges = iter(())
        if self._process == os.getpid():
            self._threads.shutdown(wait=wait, cancel_futures=True)

    def _pop(self) -> Future[T] | None:
        one, future = self._ahead.popleft()
        self._bytes_ahead -= one.stop - one.start
        return future

    def _fill(self) -> None:
        """Begin requests until enough are under way or the window is full."""
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
                # `stop` was called, or the interpreter is about to end.
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


def _inside(held: Range, path: str, start: int, stop: int) -> bool:
    return held.path == path and held.start <= start and stop <= held.stop


class DirectRanges:
    """Ranges of the files of a store, kept in memory until they are read."""

    def __init__(self, store: RemoteStore, *, window: int = _WINDOW_BYTES) -> None:
        self._store = store
        self._window = window
        self._prefetcher: Prefetcher[pa.Buffer] | None = None

    def prefetch(self, ranges: Iterable[Range]) -> None:
        """Begin to fetch these, in their order, in large requests, as far as the window reaches."""
        self.close()
        joined = coalesced(ranges, _REQUEST_BYTES)
        self._prefetcher = Prefetcher(lambda one: self._store.read_range(*one), joined, window=self._window)

    def read(self, path: str, start: int, stop: int) -> pa.Buffer:
        """Return bytes that were fetched ahead, or fetch them now."""
        found = self._prefetcher.take(path, start, stop) if self._prefetcher is not None else None
        if found is None or found[1] is None:
            return self._store.read_range(path, start, stop)
        return found[1].result().slice(start - found[0].start, stop - start)

    def forget(self, path: str, start: int, stop: int) -> None:
        """Fetch these bytes anew when they are read next: they were damaged."""
        if self._prefetcher is not None:
            self._prefetcher.forget(path, start, stop)

    def close(self) -> None:
        """Stop fetching."""
        if self._prefetcher is not None:
            self._prefetcher.stop(wait=False)
            self._prefetcher = None


@dataclass(frozen=True, kw_only=True, eq=False)
class CutFile:
    """A file in blocks. digest: of the file. starts: int64 [n], where parts begin; stop: where the last ends.

    A part is what is asked for as one; blocks are made of whole ones.
    """

    digest: str
    starts: npt.NDArray[np.int64]
    stop: int

    def blocks(self, size: int) -> npt.NDArray[np.int64]:
        """Return where blocks of at least one part and at most about `size` bytes begin, and the end."""
        if not len(self.starts):
            return np.array([0, self.stop], np.int64)
        chosen = [int(self.starts[0])]
        for start, following in itertools.pairwise([*self.starts.tolist(), self.stop]):
            if following - chosen[-1] > size and start != chosen[-1]:
                chosen.append(start)
        return np.array([*chosen, self.stop], np.int64)


class CachedRanges:
    """Ranges of files of a store, through a cache on disk.

    files: those that may be asked for, by path. check: refuses bytes of a range that are not what they
    should be (LabelPoolError), as they arrive.

    Where the cache can hold everything, a block is about a megabyte: all of it will be asked for. Where it
    cannot, a block is the smallest part that is ever asked for: the rest would be gone before its turn.
    """

    def __init__(
        self,
        store: RemoteStore,
        cache: DiskCache,
        files: Mapping[str, CutFile],
        *,
        check: Callable[[Range, pa.Buffer], None],
    ) -> None:
        self._store = store
        self._cache = cache
        self._check = check
        total = sum(file.stop for file in files.values())
        size = BLOCK_BYTES if total <= cache.limit else 0
        self._files = files
        self._cuts = {path: file.blocks(size) for path, file in files.items()}
        self._window = None if size else cache.limit // 2
        self._open: OrderedDict[Range, _OpenBlock] = OrderedDict()
        self._most_open = min(_open_blocks_allowed(), _MOST_OPEN_BLOCKS if size else _MOST_OPEN_OF_MANY)
        self._lock = threading.Lock()
        self._prefetcher: Prefetcher[object] | None = None

    def prefetch(self, ranges: Iterable[Range]) -> None:
        """Fetch the blocks of these in the background, in this order, as far as the cache reaches."""
        self.close()
        # Threads do not keep this alive: what they fetch is for nobody once nobody can read it.
        fetch = weakref.WeakMethod(self._fetch)
        count = sum(len(cuts) - 1 for cuts in self._cuts.values())
        self._prefetcher = Prefetcher(
            lambda block: now(block) if (now := fetch()) is not None else None,
            _blocks(weakref.WeakMethod(self._block), ranges, count if self._window is None else None),
            window=self._window,
            skip=self._open.__contains__,
        )
        self._gone = weakref.finalize(self, self._prefetcher.stop, wait=False)
        self._gone.atexit = False

    def read(self, path: str, start: int, stop: int) -> pa.Buffer:
        """Return bytes of one block."""
        block = self._block(path, start)
        with self._lock:
            held = self._open.get(block)
        if held is None:
            held = self._opened(block)
            with self._lock:
                self._open[block] = held
                while len(self._open) > self._most_open:
                    self._open.popitem(last=False)
        return held.read(start - block.start, stop - start)

    def advance(self) -> None:
        """Say that the next of the prefetched ranges is being read, here or in another process."""
        if self._prefetcher is not None:
            self._prefetcher.advance()

    def forget(self, path: str, start: int, stop: int) -> None:
        """Drop the block of these bytes from memory and disk: they were damaged."""
        del stop
        block = self._block(path, start)
        with self._lock:
            self._open.pop(block, None)
        self._cache.drop(self._name(block))

    def close(self) -> None:
        """Stop fetching."""
        if self._prefetcher is not None:
            self._gone.detach()
            self._prefetcher.stop()
            self._prefetcher = None

    def _block(self, path: str, start: int) -> Range:
        """Return the block that holds a byte of a file."""
        cuts = self._cuts[path]
        number = int(np.searchsorted(cuts, start, side="right")) - 1
        return Range(path, int(cuts[number]), int(cuts[number + 1]))

    def _fetch(self, block: Range) -> os.PathLike[str]:
        """Return the file that holds a block, fetched unless it is there."""
        size = block.stop - block.start
        return self._cache.get(self._name(block), size, lambda: (self._checked(block),))

    def _checked(self, block: Range) -> pa.Buffer:
        """Fetch a block; once more if what arrived is not what it should be."""
        data = self._store.read_range(*block)
        try:
            self._check(block, data)
        except LabelPoolError:
            data = self._store.read_range(*block)
            self._check(block, data)
        return data

    def _opened(self, block: Range) -> _OpenBlock:
        while True:
            try:
                return _OpenBlock(self._fetch(block))
            except FileNotFoundError:
                # Another process made room just now.
                continue

    def _name(self, block: Range) -> str:
        return f"{self._files[block.path].digest}-{block.start}-{block.stop}"


def _blocks(
    block_of: weakref.WeakMethod[Callable[[str, int], Range]], ranges: Iterable[Range], count: int | None
) -> Iterator[Range]:
    """Yield the blocks of ranges while there is somebody to read them.

    count: of all blocks, where each is fetched once, so that endless ranges come to an end; else None.
    """
    seen: set[Range] = set()
    for one in ranges:
        if (find := block_of()) is None or len(seen) == count:
            return
        block = find(one.path, one.start)
        del find
        if count is None or block not in seen:
            yield block
        if count is not None:
            seen.add(block)


class _OpenBlock:
    """An open file of the cache. Not mapped: a mapped file that somebody cuts off ends the process."""

    def __init__(self, path: os.PathLike[str]) -> None:
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, offset: int, length: int) -> pa.Buffer:
        """Return these bytes, or fewer if the file is shorter, in memory of Arrow's pool, which is warm."""
        buffer = pa.allocate_buffer(length)
        count = os.preadv(self._handle, [buffer], offset)
        return buffer if count == length else buffer.slice(0, count)

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None:
            os.close(handle)


def _open_blocks_allowed() -> int:
    """Return how many blocks may be open: half of the files that this process may open."""
    try:
        import resource
    except ImportError:  # not on this system
        return _MOST_OPEN_OF_MANY
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_OPEN_BLOCKS if soft == resource.RLIM_INFINITY else soft // 2
