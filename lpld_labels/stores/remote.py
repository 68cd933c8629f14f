"""Files below an address: read whole or in ranges, listed, written, through fsspec.

fsspec is imported when the first request is sent and by nobody who reads local pools.
"""

from __future__ import annotations

import base64
import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlsplit

from lpld_labels.errors import InvalidArgumentError, StoreError
from lpld_labels.stores.addresses import child, normal, shown
from lpld_labels.stores.attempts import Patience, persist
from lpld_labels.stores.failures import ShortReadError, code_of, status_of

T = TypeVar("T")

REQUESTS_AT_ONCE = 16
RANGE_BYTES = 8 * 1024 * 1024
"""Large files are read in ranges of this size, several at a time."""
_DIGEST = "sha256"
"""Name under which S3 keeps the digest of a file with it."""
_EXTRAS = {"s3": "s3", "s3a": "s3", "http": "http", "https": "http"}
_ENVIRONMENT = ("AWS_", "FSSPEC_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


class PreconditionError(Exception):
    """A conditional write found something else than it was to replace."""


class RemoteStore:
    """The files below an address. Can be pickled and survives fork; threads may share one.

    address: where they are. patience: how failing requests are treated; None for the environment's.
    """

    def __init__(self, address: str, *, patience: Patience | None = None) -> None:
        self.address = normal(address)
        self.shown = shown(self.address)
        self.patience = patience or Patience.from_environment()
        self.scheme = urlsplit(self.address).scheme.lower()

    def at(self, path: str) -> str:
        """Return the place of a file as people may see it."""
        return f"{self.shown.partition('?')[0]}/{path}" if path else self.shown

    @property
    def conditional(self) -> bool:
        """Whether writes can be made to depend on what is there."""
        return self.scheme in ("s3", "s3a")

    @property
    def lists(self) -> bool:
        """Whether the store can say which files it has."""
        return self.scheme not in ("http", "https")

    # Reading

    def read(self, path: str, *, limit: int | None = None) -> bytes:
        """Return a file, or its first `limit` bytes. Raises FileNotFoundError."""
        return self._do(path, lambda system, place: bytes(system.cat_file(place, start=0, end=limit)))

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        """Return bytes [start, stop) of a file."""

        def get(system: Any, place: str) -> bytes:
            data: bytes = system.cat_file(place, start=start, end=stop)
            if len(data) != stop - start:
                raise ShortReadError(f"asked for {stop - start} bytes, got {len(data)}")
            return data

        return self._do(path, get)

    def read_all(self, path: str, size: int) -> bytes:
        """Return a file of known size; a large one in ranges, several at a time."""
        starts = range(0, size, RANGE_BYTES)
        if len(starts) <= 1:
            return self.read_range(path, 0, size) if size else b""
        with ThreadPoolExecutor(min(len(starts), REQUESTS_AT_ONCE)) as threads:
            parts = threads.map(
                lambda start: self.read_range(path, start, min(start + RANGE_BYTES, size)), starts
            )
            return b"".join(parts)

    def sizes(self, below: str = "") -> dict[str, int]:
        """Return the size of every file below the address, by path; stores that cannot list have none."""
        if not self.lists:
            return {}

        def find(system: Any, place: str) -> dict[str, int]:
            root = system._strip_protocol(place).rstrip("/") + "/"  # noqa: SLF001  # what names begin with
            found: dict[str, dict[str, Any]] = system.find(place, detail=True)
            return {
                below + name.removeprefix(root): int(info["size"])
                for name, info in found.items()
                if name.startswith(root)
            }

        try:
            return self._do(below, find)
        except FileNotFoundError:
            return {}

    # Writing

    def put(self, path: str, data: bytes, *, digest: str | None = None) -> None:
        """Write a file, whatever is there. digest: hex SHA-256, which the store compares if it can."""
        self._put(path, data, digest, {})

    def create(self, path: str, data: bytes, *, digest: str | None = None) -> None:
        """Write a file unless one is there: PreconditionError then.

        A store without conditional writes is asked first, and two writers at the same moment both win.
        """
        if self.conditional:
            self._put(path, data, digest, {"IfNoneMatch": "*"})
            return
        if self.exists(path):
            raise PreconditionError(self.at(path))
        self._put(path, data, digest, {})

    def replace(self, path: str, data: bytes, *, old: bytes, digest: str | None = None) -> None:
        """Write a file in the place of one with these bytes: PreconditionError if it has others."""
        tag = self._tag(path) if self.conditional else None
        try:
            found = self.read(path)
        except FileNotFoundError:
            raise PreconditionError(self.at(path)) from None
        if found != old:
            raise PreconditionError(self.at(path))
        self._put(path, data, digest, {} if tag is None else {"IfMatch": tag})

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        return self._do(path, lambda system, place: bool(system.exists(place)))

    def digest(self, path: str) -> str | None:
        """Return the hex SHA-256 that a file had when it was sent and compared, or None if nobody knows."""
        if not self.conditional:
            return None
        try:
            told: str | None = self._call(path, "head_object")["Metadata"].get(_DIGEST)
        except FileNotFoundError:
            return None
        return told

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files; those that are not there are no matter."""
        for path in paths:
            try:
                self._do(path, lambda system, place: system.rm_file(place))
            except FileNotFoundError:
                continue

    def _put(self, path: str, data: bytes, digest: str | None, condition: dict[str, str]) -> None:
        if self.conditional:
            checksum: dict[str, Any] = {}
            if digest is not None:
                encoded = base64.b64encode(bytes.fromhex(digest)).decode()
                checksum = {"ChecksumSHA256": encoded, "Metadata": {_DIGEST: digest}}
            try:
                self._call(path, "put_object", Body=data, **checksum, **condition)
            except _RefusedError:
                # It may be our own, of an attempt whose answer was lost.
                if "IfNoneMatch" in condition and self.read(path) == data:
                    return
                raise PreconditionError(self.at(path)) from None
            return
        if not hasattr(self._system(), "pipe_file") or self.scheme in ("http", "https"):
            raise StoreError("cannot be written to", where=self.shown, hint="write to s3:// or a directory")
        self._do(path, lambda system, place: system.pipe_file(place, data))

    def _tag(self, path: str) -> str | None:
        try:
            return str(self._call(path, "head_object")["ETag"])
        except FileNotFoundError:
            return None

    def _call(self, path: str, method: str, **options: Any) -> dict[str, Any]:
        """Call a method of S3's own interface on a file."""

        def call(system: Any, place: str) -> dict[str, Any]:
            bucket, key, _ = system.split_path(place)
            try:
                answer: dict[str, Any] = system.call_s3(method, Bucket=bucket, Key=key, **options)
            except Exception as error:
                if status_of(error) in (409, 412) or code_of(error) == "PreconditionFailed":
                    raise _RefusedError(self.at(path)) from None
                raise
            if method == "put_object" and _differs(answer, options["Body"]):
                system.rm_file(place)
                raise ShortReadError("what the store has is not what was sent")
            return answer

        return self._do(path, call)

    # Inside

    def _do(self, path: str, request: Callable[[Any, str], T]) -> T:
        """Send a request about a file, again while its failures may pass."""
        place = child(self.address, path) if path else self.address
        return persist(lambda: request(self._system(), place), self.patience, where=self.at(path))

    def _system(self) -> Any:
        return _file_system(self.address, self.scheme, self.patience.timeout)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteStore) and self.address == other.address

    def __hash__(self) -> int:
        return hash(self.address)


