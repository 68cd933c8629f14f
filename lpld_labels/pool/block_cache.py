"""A byte-bounded cache of decoded blocks, least recently used first out."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class BlockCache(Generic[T]):
    """Keeps blocks up to `limit` bytes. Safe for threads and across fork."""

    def __init__(self, limit: int, size_of: Callable[[T], int]) -> None:
        self.limit = limit
        self.held = 0
        self._size_of = size_of
        self._blocks: OrderedDict[Hashable, T] = OrderedDict()
        self._sizes: dict[Hashable, int] = {}
        self._lock = threading.RLock()
        self._process = os.getpid()

    def get(self, key: Hashable, load: Callable[[], T]) -> T:
        """Return the block, loading it if it is not held."""
        if self._process != os.getpid():
            # A thread of the parent may have held the lock at the moment of the fork.
            self._lock, self._process = threading.RLock(), os.getpid()
            self._after_fork()
        with self._lock:
            if key in self._blocks:
                self._blocks.move_to_end(key)
                return self._blocks[key]
            block = load()
            self._blocks[key] = block
            self._sizes[key] = self._size_of(block)
            self.held += self._sizes[key]
            # The newest block always stays, however large: a caller is about to use it.
            while self.held > self.limit and len(self._blocks) > 1:
                oldest, _ = self._blocks.popitem(last=False)
                self.held -= self._sizes.pop(oldest)
            return block

    def _after_fork(self) -> None:
        """Blocks are memory, and stay."""

    def clear(self) -> None:
        """Forget every block."""
        self._blocks.clear()
        self._sizes.clear()
        self.held = 0


class OpenFiles(BlockCache[T]):
    """Keeps up to `limit` files open. Their handles do not survive fork: a child opens its own."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit, lambda file: 1)

    def _after_fork(self) -> None:
        self.clear()
