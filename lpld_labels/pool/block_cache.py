"""A byte-bounded cache of decoded blocks that drops the least recently used block first."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class BlockCache(Generic[T]):
    """Keeps blocks up to `limit` bytes in total. Thread-safe and fork-safe."""

    _survive_fork = True

    def __init__(self, limit: int, size_of: Callable[[T], int]) -> None:
        self.limit = limit
        self.held = 0
        self._size_of = size_of
        self._blocks: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.RLock()
        self._process = os.getpid()

    def get(self, key: Hashable, load: Callable[[], T]) -> T:
        if self._process != os.getpid():
            # A thread of the parent may have held the lock during the fork.
            self._lock, self._process = threading.RLock(), os.getpid()
            if not self._survive_fork:
                self.clear()
        with self._lock:
            if key in self._blocks:
                self._blocks.move_to_end(key)
                return self._blocks[key]
            block = self._blocks[key] = load()
            self.held += self._size_of(block)
            # The newest block always stays, however large: a caller is about to use it.
            while self.held > self.limit and len(self._blocks) > 1:
                self.held -= self._size_of(self._blocks.popitem(last=False)[1])
            return block

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.limit, self._size_of)  # without the blocks

    def clear(self) -> None:
        self._blocks.clear()
        self.held = 0


class OpenFiles(BlockCache[T]):
    """Keeps up to `limit` files open. File handles do not survive a fork: a child reopens files."""

    _survive_fork = False

    def __init__(self, limit: int) -> None:
        super().__init__(limit, lambda file: 1)
