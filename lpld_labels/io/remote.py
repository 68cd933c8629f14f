"""Read, list and write files below an address, with an fsspec client or our own HTTP client."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa

from lpld_labels.errors import InvalidArgumentError, StoreError
from lpld_labels.io.addresses import child, normalize_url, redact
from lpld_labels.io.retry import (
    ATTEMPTS,
    REQUESTS_AT_ONCE,
    ShortReadError,
    code_of,
    is_transient,
    request_timeout,
    retry,
    status_of,
)

T = TypeVar("T")

PIECE_BYTES = 8 * 1024 * 1024  # Files are streamed in pieces of this size.
_PIECES_AHEAD = 4
PART_BYTES = 16 * 1024 * 1024
_MOST_PARTS = 9000  # Of an upload. S3 allows 10,000.
DIGEST = "sha256"  # Key of a file's SHA-256 in its S3 metadata.
_S3, _HTTP = ("s3", "s3a"), ("http", "https")
_ENVIRONMENT = ("AWS_", "FSSPEC_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_SIGNED_SECONDS = 3600
_SIGNED_USE = 600  # Credentials may expire before the URL that they signed.
_REFUSALS = 3  # In a row; then signed URLs are no longer used.


class PreconditionError(StoreError):
    """A conditional write failed, because the file is not in the expected state."""


class RemoteStore:
    """The files below an address. Picklable, fork-safe and thread-safe. timeout: longest wait in seconds.

    shown: address without secrets. conditional: whether writes can be conditional. lists: whether files can
    be listed.
    """

    def __init__(self, address: str) -> None:
        self.address = normalize_url(address)
        self.shown = redact(self.address)
        self.timeout = request_timeout()
        self.scheme = urlsplit(self.address).scheme.lower()
        self.conditional = self.scheme in _S3
        self.lists = self.scheme not in _HTTP

    def at(self, path: str) -> str:
        return f"{self.shown.partition('?')[0]}/{path}" if path else self.shown

    def read(self, path: str, *, limit: int | None = None) -> bytes:
        """Return the content of a file, or its first `limit` bytes. Raises FileNotFoundError."""

        def get(client: Client, place: str) -> bytes:
            if self.scheme == "hf":  # Its client caches listings, and would not notice changed files.
                client.system.invalidate_cache()
            return bytes(client.system.cat_file(place, start=0, end=limit))

        return self._do(path, get)

    def read_range(self, path: str, start: int, stop: int) -> pa.Buffer:
        def get(client: Client, place: str) -> pa.Buffer:
            data = client.read_range(place, start, stop)
            if data.size != stop - start:
                raise ShortReadError(f"asked for {stop - start} bytes, got {data.size}")
            return data

        return self._do(path, get)

    def pieces(self, path: str, size: int) -> Iterator[pa.Buffer]:
        """Yield a file of `size` bytes in pieces, and prefetch the next pieces."""
        pending: deque[Future[pa.Buffer]] = deque()
        with ThreadPoolExecutor(_PIECES_AHEAD, thread_name_prefix="pieces") as threads:
            try:
                for start in range(0, size, PIECE_BYTES):
                    stop = min(start + PIECE_BYTES, size)
                    pending.append(threads.submit(self.read_range, path, start, stop))
                    if len(pending) == _PIECES_AHEAD:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            finally:
                threads.shutdown(cancel_futures=True)

    def sizes(self) -> dict[str, int]:
        """Map the path of every file below the address to its size in bytes; {} if the store cannot list."""
        if not self.lists:
            return {}

        def find(client: Client, place: str) -> dict[str, int]:
            root = client.system._strip_protocol(place).rstrip("/") + "/"  # noqa: SLF001  # prefix of names
            found: dict[str, dict[str, Any]] = client.system.find(place, detail=True)
            return {
                name.removeprefix(root): int(info["size"])
                for name, info in found.items()
                if name.startswith(root)
            }

        try:
            return self._do("", find)
        except FileNotFoundError:
            return {}

    def put(
        self, path: str, data: bytes, *, digest: str | None = None, condition: Mapping[str, str] | None = None
    ) -> None:
        """Write or replace a file. digest: hex SHA-256, verified by S3. condition: S3 request parameters."""
        if not self.conditional:
            self.require_writable()
            self._do(path, lambda client, place: client.system.pipe_file(place, data))
            return
        condition = condition or {}
        checksum: dict[str, Any] = {}
        if digest is not None:
            encoded = base64.b64encode(bytes.fromhex(digest)).decode()
            checksum = {"ChecksumSHA256": encoded, "Metadata": {DIGEST: digest}}
        try:
            self.call(path, "put_object", Body=data, **checksum, **condition)
        except PreconditionError:
            # An earlier attempt may have written the file although its response was lost.
            if "IfNoneMatch" not in condition or self.read(path) != data:
                raise

    def create(self, path: str, data: bytes, *, digest: str | None = None) -> None:
        """Write a new file. Raises PreconditionError if the file exists. Atomic on S3 only."""
        if not self.conditional:
            self.require_writable()
            if self._do(path, lambda client, place: bool(client.system.exists(place))):
                raise self._other_file(path)
        self.put(path, data, digest=digest, condition={"IfNoneMatch": "*"})

    def replace(self, path: str, data: bytes, *, old: bytes) -> None:
        """Replace a file whose content is `old`. Raises PreconditionError if its content differs."""
        try:
            # Order matters: the ETag must not be newer than the content that is compared.
            tag = str(self.call(path, "head_object")["ETag"]) if self.conditional else ""
            found = self.read(path)
        except FileNotFoundError:
            raise self._other_file(path) from None
        if found != old:
            raise self._other_file(path)
        self.put(path, data, condition={"IfMatch": tag})

    def send(self, path: str, size: int, pieces: Iterable[bytes | pa.Buffer], *, digest: str) -> None:
        """Write or replace a file that may not fit into memory; large files are sent to S3 in parts.

        If an error occurs, even in `pieces`, the old file is kept. size: total bytes of the pieces.
        digest: hex SHA-256 of the content, which S3 stores with the file.
        """
        if size <= PART_BYTES:
            self.put(path, b"".join(map(memoryview, pieces)), digest=digest)
        elif self.conditional:
            self._send_parts(path, _parts(pieces, max(PART_BYTES, -(-size // _MOST_PARTS))), digest)
        else:
            self._stream(path, pieces)

    def unfinished(self) -> list[tuple[str, str]]:

        def find(client: Client, place: str) -> list[tuple[str, str]]:
            bucket, prefix, _ = client.system.split_path(place)
            found = client.system.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{prefix}/")
            uploads = found.get("Uploads", [])
            return [(one["Key"].removeprefix(f"{prefix}/"), one["UploadId"]) for one in uploads]

        return self._do("", find)

    def abort_uploads(self) -> None:
        """Abort unfinished multipart uploads below the address; the store then deletes their parts."""
        for path, upload in self.unfinished() if self.conditional else ():
            with contextlib.suppress(StoreError, FileNotFoundError):
                self.call(path, "abort_multipart_upload", UploadId=upload)

    def digest(self, path: str) -> str | None:
        """Return the hex SHA-256 stored with a file, or None if there is none."""
        if not self.conditional:
            return None
        try:
            digest: str | None = self.call(path, "head_object")["Metadata"].get(DIGEST)
        except FileNotFoundError:
            return None
        return digest

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self._do(path, lambda client, place: client.system.rm_file(place))

    def require_writable(self) -> None:
        if self.scheme in _HTTP:
            raise StoreError("web servers are read-only", where=self.shown, hint="use s3:// or a directory")

    def _stream(self, path: str, pieces: Iterable[bytes | pa.Buffer]) -> None:
        """Write a file piece by piece, without retries."""
        self.require_writable()

        def write(client: Client, place: str) -> None:
            with client.system.open(place, "wb") as stream:
                for piece in pieces:
                    stream.write(memoryview(piece))

        self._do(path, write, attempts=1)

    def _send_parts(self, path: str, parts: Iterator[bytes], digest: str) -> None:
        upload = self.call(path, "create_multipart_upload", Metadata={DIGEST: digest})["UploadId"]
        try:
            tags = []
            for number, part in enumerate(parts, 1):
                answer = self.call(path, "upload_part", UploadId=upload, PartNumber=number, Body=part)
                tags.append({"PartNumber": number, "ETag": answer["ETag"]})
            self._complete(path, upload, tags, digest)
        except FileNotFoundError:
            raise StoreError("the upload was aborted", where=self.at(path), hint="try again") from None
        except BaseException:
            with contextlib.suppress(StoreError, FileNotFoundError):
                self.call(path, "abort_multipart_upload", UploadId=upload)
            raise

    def _complete(self, path: str, upload: str, tags: list[dict[str, Any]], digest: str) -> None:
        try:
            self.call(path, "complete_multipart_upload", UploadId=upload, MultipartUpload={"Parts": tags})
        except FileNotFoundError:
            # An earlier attempt may have succeeded although its response was lost.
            if self.digest(path) != digest:
                raise

    def call(self, path: str, method: str, **options: Any) -> dict[str, Any]:
        def call(client: Client, place: str) -> dict[str, Any]:
            bucket, key, _ = client.system.split_path(place)
            try:
                answer: dict[str, Any] = client.system.call_s3(method, Bucket=bucket, Key=key, **options)
            except Exception as error:
                if status_of(error) in (409, 412) or code_of(error) == "PreconditionFailed":
                    raise self._other_file(path) from None
                raise
            if "Body" in options and _differs(answer, options["Body"]):
                if method == "put_object":
                    client.system.rm_file(place)
                raise ShortReadError("stored bytes differ from those sent")
            return answer

        return self._do(path, call)

    def _do(self, path: str, request: Callable[[Client, str], T], attempts: int = ATTEMPTS) -> T:
        place = child(self.address, path) if path else self.address

        def attempt() -> T:
            return request(client_of(self.address, self.scheme, self.timeout), place)

        return retry(attempt, where=self.at(path), attempts=attempts)

    def _other_file(self, path: str) -> PreconditionError:
        return PreconditionError("another writer created, changed or deleted this file", where=self.at(path))


def _differs(answer: dict[str, Any], data: bytes) -> bool:
    """Return whether the ETag differs from the data's MD5. False if the ETag is not an MD5, as with KMS."""
    tag = str(answer.get("ETag", "")).strip('"')
    plain = answer.get("ServerSideEncryption") in (None, "AES256") and len(tag) == 32
    return plain and tag != hashlib.md5(data, usedforsecurity=False).hexdigest()


