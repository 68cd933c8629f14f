"""Overlapping work: prepare inputs ahead, compute, write behind.

Threads suffice: decoding, resizing, compressing and file writing all release the GIL. Queues are bounded,
so memory is too; an error on either side surfaces in the caller.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, TypeVar

import torch

from lpld_labels.format.manifest import Augmentation
from lpld_labels.format.records import BatchKey, ViewBatch
from lpld_labels.render import ImageStore, apply_views

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


V = TypeVar("V", bound=ViewBatch)


def rendered(
    keys: Iterable[BatchKey],
    views_of: Callable[[BatchKey], V],
    store: ImageStore,
    augmentation: Augmentation,
    *,
    workers: int = 1,
) -> Generator[tuple[V, torch.Tensor], None, None]:
    """Yield (views, pixels) for the keys in order; pixels [B, 3, H, W] with values 0..255.

    views_of: draws a batch of these images or reads it from a pool of them; called by one thread at a time.
    pixels: uint8, or float32 where MixUp makes fractions. Same values either way.
    """
    dtype = torch.float32 if augmentation.mix == "mixup" else torch.uint8
    one_at_a_time = threading.Lock()

    def render(key: BatchKey) -> tuple[V, torch.Tensor]:
        with one_at_a_time:
            views = views_of(key)
        return views, apply_views(views, store, augmentation, dtype=dtype, inside=True)

    return map_ahead(render, keys, workers=workers, ahead=workers + 1)
