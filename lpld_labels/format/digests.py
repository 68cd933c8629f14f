"""Digests: per file (are these the bytes?), per batch and per pool (are these the labels?).

All are SHA-256. Batch digests keep the first 16 bytes. The pool's content digest is taken over
batch digests in key order, so sharding, lineage and packing do not change it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lpld_labels.format.records import ViewBatch

CanonicalBytes = Sequence[bytes | memoryview]
"""A batch's stored label values in the one form that digests are taken over, piece by piece."""
SHORT = 16
_CHUNK = 1 << 20


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


def batch_digest(views: ViewBatch, canonical: CanonicalBytes) -> bytes:
    """Return the 16-byte digest of one batch: its views, then its stored label values."""
    state = hashlib.sha256()
    for part in _view_parts(views):
        state.update(part)
    for canonical_part in canonical:
        state.update(canonical_part)
    return state.digest()[:SHORT]


def _view_parts(views: ViewBatch) -> list[bytes]:
    mix, cutout, patches = views.mix, views.cutout, views.patch_order
    tiles = 0 if patches is None else patches.shape[1]
    kind = 0 if mix is None else (2 if mix.box is None else 1)
    parts = [
        struct.pack("<5q", *views.key, views.rows, kind, (cutout is not None) + 2 * tiles),
        _bytes(views.images, "<i4"),
        _bytes(views.crops, "<i4"),
        _bytes(views.flips, "u1"),
    ]
    if mix is not None:
        parts += [_bytes(mix.partner, "<i4"), struct.pack("<d", mix.strength)]
        if mix.box is not None:
            parts.append(struct.pack("<4q", *mix.box))
    if cutout is not None:
        parts += [_bytes(cutout.boxes, "<i4"), _bytes(cutout.fill, "u1")]
    if patches is not None:
        parts.append(_bytes(patches, "u1"))
    return parts


def _bytes(array: npt.NDArray[np.generic], dtype: str) -> bytes:
    return np.ascontiguousarray(array, dtype=np.dtype(dtype)).tobytes()


def content_digest(
    *, classes: int, label_kind: str, codec_identity: str, images_digest: str, batch_digests: list[bytes]
) -> str:
    """Return the pool's content digest; `batch_digests` come in key order."""
    head = f"lpld-label-pool\n{classes}\n{label_kind}\n{codec_identity}\n{images_digest}\n"
    state = hashlib.sha256(head.encode())
    for digest in batch_digests:
        state.update(digest)
    return state.hexdigest()