class _RefusedError(StoreError):
    """A conditional write was refused."""


def _differs(answer: dict[str, Any], data: bytes) -> bool:
    """Whether S3 says that it has stored other bytes; it does not say so of what it encrypts by a key."""
    tag = str(answer.get("ETag", "")).strip('"')
    plain = answer.get("ServerSideEncryption") in (None, "AES256") and len(tag) == 32
    return plain and tag != hashlib.md5(data, usedforsecurity=False).hexdigest()


_systems: dict[object, Any] = {}
_systems_lock = threading.Lock()


def _forget_systems() -> None:
    """Leave connections to the process that made them."""
    global _systems_lock  # noqa: PLW0603  # the parent may hold it at the moment of the fork
    _systems_lock = threading.Lock()
    _systems.clear()


os.register_at_fork(after_in_child=_forget_systems)


def _file_system(address: str, scheme: str, timeout: float) -> Any:
    """Return the client for an address; one for all of a kind, while the environment stays the same."""
    told = tuple(sorted(item for item in os.environ.items() if item[0].upper().startswith(_ENVIRONMENT)))
    host = "" if scheme in ("http", "https", "s3", "s3a") else urlsplit(address).netloc
    with _systems_lock:
        key = (scheme, host, timeout, told)
        if key not in _systems:
            _systems[key] = _open(address, scheme, timeout)
        return _systems[key]


def _open(address: str, scheme: str, timeout: float) -> Any:
    try:
        import fsspec
    except ImportError:
        raise _not_installed(address, scheme) from None
    options: dict[str, Any] = {"skip_instance_cache": True}
    try:
        if _EXTRAS.get(scheme) == "s3":
            # Attempts are counted here, and listings are as fresh as what others write.
            wait = {"connect_timeout": timeout, "read_timeout": timeout, "retries": {"total_max_attempts": 1}}
            options |= {
                "config_kwargs": wait | {"max_pool_connections": 2 * REQUESTS_AT_ONCE},
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
