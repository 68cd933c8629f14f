"""Sending files that are too large for memory: in parts, from whatever gives them piece by piece.

S3 keeps an object only when all of its parts are there and somebody says so; parts of an upload that was
killed cost room until it is aborted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from lpld_labels.errors import StoreError
from lpld_labels.io.remote import DIGEST, RemoteStore

PART_BYTES = 16 * 1024 * 1024
_MOST_PARTS = 9000
"""S3 takes 10,000."""


def send(
    store: RemoteStore, path: str, size: int, pieces: Iterable[bytes | pa.Buffer], *, digest: str
) -> None:
    """Write a file, whatever is there; an error on the way, also one of `pieces`, leaves it as it was.

    size: bytes of all pieces. digest: their hex SHA-256, kept with the file where the store can.
    """
    if size <= PART_BYTES:
        store.put(path, b"".join(map(memoryview, pieces)), digest=digest)
    elif store.conditional:
        _send_parts(store, path, _parts(pieces, max(PART_BYTES, -(-size // _MOST_PARTS))), digest)
    else:
        store.write(path, pieces)


def _send_parts(store: RemoteStore, path: str, parts: Iterator[bytes], digest: str) -> None:
    upload = store.call(path, "create_multipart_upload", Metadata={DIGEST: digest})["UploadId"]
    try:
        tags = []
        for number, part in enumerate(parts, 1):
            answer = store.call(path, "upload_part", UploadId=upload, PartNumber=number, Body=part)
            tags.append({"PartNumber": number, "ETag": answer["ETag"]})
        _complete(store, path, upload, tags, digest)
    except FileNotFoundError:
        raise StoreError("somebody has aborted this upload", where=store.at(path), hint="try again") from None
    except BaseException:
        with contextlib.suppress(StoreError, FileNotFoundError):
            store.call(path, "abort_multipart_upload", UploadId=upload)
        raise


def _complete(store: RemoteStore, path: str, upload: str, tags: list[dict[str, Any]], digest: str) -> None:
    try:
        store.call(path, "complete_multipart_upload", UploadId=upload, MultipartUpload={"Parts": tags})
    except FileNotFoundError:
        # It may have been done, by an attempt whose answer was lost.
        if store.digest(path) != digest:
            raise


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


def abort_uploads(store: RemoteStore) -> None:
    """Free what killed uploads have left below an address, where the store tells of it."""
    if not store.conditional:
        return
    for path, upload in store.unfinished():
        with contextlib.suppress(StoreError, FileNotFoundError):
            store.call(path, "abort_multipart_upload", UploadId=upload)