def _parts(pieces: Iterable[bytes | pa.Buffer], size: int) -> Iterator[bytes]:
    """Join pieces into parts of at least `size` bytes; the last part may be shorter."""
    held: list[bytes | pa.Buffer] = []
    count = 0
    for piece in pieces:
        held.append(piece)
        count += len(piece)
        if count >= size:
            yield b"".join(map(memoryview, held))
            held, count = [], 0
    if held:
        yield b"".join(map(memoryview, held))


class Client:
    """A client of a store. system: an fsspec file system or `HttpFiles`.

    Byte ranges of s3:// files are read through signed URLs. This has a third of the overhead of fsspec.
    """

    def __init__(self, address: str, scheme: str, timeout: float) -> None:
        self.system = _open(address, scheme, timeout)
        self._signing = _http_files(timeout) if scheme in _S3 else None
        self._signed: dict[str, tuple[float, str]] = {}
        self._refusals = 0

    def read_range(self, place: str, start: int, stop: int) -> pa.Buffer:
        """Return bytes [start, stop) of a file, or fewer if the server sends fewer. Raises client errors."""
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
        """Return a signed URL of a file. Signing sends no request."""
        until, url = self._signed.get(place, (0.0, ""))
        now = time.monotonic()
        if now > until:
            url = str(self.system.sign(place, expiration=_SIGNED_SECONDS))
            self._signed[place] = (now + _SIGNED_USE, url)
        return url


