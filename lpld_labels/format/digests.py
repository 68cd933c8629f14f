"""Digests of files, batches and pools. File digests cover bytes; the others cover views and labels.

All digests are SHA-256. Batch digests keep the first 16 bytes. The pool's content digest covers the
settings that define the meaning of views and labels, and all batch digests in key order. It does not depend
on sharding, lineage or packing.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lpld_labels.format.manifest import PoolHeader
from lpld_labels.format.records import ViewBatch

CanonicalBytes = Sequence[bytes | memoryview]  # Label values of a batch, hashed buffer by buffer.

SHORT = 16  # Bytes of batch and image digests.
VIEWS_SHORT = 8  # Bytes of a views digest in the batch index.
_CHUNK = 1 << 20
_INTEGERS = np.dtype("<i4")
_KNOWN = "_views_digest"  # Attribute of a record that caches the digest of its views.


def file_digest(path: Path) -> str:
    """Return the hex SHA-256 of a file's bytes (what ``sha256sum`` prints)."""
    state = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            state.update(chunk)
    return state.hexdigest()


def bytes_digest(data: bytes) -> str:
    """Return the hex SHA-256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def image_digest(data: bytes) -> bytes:
    """Return the first 16 bytes of an image file's SHA-256."""
    return hashlib.sha256(data).digest()[:SHORT]


def views_digest(views: ViewBatch) -> bytes:
    """Return the 32-byte digest of a batch's views, cached. The batch index stores its first 8 bytes."""
    known: bytes | None = vars(views).get(_KNOWN)
    if known is None:
        known = hashlib.sha256(b"".join(_view_parts(views))).digest()
        vars(views)[_KNOWN] = known
    return known


def batch_digest(views: bytes, canonical: CanonicalBytes) -> bytes:
    """Return a batch's 16-byte digest. views: 32-byte digest of the views. canonical: bytes of the labels."""
    state = hashlib.sha256(views)
    for part in canonical:
        state.update(part)
    return state.digest()[:SHORT]


def _view_parts(views: ViewBatch) -> list[bytes | memoryview]:
    mix, cutout, patches = views.mix, views.cutout, views.patch_order
    tiles = 0 if patches is None else patches.shape[1]
    kind = 0 if mix is None else (2 if mix.box is None else 1)
    parts: list[bytes | memoryview] = [
        struct.pack("<5q", *views.key, views.rows, kind, (cutout is not None) + 2 * tiles),
        np.ascontiguousarray(views.images, _INTEGERS).data,
        np.ascontiguousarray(views.crops, _INTEGERS).data,
        np.ascontiguousarray(views.flips, np.uint8).data,
    ]
    if mix is not None:
        parts += [np.ascontiguousarray(mix.partner, _INTEGERS).data, struct.pack("<d", mix.strength)]
        if mix.box is not None:
            parts.append(struct.pack("<4q", *mix.box))
    if cutout is not None:
        parts += [np.ascontiguousarray(cutout.boxes, _INTEGERS).data, np.ascontiguousarray(cutout.fill).data]
    if patches is not None:
        parts.append(np.ascontiguousarray(patches).data)
    return parts


def pool_digest(
    header: PoolHeader, *, codec: str, identity: bytes, images: bytes, batches: Sequence[bytes]
) -> str:
    """Return a pool's content digest in hex.

    identity: result of `Codec.identity`. images: digest of the image table. batches: digests in key order.
    """
    augmentation = header.augmentation
    normalisations = [
        b"\0" if one.mean is None or one.std is None else struct.pack("<B6d", 1, *one.mean, *one.std)
        for one in header.teachers
    ]
    parts = [
        text_bytes("lpld-label-pool"),
        struct.pack("<I", header.classes),
        text_bytes(header.label_kind),
        text_bytes(codec),
        struct.pack("<I", len(identity)),
        identity,
        struct.pack("<2I", augmentation.output_height, augmentation.output_width),
        text_bytes(augmentation.resize),
        struct.pack("<I", len(header.teachers)),
        *normalisations,
        images,
        struct.pack("<Q", len(batches)),
    ]
    state = hashlib.sha256(b"".join(parts))
    for digest in batches:
        state.update(digest)
    return state.hexdigest()


def text_bytes(text: str) -> bytes:
    """Return a string's byte count and UTF-8 bytes, so that hashing several strings is unambiguous."""
    data = text.encode()
    return struct.pack("<I", len(data)) + data
