"""The least that fetching can take: the same bytes in the same ranges, by bare requests side by side."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from lpld_labels.io.prefetch import BLOCK_BYTES
from lpld_labels.io.retry import REQUESTS_AT_ONCE
from lpld_labels.pool.reader import PoolReader
from tests.servers.s3 import SIGNED

Span = tuple[str, int, int]


def spans(pool: PoolReader) -> list[Span]:
    """Return a pool's views and labels files in ranges of the loader's size: (path, start, stop)."""
    return list(_spans(pool))


def _spans(pool: PoolReader) -> Iterator[Span]:
    for entry in (*pool.manifest.files_of("views"), *pool.manifest.files_of("labels")):
        for start in range(0, entry.bytes, BLOCK_BYTES):
            yield entry.path, start, min(start + BLOCK_BYTES, entry.bytes)


def fetch(port: int, prefix: str, wanted: Sequence[Span]) -> int:
    """Fetch spans of objects below a prefix, as many at once as loaders do; return bytes.

    Every thread keeps its connection. Nothing is kept of what comes, and nothing compared.
    """
    own = threading.local()
    stack = contextlib.ExitStack()

    def one(span: Span) -> int:
        path, start, stop = span
        if not hasattr(own, "connection"):
            own.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            stack.callback(own.connection.close)
        own.connection.request(
            "GET", f"/{prefix}/{path}", headers={**SIGNED, "Range": f"bytes={start}-{stop - 1}"}
        )
        size = len(own.connection.getresponse().read())
        if size != stop - start:
            raise RuntimeError(f"{path}: asked for {stop - start} bytes, got {size}")
        return size

    with stack, ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
        return sum(threads.map(one, wanted))
