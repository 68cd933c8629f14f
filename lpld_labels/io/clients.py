"""Clients of stores: fsspec's, opened when the first request is sent and by nobody who reads local pools."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import pyarrow as pa

from lpld_labels.errors import InvalidArgumentError, StoreError
from lpld_labels.io.addresses import shown

if TYPE_CHECKING:
    from lpld_labels.io.direct import Connections

REQUESTS_AT_ONCE = 32
_EXTRAS = {"s3": "s3", "s3a": "s3", "http": "http", "https": "http"}
_ENVIRONMENT = ("AWS_", "FSSPEC_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_SIGNED_SECONDS = 3600
_SIGNED_USE = 600
"""For so long a signed URL is used; what signed it may be valid for less than the URL."""
_PATH_CHARACTERS = "/%!$&'()*+,;=:@~"


class Client:
    """system: the file system of fsspec that does everything. Ranges are also read without it."""

    def __init__(self, system: Any, scheme: str, timeout: float) -> None:
        self.system = system
        self._scheme = scheme
        self._timeout = timeout
        self._connections = _connections()
        self._signed: dict[str, tuple[float, str]] = {}

    def read_range(self, place: str, start: int, stop: int) -> pa.Buffer:
        """Return bytes of a file, or fewer; raises whatever the client raises."""
        url = self._url(place)
        if url is not None:
            data = self._connections.read(url, start, stop, timeout=self._timeout)
            if data is not None:
                return data
            self._signed.pop(place, None)
        return pa.py_buffer(self.system.cat_file(place, start=start, end=stop))

    def _url(self, place: str) -> str | None:
        """Return where anybody gets a file by a plain request, or None."""
        if self._scheme in ("http", "https"):
            base, question, query = place.partition("?")
            return quote(base, safe=_PATH_CHARACTERS) + question + query
        if self._scheme not in ("s3", "s3a"):
            return None
        until, url = self._signed.get(place, (0.0, ""))
        now = time.monotonic()
        if now > until:
            # No request: a signature for this file, of the credentials that the client has found.
            url = str(self.system.sign(place, expiration=_SIGNED_SECONDS))
            self._signed[place] = (now + _SIGNED_USE, url)
        return url


def _connections() -> Connections:
    # HTTP and TLS are nothing that those who read local pools have to load.
    from lpld_labels.io.direct import Connections

    return Connections()


_clients: dict[object, Client] = {}
_lock = threading.Lock()


def _forget() -> None:
    """Leave connections to the process that made them."""
    global _lock  # noqa: PLW0603  # the parent may hold it at the moment of the fork
    _lock = threading.Lock()
    _clients.clear()
    # Older releases of fsspec (2025.3 is one) would wait for a loop whose thread is the parent's.
    if (loops := sys.modules.get("fsspec.asyn")) is not None:
        loops.reset_lock()


os.register_at_fork(after_in_child=_forget)


def client_of(address: str, scheme: str, timeout: float) -> Client:
    """Return the client for an address; one for all of a kind, while the environment stays the same."""
    told = tuple(sorted(item for item in os.environ.items() if item[0].upper().startswith(_ENVIRONMENT)))
    host = "" if scheme in _EXTRAS else urlsplit(address).netloc
    with _lock:
        key = (scheme, host, timeout, told)
        if key not in _clients:
            _clients[key] = Client(_open(address, scheme, timeout), scheme, timeout)
        return _clients[key]


def _open(address: str, scheme: str, timeout: float) -> Any:
    try:
        import fsspec
    except ImportError:
        raise _not_installed(address, scheme) from None
    options: dict[str, Any] = {"skip_instance_cache": True}
    try:
        if _EXTRAS.get(scheme) == "s3":
            # Attempts are counted elsewhere, and listings are as fresh as what others write.
            wait = {"connect_timeout": timeout, "read_timeout": timeout, "retries": {"total_max_attempts": 1}}
            options |= {
                "config_kwargs": wait
                | {"max_pool_connections": REQUESTS_AT_ONCE, "signature_version": "s3v4"},
                "use_listings_cache": False,
            }
        elif _EXTRAS.get(scheme) == "http":
            from aiohttp import ClientTimeout

            idle = ClientTimeout(total=None, sock_connect=timeout, sock_read=timeout)
            options["client_kwargs"] = {"timeout": idle, "trust_env": True}
        system, _ = fsspec.core.url_to_fs(address, **options)
    except ImportError:
        raise _not_installed(address, scheme) from None
    except ValueError:
        raise InvalidArgumentError(
            "nothing is known that opens such an address",
            where=shown(address),
            expected="s3://, https://, or what an installed fsspec client opens",
            got=f"{scheme}://",
        ) from None
    if _EXTRAS.get(scheme) == "s3":
        system.retries = 1
    return system


def _not_installed(address: str, scheme: str) -> StoreError:
    extra = _EXTRAS.get(scheme)
    what = f"pip install 'lpld-labels[{extra}]'" if extra else f"install the fsspec client of {scheme}://"
    return StoreError("a package for this kind of address is missing", where=shown(address), hint=what)
