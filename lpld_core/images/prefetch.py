"""Doing three things at once: making inputs ahead, computing, and writing behind.

Threads suffice: decoding, resizing, compressing and file writing all let go of the GIL. Queues are
bounded, so memory is too; an error on either side surfaces in the caller.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def map_ahead(
    work: Callable[[T], R], items: Iterable[T], *, workers: int = 1, ahead: int = 2
) -> Generator[R, None, None]:
    """Yield work(item) in order, computed by `workers` threads up to `ahead` items before they are used.

    Closing the iterator, or an error in it, waits for running work and drops what has not begun.
    """
    with ThreadPoolExecutor(workers, thread_name_prefix="ahead") as pool:
        waiting: deque[Future[R]] = deque()
        source = iter(items)
        try:
            for item in source:
                waiting.append(pool.submit(work, item))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class WorkBehind(Generic[T]):
    """A thread that consumes what it is handed, in order; a context manager.

    Leaving the block waits until everything handed over is consumed, also after an error or Ctrl-C
    in the block. The first error of `consume` ends consumption and is raised by the next `put` or
    on leaving.
    """

    def __init__(self, consume: Callable[[T], None], *, depth: int = 4) -> None:
        self._consume = consume
        self._queue: queue.Queue[T | None] = queue.Queue(depth)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="behind", daemon=True)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if self._error is not None:
                continue  # keep emptying the queue, so that nobody waits for room in it
            try:
                self._consume(item)
            except BaseException as error:  # noqa: BLE001  # raised again where the caller can see it
                self._error = error

    def put(self, item: T) -> None:
        """Hand an item over, waiting while the queue is full."""
        if self._error is not None:
            raise self._error
        self._queue.put(item)

    def __enter__(self) -> WorkBehind[T]:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.put(None)
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error
