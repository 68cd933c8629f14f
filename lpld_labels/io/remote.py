"""Files below an address: read whole or in ranges, listed, written, through a client of fsspec's."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa

from lpld_labels.errors import StoreError
from lpld_labels.io.addresses import child, normalize_url, redact
from lpld_labels.io.clients import Client, client_of
from lpld_labels.io.retry import RetryPolicy, ShortReadError, code_of, retry, status_of

T = TypeVar("T")

PIECE_BYTES = 8 * 1024 * 1024
"""Whole files are read in pieces of this size."""
_PIECES_AHEAD = 4
PART_BYTES = 16 * 1024 * 1024
_MOST_PARTS = 9000
"""S3 takes 10,000."""
DIGEST = "sha256"
"""Name under which S3 keeps the digest of a file with it."""


class PreconditionError(Exception):
    """A conditional write found something else than it was to replace."""


class RemoteStore:
    """The files below an address. Can be pickled and survives fork; threads may share one.

    address: where they are. policy: how failing requests are treated; None for the environment's.
    """

    def __init__(self, address: str, *, policy: RetryPolicy | None = None) -> None:
        self.address = normalize_url(address)
        self.shown = redact(self.address)
        self.policy = policy or RetryPolicy.from_environment()
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

    def read_range(self, path: str, start: int, stop: int) -> pa.Buffer:
        """Return bytes [start, stop) of a file."""

        def get(client: Client, place: str) -> pa.Buffer:
            data = client.read_range(place, start, stop)
            if data.size != stop - start:
                raise ShortReadError(f"asked for {stop - start} bytes, got {data.size}")
            return data

        return self._ask(path, get)

    def pieces(self, path: str, size: int) -> Iterator[pa.Buffer]:
        """Yield a file of known size piece by piece, some of them fetched ahead."""
        starts = range(0, size, PIECE_BYTES)
        if len(starts) == 1:
            yield self.read_range(path, 0, size)
            return
        coming: deque[Future[pa.Buffer]] = deque()
        with ThreadPoolExecutor(_PIECES_AHEAD, thread_name_prefix="pieces") as threads:
            try:
                for start in starts:
                    stop = min(start + PIECE_BYTES, size)
                    coming.append(threads.submit(self.read_range, path, start, stop))
                    if len(coming) == _PIECES_AHEAD:
                        yield coming.popleft().result()
                while coming:
                    yield coming.popleft().result()
            finally:
                threads.shutdown(cancel_futures=True)

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

    def send(self, path: str, size: int, pieces: Iterable[bytes | pa.Buffer], *, digest: str) -> None:
        """Write a file that may be too large for memory, whatever is there, in parts where the store can.

        An error on the way, also one of `pieces`, leaves it as it was. size: bytes of all pieces.
        digest: their hex SHA-256, kept with the file where the store can.
        """
        if size <= PART_BYTES:
            self.put(path, b"".join(map(memoryview, pieces)), digest=digest)
        elif self.conditional:
            self._send_parts(path, _parts(pieces, max(PART_BYTES, -(-size // _MOST_PARTS))), digest)
        else:
            self._write(path, pieces)

    def unfinished(self) -> list[tuple[str, str]]:
        """Return uploads in parts that nobody has finished: (path, S3's name for the upload)."""

        def find(system: Any, place: str) -> list[tuple[str, str]]:
            bucket, prefix, _ = system.split_path(place)
            found = system.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{prefix}/")
            uploads = found.get("Uploads", [])
            return [(one["Key"].removeprefix(f"{prefix}/"), one["UploadId"]) for one in uploads]

        return self._do("", find)

    def abort_uploads(self) -> None:
        """Free the parts that killed uploads have left below the address."""
        for path, upload in self.unfinished() if self.conditional else ():
            with contextlib.suppress(StoreError, FileNotFoundError):
                self.call(path, "abort_multipart_upload", UploadId=upload)

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        return self._do(path, lambda system, place: bool(system.exists(place)))

    def digest(self, path: str) -> str | None:
        """Return the hex SHA-256 that a file had when it was sent and compared, or None if nobody knows."""
        if not self.conditional:
            return None
        try:
            told: str | None = self.call(path, "head_object")["Metadata"].get(DIGEST)
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

    def require_writable(self) -> None:
        """Refuse stores that take no uploads."""
        if self.scheme in ("http", "https"):
            raise StoreError("cannot be written to", where=self.shown, hint="write to s3:// or a directory")

    def _write(self, path: str, pieces: Iterable[bytes | pa.Buffer]) -> None:
        """Write a file piece by piece, on stores that can open one. No attempt is repeated."""
        self.require_writable()

        def pour(system: Any, place: str) -> None:
            with system.open(place, "wb") as stream:
                for piece in pieces:
                    stream.write(memoryview(piece))

        once = replace(self.policy, attempts=1)
        place = child(self.address, path)
        retry(lambda: pour(self._client().system, place), once, where=self.at(path))

    def _send_parts(self, path: str, parts: Iterator[bytes], digest: str) -> None:
        upload = self.call(path, "create_multipart_upload", Metadata={DIGEST: digest})["UploadId"]
        try:
            tags = []
            for number, part in enumerate(parts, 1):
                answer = self.call(path, "upload_part", UploadId=upload, PartNumber=number, Body=part)
                tags.append({"PartNumber": number, "ETag": answer["ETag"]})
            self._complete(path, upload, tags, digest)
        except FileNotFoundError:
            raise StoreError(
                "somebody has aborted this upload", where=self.at(path), hint="try again"
            ) from None
        except BaseException:
            with contextlib.suppress(StoreError, FileNotFoundError):
                self.call(path, "abort_multipart_upload", UploadId=upload)
            raise

    def _complete(self, path: str, upload: str, tags: list[dict[str, Any]], digest: str) -> None:
        try:
            self.call(path, "complete_multipart_upload", UploadId=upload, MultipartUpload={"Parts": tags})
        except FileNotFoundError:
            # It may have been done, by an attempt whose answer was lost.
            if self.digest(path) != digest:
                raise

    def _put(self, path: str, data: bytes, digest: str | None, condition: dict[str, str]) -> None:
        if self.conditional:
            checksum: dict[str, Any] = {}
            if digest is not None:
                encoded = base64.b64encode(bytes.fromhex(digest)).decode()
                checksum = {"ChecksumSHA256": encoded, "Metadata": {DIGEST: digest}}
            try:
                self.call(path, "put_object", Body=data, **checksum, **condition)
            except _RefusedError:
                # It may be our own, of an attempt whose answer was lost.
                if "IfNoneMatch" in condition and self.read(path) == data:
                    return
                raise PreconditionError(self.at(path)) from None
            return
        self.require_writable()
        self._do(path, lambda system, place: system.pipe_file(place, data))

    def _tag(self, path: str) -> str | None:
        try:
            return str(self.call(path, "head_object")["ETag"])
        except FileNotFoundError:
            return None

    def call(self, path: str, method: str, **options: Any) -> dict[str, Any]:
        """Call a method of S3's own interface on a file."""

        def call(system: Any, place: str) -> dict[str, Any]:
            bucket, key, _ = system.split_path(place)
            try:
                answer: dict[str, Any] = system.call_s3(method, Bucket=bucket, Key=key, **options)
            except Exception as error:
                if status_of(error) in (409, 412) or code_of(error) == "PreconditionFailed":
                    raise _RefusedError(self.at(path)) from None
                raise
            if "Body" in options and _differs(answer, options["Body"]):
                if method == "put_object":
                    system.rm_file(place)
                raise ShortReadError("what the store has is not what was sent")
            return answer

        return self._do(path, call)

    # Inside

    def _do(self, path: str, request: Callable[[Any, str], T]) -> T:
        """Have fsspec's file system do something with a file."""
        return self._ask(path, lambda client, place: request(client.system, place))

    def _ask(self, path: str, request: Callable[[Client, str], T]) -> T:
        """Send a request about a file, again while its failures may pass."""
        place = child(self.address, path) if path else self.address
        return retry(lambda: request(self._client(), place), self.policy, where=self.at(path))

    def _client(self) -> Client:
        return client_of(self.address, self.scheme, self.policy.timeout)

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


def _parts(pieces: Iterable[bytes | pa.Buffer], size: int) -> Iterator[bytes]:
    """Join pieces to parts of at least `size` bytes, but for the last."""
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
