"""Read whole files or byte ranges from web servers."""

from __future__ import annotations

import os
import re
import threading
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import pyarrow as pa
import urllib3

from lpld_labels.io.retry import REQUESTS_AT_ONCE, ShortReadError

_CA_VARIABLE = "AWS_CA_BUNDLE"
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/")
_PATH_CHARACTERS = "/%!$&'()*+,;=:@~"
_REDIRECTS = 5


class AnswerError(OSError):
    """A server responded with an error status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the server responded with status {status}")
        self.status = status


class HttpFiles:
    """HTTP client that reuses connections. Thread-safe, not fork-safe. timeout: longest wait in seconds."""

    def __init__(self, timeout: float) -> None:
        self._options: dict[str, Any] = {
            "maxsize": REQUESTS_AT_ONCE,
            "timeout": urllib3.Timeout(connect=timeout, read=timeout),
            # Retries are left to `lpld_labels.io.retry`.
            "retries": urllib3.Retry(total=None, connect=0, read=0, status=0, other=0, redirect=_REDIRECTS),
            "ca_certs": os.environ.get(_CA_VARIABLE),
        }
        self._pools: dict[str | None, urllib3.PoolManager] = {}
        self._lock = threading.Lock()

    def cat_file(self, url: str, start: int = 0, end: int | None = None) -> bytes:
        """Return a whole file, or only its bytes [start, end) if `end` is given."""
        answer = self._get(url, {} if end is None else {"Range": f"bytes={start}-{end - 1}"})
        return answer.data[: None if end is None else end - start]

    def read_range(self, url: str, start: int, stop: int) -> pa.Buffer:
        answer = self._get(url, {"Range": f"bytes={start}-{stop - 1}"})
        found = _CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
        plain = answer.headers.get("Content-Encoding", "identity") == "identity"
        if answer.status != 206 or found is None or not plain:
            raise ShortReadError("the server does not support range requests")
        if (int(found[1]), int(found[2]) + 1) != (start, stop):
            raise ShortReadError(f"asked for {stop - start} bytes, got {int(found[2]) + 1 - int(found[1])}")
        return pa.py_buffer(answer.data)

    def _get(self, url: str, headers: dict[str, str]) -> urllib3.BaseHTTPResponse:
        base, question, query = url.partition("?")
        place = urlsplit(url)
        user, at, _ = place.netloc.rpartition("@")
        signed = urllib3.make_headers(basic_auth=unquote(user)) if at else {}
        sent = {"Accept-Encoding": "identity", **headers, **signed}
        address = quote(base.replace(f"{user}@", "", 1) if at else base, safe=_PATH_CHARACTERS)
        try:
            answer = self._pool(place.scheme, place.hostname or "").request(
                "GET", f"{address}{question}{query}", headers=sent, decode_content=False
            )
        except urllib3.exceptions.MaxRetryError as error:
            # MaxRetryError's own message contains the complete URL, including a signature.
            reason = error.reason or ConnectionError("no response")
            raise reason from reason.__cause__
        if answer.status >= 300:
            raise AnswerError(answer.status)
        return answer

    def _pool(self, scheme: str, host: str) -> urllib3.PoolManager:
        proxy = None if proxy_bypass(host) else getproxies().get(scheme)
        with self._lock:
            if proxy not in self._pools:
                self._pools[proxy] = (
                    urllib3.ProxyManager(proxy, **self._options)
                    if proxy
                    else urllib3.PoolManager(**self._options)
                )
            return self._pools[proxy]