_clients: dict[object, Client] = {}
_lock = threading.Lock()


def _forget_clients() -> None:
    """Drop the parent's connections after a fork."""
    global _lock  # noqa: PLW0603  # the parent may hold it at the moment of the fork
    _lock = threading.Lock()
    _clients.clear()
    # Older releases of fsspec (e.g. 2025.3) would wait for an event loop that only the parent runs.
    if (loops := sys.modules.get("fsspec.asyn")) is not None:
        loops.reset_lock()


os.register_at_fork(after_in_child=_forget_clients)


def client_of(address: str, scheme: str, timeout: float) -> Client:
    """Return the client for an address, cached by scheme, host, timeout and environment variables."""
    settings = tuple(sorted(item for item in os.environ.items() if item[0].upper().startswith(_ENVIRONMENT)))
    host = "" if scheme in _S3 + _HTTP else urlsplit(address).netloc
    with _lock:
        key = (scheme, host, timeout, settings)
        if key not in _clients:
            _clients[key] = Client(address, scheme, timeout)
        return _clients[key]


def _http_files(timeout: float) -> Any:
    # Reading local pools must not import HTTP and TLS modules.
    from lpld_labels.io.http_files import HttpFiles

    return HttpFiles(timeout)


def _open(address: str, scheme: str, timeout: float) -> Any:
    extra = "s3" if scheme in _S3 else "http" if scheme in _HTTP else "hub" if scheme == "hf" else None
    try:
        if extra == "http":
            return _http_files(timeout)
        import fsspec

        if extra != "s3":
            return fsspec.core.url_to_fs(address, skip_instance_cache=True)[0]
        # Retries are left to `lpld_labels.io.retry`; cached listings would hide new files.
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
            "unsupported kind of address",
            where=redact(address),
            expected="s3://, https://, or a scheme of an installed fsspec client",
            got=f"{scheme}://",
        ) from None
    return system
