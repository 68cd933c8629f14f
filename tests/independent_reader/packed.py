"""Packed images: the image files themselves, proven by the digests of the image table."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .errors import need
from .image_table import ImageTable, decode_path
from .manifest import Manifest
from .parquet import Parquet
from .schema import PACKED


def _group(table: Parquet, number: int, first: int, images: ImageTable) -> list[bytes]:
    """Read one row group and compare it with the image table."""
    file, stop = table.entry.path, first + table.groups[number].rows
    rows = np.asarray(table.required(number, "row"))
    need(np.array_equal(rows, np.arange(first, stop)), file, "row", "not the next rows of the image table")
    classes = np.asarray(table.required(number, "class"))
    need(np.array_equal(classes, images.classes[first:stop]), file, "class", "not the image table's")
    paths = [decode_path(raw, file) for raw in table.required(number, "image.path")]
    need(paths == images.paths[first:stop], file, "path", "not the image table's")
    out: list[bytes] = table.required(number, "image.bytes")
    for row, data in enumerate(out, first):
        need(1 <= len(data) <= 2**28, file, "bytes", f"image {row} has {len(data)} bytes")
        digest = images.digests[row]
        need(digest is not None, "images.parquet", "digest", "null though images are packed")
        same = hashlib.sha256(data).digest()[:16] == digest
        need(same, file, "bytes", f"image {row} has another digest")
    return out


def packed_images(root: Path, manifest: Manifest, images: ImageTable) -> Iterator[bytes]:
    """Give the image files in the order of the image table, row group by row group."""
    first = 0
    for entry in manifest.of_role("packed"):
        table = Parquet(root, entry, PACKED, frozenset(("image.bytes",)), max_string=2**28)
        for number, group in enumerate(table.groups):
            yield from _group(table, number, first, images)
            first += group.rows


def packed_image(root: Path, manifest: Manifest, images: ImageTable, row: int) -> bytes:
    """Give one image file."""
    need(0 <= row < len(images.paths), "images.parquet", "image", f"no row {row}")
    first = 0
    for entry in manifest.of_role("packed"):
        if row < first + entry.rows:
            table = Parquet(root, entry, PACKED, frozenset(("image.bytes",)), max_string=2**28)
            number = table.group_of(row - first, 1)
            start = first + table.groups[number].first
            return _group(table, number, start, images)[row - start]
        first += entry.rows
    raise LookupError("the pool does not carry its images")
