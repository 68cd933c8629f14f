"""Ranges fetched ahead of those who read them, in memory: for work that goes through a pool once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from lpld_labels.io.clients import REQUESTS_AT_ONCE
from lpld_labels.io.ranges import Range, coalesced
from lpld_labels.io.remote import RemoteStore

_REQUEST_BYTES = 4 * 1024 * 1024
_WINDOW_BYTES = 64 * 1024 * 1024


class ReadAhead:
    """Ranges of the files of a store. What is not expected is fetched when it is asked for.

    window: bytes that may be fetched and not read yet.
    """

    def __init__(self, store: RemoteStore, *, window: int = _WINDOW_BYTES) -> None:
        self._store = store
        self._window = window
        self._coming: Iterator[Range] = iter(())
        self._fetched: deque[tuple[Range, Future[pa.Buffer]]] = deque()
        self._threads: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def expect(self, ranges: Iterable[Range]) -> None:
        """Begin to fetch these, in their order, as far as the window reaches."""
        with self._lock:
            self._drop()
            self._coming = coalesced(ranges, _REQUEST_BYTES)
            self._fill()

    def read(self, path: str, start: int, stop: int) -> pa.Buffer:
        """Return bytes that were fetched ahead, or fetch them now."""
        with self._lock:
            found = next(
                (i for i, (held, _) in enumerate(self._fetched) if _inside(held, path, start, stop)), None
            )
            if found is not None:
                # Who reads in order has no use for what lies before.
                for _ in range(found):
                    self._fetched.popleft()[1].cancel()
                held, future = self._fetched[0]
                self._fill()
        if found is None:
            return self._store.read_range(path, start, stop)
        return future.result().slice(start - held.start, stop - start)

    def forget(self, path: str, start: int, stop: int) -> None:
        """Fetch these bytes anew when they are read next."""
        with self._lock:
            kept = [item for item in self._fetched if not _inside(item[0], path, start, stop)]
            self._fetched = deque(kept)

    def close(self) -> None:
        """Stop fetching."""
        with self._lock:
            self._coming = iter(())
            self._drop()
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)
                self._threads = None

    def _drop(self) -> None:
        for _, future in self._fetched:
            future.cancel()
        self._fetched.clear()

    def _fill(self) -> None:
        """Ask for what comes next until the window is full."""
        held = sum(one.stop - one.start for one, _ in self._fetched)
        while held < self._window:
            one = next(self._coming, None)
            if one is None:
                return
            if self._threads is None:
                self._threads = ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="read-ahead")
            self._fetched.append((one, self._threads.submit(self._store.read_range, *one)))
            held += one.stop - one.start


def _inside(held: Range, path: str, start: int, stop: int) -> bool:
    return held.path == path and held.start <= start and stop <= held.stop
