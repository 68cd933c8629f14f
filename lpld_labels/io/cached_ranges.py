"""Ranges kept on disk in blocks: for training, which comes back to the same labels epoch after epoch.

Where the cache can hold everything, a block is about a megabyte: all of it will be asked for. Where it
cannot, a block is the smallest part that is ever asked for: the rest would be gone before its turn.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lpld_labels.errors import LabelPoolError
from lpld_labels.io.clients import REQUESTS_AT_ONCE
from lpld_labels.io.disk_cache import DiskCache
from lpld_labels.io.ranges import Range
from lpld_labels.io.remote import RemoteStore

BLOCK_BYTES = 1024 * 1024
"""Small blocks come in the order in which they are needed: of large ones, nearly all are needed early on."""
_MOST_OPEN_BLOCKS = 4096
_MOST_OPEN_OF_MANY = 512
"""Where the cache cannot hold everything: an open block takes its place on disk even when it had to go."""


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
    """

    def __init__(
        self,
        store: RemoteStore,
        cache: DiskCache,
        files: Mapping[str, CutFile],
        *,
        check: Callable[[Range, pa.Buffer], None] | None = None,
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
        self._fetcher: _Fetcher | None = None

    def block(self, path: str, start: int) -> Range:
        """Return the block that holds a byte of a file."""
        cuts = self._cuts[path]
        number = int(np.searchsorted(cuts, start, side="right")) - 1
        return Range(path, int(cuts[number]), int(cuts[number + 1]))

    def read(self, path: str, start: int, stop: int) -> pa.Buffer:
        """Return bytes of one block."""
        block = self.block(path, start)
        with self._lock:
            held = self._open.get(block)
        if held is None:
            held = self._opened(block)
            with self._lock:
                self._open[block] = held
                while len(self._open) > self._most_open:
                    self._open.popitem(last=False)
        return held.read(start - block.start, stop - start)

    def forget(self, path: str, start: int, stop: int) -> None:
        """Drop the block from memory and disk."""
        del stop
        block = self.block(path, start)
        with self._lock:
            self._open.pop(block, None)
        self._cache.drop(self._name(block))

    def expect(self, ranges: Iterable[Range]) -> None:
        """Fetch the blocks of these in the background, in this order, as far as the cache reaches."""
        self.close()
        count = sum(len(cuts) - 1 for cuts in self._cuts.values())
        # Threads do not keep this alive: nobody waits for what they fetch once nobody can read it.
        fetch = weakref.WeakMethod(self.fetch)
        self._fetcher = _Fetcher(
            lambda block: now(block) if (now := fetch()) is not None else None,
            _blocks(weakref.WeakMethod(self.block), ranges),
            has=self._open.__contains__,
            window=self._window,
            count=count,
        )
        self._given_up = weakref.finalize(self, self._fetcher.give_up)
        self._given_up.atexit = False

    def reached(self) -> None:
        """Say that one of the expected ranges has been taken up."""
        if self._fetcher is not None:
            self._fetcher.advance()

    def close(self) -> None:
        """Stop fetching."""
        if self._fetcher is not None:
            self._given_up.detach()
            self._fetcher.stop()
            self._fetcher = None

    def fetch(self, block: Range) -> os.PathLike[str]:
        """Return the file that holds a block, fetched unless it is there."""
        size = block.stop - block.start
        return self._cache.get(self._name(block), size, lambda: (self._checked(block),))

    def _checked(self, block: Range) -> pa.Buffer:
        """Fetch a block; once more if what arrived is not what it should be."""
        for attempt in itertools.count():
            data = self._store.read_range(*block)
            try:
                if self._check is not None:
                    self._check(block, data)
            except LabelPoolError:
                if attempt:
                    raise
            else:
                return data
        raise AssertionError("unreachable")

    def _opened(self, block: Range) -> _OpenBlock:
        while True:
            try:
                return _OpenBlock(self.fetch(block))
            except FileNotFoundError:
                # Another process made room just now.
                continue

    def _name(self, block: Range) -> str:
        return f"{self._files[block.path].digest}-{block.start}-{block.stop}"


def _blocks(
    block: weakref.WeakMethod[Callable[[str, int], Range]], ranges: Iterable[Range]
) -> Iterator[Range]:
    """Yield the blocks of ranges, while there is somebody to ask."""
    for one in ranges:
        if (block_at := block()) is None:
            return
        found = block_at(one.path, one.start)
        del block_at
        yield found


def _open_blocks_allowed() -> int:
    """Return how many blocks may be open: half of the files that this process may open."""
    try:
        import resource
    except ImportError:  # not on this system
        return _MOST_OPEN_OF_MANY
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_OPEN_BLOCKS if soft == resource.RLIM_INFINITY else soft // 2


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


class _Fetcher:
    """Fetches blocks in the background, several at a time.

    has: whether a block is open already. window: bytes to be ahead of `advance`; None where all blocks can
    stay, so that each is fetched once and the work ends when all `count` are there.
    """

    def __init__(
        self,
        fetch: Callable[[Range], object],
        blocks: Iterator[Range],
        *,
        has: Callable[[Range], bool],
        window: int | None,
        count: int,
    ) -> None:
        self._fetch = fetch
        self._has = has
        self._blocks = blocks
        self._window = window
        self._count = count
        self._process = os.getpid()
        self._stopped = False
        self._moved = threading.Condition()
        self._ahead: deque[int] = deque()
        self._bytes_ahead = 0
        self._thread = threading.Thread(target=self._run, name="fetch-ahead", daemon=True)
        self._thread.start()

    def advance(self) -> None:
        """Take note that the next range is being read."""
        with self._moved:
            if self._ahead:
                self._bytes_ahead -= self._ahead.popleft()
                self._moved.notify()

    def stop(self) -> None:
        """Ask for no more; what is under way is finished and kept."""
        self.give_up()
        if self._process == os.getpid():
            self._thread.join()

    def give_up(self) -> None:
        """Ask for no more, and do not wait for what is under way."""
        self._stopped = True
        if self._process == os.getpid():
            with self._moved:
                self._moved.notify()

    def _run(self) -> None:
        seen: set[Range] = set()
        places = threading.Semaphore(2 * REQUESTS_AT_ONCE)
        with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="fetch") as threads:
            for block in self._blocks:
                if not self._may_go_on(block) or len(seen) == self._count:
                    break
                if self._window is None and block in seen:
                    continue
                seen.add(block)
                if self._has(block):
                    continue
                places.acquire()
                try:
                    # Who reads a block that could not be fetched will say why.
                    threads.submit(self._fetch, block).add_done_callback(lambda _: places.release())
                except RuntimeError:
                    # The interpreter is about to end.
                    return
            if self._stopped:
                threads.shutdown(cancel_futures=True)

    def _may_go_on(self, block: Range) -> bool:
        """Wait until the block is near enough to what is being read; False to stop."""
        if self._window is None:
            return not self._stopped
        with self._moved:
            while not self._stopped and self._bytes_ahead > self._window:
                self._moved.wait()
            self._ahead.append(block.stop - block.start)
            self._bytes_ahead += self._ahead[-1]
        return not self._stopped
