"""Ranges by plain requests over connections that are kept open.

Clients that are made for everything pass bytes through an event loop and several copies. Here a range goes
from the socket into the memory where it stays, in the thread that asked for it, at a third of the work. Only
what is simple is done this way: any answer but the bytes leaves the question to the client.
"""

from __future__ import annotations

import os
import re
import ssl
import threading
from collections import defaultdict, deque
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, InvalidURL
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

import pyarrow as pa

from lpld_labels.io.failures import PASSING_STATUS, ShortReadError

_CA_VARIABLE = "AWS_CA_BUNDLE"
_REFUSALS = 3
"""Answers of another kind in a row after which a server is not asked this way again."""
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/")


class AnswerError(OSError):
    """A server says that it cannot answer now. status: by which number."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the server answered {status}")
        self.status = status


class Connections:
    """Open connections to servers, each used by one thread at a time. Not for use after a fork."""

    def __init__(self) -> None:
        self._idle: defaultdict[tuple[str, str], deque[HTTPConnection]] = defaultdict(deque)
        self._refusals: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._context: ssl.SSLContext | None = None
        self._lock = threading.Lock()

    def read(self, url: str, start: int, stop: int, *, timeout: float) -> pa.Buffer | None:
        """Return bytes [start, stop) of what is at a URL; None if a client has to find out about it.

        timeout: seconds without a byte. Raises OSError where the same request may succeed later.
        """
        place = urlsplit(url)
        server = (place.scheme, place.netloc)
        if stop <= start or not self._is_simple(place) or self._refusals[server] >= _REFUSALS:
            return None
        try:
            data = self._read(place, start, stop, timeout)
        except (ssl.SSLError, InvalidURL, UnicodeError):
            data = None
        except HTTPException as error:
            raise ConnectionError(f"not an answer: {type(error).__name__}") from None
        self._refusals[server] = self._refusals[server] + 1 if data is None else 0
        return data

    def close(self) -> None:
        """Close what is idle."""
        # Without the lock: after a fork, a thread that is not here may hold it.
        for connections in self._idle.values():
            while connections:
                connections.pop().close()

    def __del__(self) -> None:
        self.close()

    def _is_simple(self, place: SplitResult) -> bool:
        """Whether it takes no password and no proxy to get there."""
        host = place.hostname or ""
        if place.scheme not in ("http", "https") or "@" in place.netloc:
            return False
        return place.scheme not in getproxies() or bool(proxy_bypass(host))

    def _read(self, place: SplitResult, start: int, stop: int, timeout: float) -> pa.Buffer | None:
        connection, answer = self._asked(place, start, stop, timeout)
        whole = False
        try:
            data = _body(answer, start, stop)
            whole = data is not None and not answer.will_close
        finally:
            if not whole:
                connection.close()
        if whole:
            with self._lock:
                self._idle[place.scheme, place.netloc].append(connection)
        return data

    def _asked(
        self, place: SplitResult, start: int, stop: int, timeout: float
    ) -> tuple[HTTPConnection, HTTPResponse]:
        """Send a request; over a new connection if the server has closed the one that was kept."""
        path = f"{place.path}?{place.query}" if place.query else place.path
        fields = {"Range": f"bytes={start}-{stop - 1}"}
        while True:
            with self._lock:
                idle = self._idle[place.scheme, place.netloc]
                connection = idle.pop() if idle else None
            kept = connection is not None
            if connection is None:
                connection = self._connection(place, timeout)
            try:
                connection.request("GET", path, headers=fields)
                return connection, connection.getresponse()
            except BaseException as error:
                connection.close()
                if not (kept and isinstance(error, ConnectionError)):
                    raise

    def _connection(self, place: SplitResult, timeout: float) -> HTTPConnection:
        host = place.hostname or ""
        if place.scheme == "http":
            return HTTPConnection(host, place.port, timeout=timeout)
        if self._context is None:
            self._context = ssl.create_default_context(cafile=os.environ.get(_CA_VARIABLE))
        return HTTPSConnection(host, place.port, timeout=timeout, context=self._context)


def _body(answer: HTTPResponse, start: int, stop: int) -> pa.Buffer | None:
    """Return the bytes that were asked for, or None if it is something else that comes."""
    if answer.status in PASSING_STATUS:
        raise AnswerError(answer.status)
    if not _is_range(answer, start, stop):
        return None
    data = pa.allocate_buffer(stop - start)
    count = answer.readinto(memoryview(data).cast("B"))
    if count != stop - start:
        raise ShortReadError(f"asked for {stop - start} bytes, got {count}")
    # What follows is the end of the answer; the connection is free behind it.
    answer.read()
    return data


def _is_range(answer: HTTPResponse, start: int, stop: int) -> bool:
    """Whether the body that follows is what was asked for, as it is stored."""
    told = _CONTENT_RANGE.match(answer.getheader("Content-Range", ""))
    return (
        answer.status == 206
        and told is not None
        and (int(told[1]), int(told[2]) + 1) == (start, stop)
        and answer.getheader("Content-Encoding", "identity") == "identity"
    )
