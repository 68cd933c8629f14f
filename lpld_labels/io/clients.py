"""Clients of stores: fsspec's for S3 and others, our own for web servers; created with the first request."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa

from lpld_labels.errors import InvalidArgumentError, StoreError
from lpld_labels.io.addresses import redact
from lpld_labels.io.retry import REQUESTS_AT_ONCE, is_transient

if TYPE_CHECKING:
    from lpld_labels.io.http_files import HttpFiles

_EXTRAS = {"s3": "s3", "s3a": "s3", "http": "http", "https": "http"}
_ENVIRONMENT = ("AWS_", "FSSPEC_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_SIGNED_SECONDS = 3600
_SIGNED_USE = 600
"""Seconds to use a signed URL: the credentials that signed it may expire before the URL."""
_REFUSALS = 3
"""Stop signing after so many refusals in a row."""


class Client:
    """system: the file system for everything but ranges, one of fsspec's or `HttpFiles`.

    Ranges of s3:// are plain requests to signed URLs, which take a third of the client's work.
    """

    def __init__(self, system: Any, scheme: str, timeout: float) -> None:
        self.system = system
        self._signing = _http_files(timeout) if scheme in ("s3", "s3a") else None
        self._signed: dict[str, tuple[float, str]] = {}
        self._refusals = 0

    def read_range(self, place: str, start: int, stop: int) -> pa.Buffer:
        """Return bytes of a file, or fewer; raises whatever the client raises."""
        if hasattr(self.system, "read_range"):
            data: pa.Buffer = self.system.read_range(place, start, stop)
            return data
        if self._signing is not None and self._refusals < _REFUSALS and start < stop:
            try:
                data = self._signing.read_range(self._url(place), start, stop)
            except OSError as error:
                if is_transient(error):
                    raise
                # Not every store accepts signed URLs; for other problems, the client's own error is clearer.
                self._refusals += 1
                self._signed.pop(place, None)
            else:
                self._refusals = 0
                return data
        return pa.py_buffer(self.system.cat_file(place, start=start, end=stop))

    def _url(self, place: str) -> str:
        """Return a signed URL of a file; signing takes no request."""
        until, url = self._signed.get(place, (0.0, ""))
        now = time.monotonic()
        if now > until:
            url = str(self.system.sign(place, expiration=_SIGNED_SECONDS))
            self._signed[place] = (now + _SIGNED_USE, url)
        return url


def _http_files(timeout: float) -> HttpFiles:
    # Reading local pools must not load HTTP and TLS.
    from lpld_labels.io.http_files import HttpFiles

    return HttpFiles(timeout)


_clients: dict[object, Client] = {}
_lock = threading.Lock()


def _forget() -> None:
    """Drop the parent's connections after a fork."""
    global _lock  # noqa: PLW0603  # the parent may hold it at the moment of the fork
    _lock = threading.Lock()
    _clients.clear()
    # Older releases of fsspec (2025.3 is one) would wait for a loop whose thread is the parent's.
    if (loops := sys.modules.get("fsspec.asyn")) is not None:
        loops.reset_lock()


os.register_at_fork(after_in_child=_forget)


def client_of(address: str, scheme: str, timeout: float) -> Client:
    """Return the client for an address, shared by addresses of a kind while the environment is the same."""
    settings = tuple(sorted(item for item in os.environ.items() if item[0].upper().startswith(_ENVIRONMENT)))
    host = "" if scheme in _EXTRAS else urlsplit(address).netloc
    with _lock:
        key = (scheme, host, timeout, settings)
        if key not in _clients:
            _clients[key] = Client(_open(address, scheme, timeout), scheme, timeout)
        return _clients[key]


def _open(address: str, scheme: str, timeout: float) -> Any:
    extra = _EXTRAS.get(scheme)
    try:
        if extra == "http":
            return _http_files(timeout)
        import fsspec

        if extra is None:
            return fsspec.core.url_to_fs(address, skip_instance_cache=True)[0]
        # `retry` counts attempts, and listings are never cached.
        wait = {"connect_timeout": timeout, "read_timeout": timeout, "retries": {"total_max_attempts": 1}}
        connections = {"max_pool_connections": REQUESTS_AT_ONCE, "signature_version": "s3v4"}
        system = fsspec.filesystem(
            "s3", skip_instance_cache=True, use_listings_cache=False, config_kwargs=wait | connections
        )
        system.retries = 1
    except ImportError:
        hint = f"pip install 'lpld-labels[{extra}]'" if extra else f"install the fsspec client of {scheme}://"
        raise StoreError(
            "a package for this kind of address is missing", where=redact(address), hint=hint
        ) from None
    except ValueError:
        raise InvalidArgumentError(
            "nothing is known that opens such an address",
            where=redact(address),
            expected="s3://, https://, or what an installed fsspec client opens",
            got=f"{scheme}://",
        ) from None
    return system
