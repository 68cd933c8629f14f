"""The image table and its digest."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .errors import Refused, need
from .files import PoolFile
from .manifest import Manifest
from .names import check_image_path, folded
from .parquet import Parquet
from .schema import IMAGES


@dataclass(frozen=True)
class ImageTable:
    """One entry per image."""

    paths: list[str]
    classes: NDArray[np.int32]
    widths: NDArray[np.int32]
    heights: NDArray[np.int32]
    digests: list[bytes | None]

    def digest(self) -> bytes:
        """Give the image table digest, 32 bytes."""
        out = hashlib.sha256(text("lpld-image-table") + struct.pack("<Q", len(self.paths)))
        for path, number, digest in zip(self.paths, self.classes.tolist(), self.digests, strict=True):
            tail = b"\0" + text(path) if digest is None else b"\1" + digest
            out.update(struct.pack("<I", number) + tail)
        return out.digest()


def text(value: str) -> bytes:
    """Encode a string for a digest: uint32 length and UTF-8."""
    raw = value.encode("utf-8")
    return struct.pack("<I", len(raw)) + raw


def decode_path(raw: bytes, file: str) -> str:
    """Decode an image path and refuse one that is not plain."""
    try:
        path = raw.decode("utf-8", errors="strict")
    except UnicodeDecodeError as error:
        raise Refused(file, "path", f"not UTF-8: {error}") from error
    check_image_path(path, file, "path")
    return path


def in_range(values: NDArray[np.int32], low: int, high: int, file: str, field: str) -> None:
    """Refuse a column with a value out of range."""
    if values.size:
        inside = low <= int(values.min()) and int(values.max()) <= high
        need(inside, file, field, f"not from {low} to {high}")


def read_images(root: Path, manifest: Manifest) -> ImageTable:
    """Prove the image table by its SHA-256, then read and check it."""
    entry = manifest.of_role("images")[0]
    PoolFile(root, entry).prove()
    table = Parquet(root, entry, IMAGES, max_string=4096)
    table.check_growth()
    paths: list[str] = []
    digests: list[bytes | None] = []
    parts: dict[str, list[NDArray[np.int32]]] = {"class": [], "width": [], "height": []}
    seen: set[str] = set()
    for number, group in enumerate(table.groups):
        rows = np.asarray(table.required(number, "image"))
        expected = np.arange(group.first, group.first + group.rows)
        need(np.array_equal(rows, expected), entry.path, "image", "does not count 0, 1, 2, ...")
        for raw in table.required(number, "path"):
            path = decode_path(raw, entry.path)
            need(folded(path) not in seen, entry.path, "path", f"{path!r} occurs twice after case folding")
            seen.add(folded(path))
            paths.append(path)
        for name, low, high in (
            ("class", 0, manifest.classes - 1),
            ("width", 1, 65535),
            ("height", 1, 65535),
        ):
            values = np.asarray(table.required(number, name))
            in_range(values, low, high, entry.path, name)
            parts[name].append(values)
        found, there = table.nullable(number, "digest")
        known = iter(found)
        digests += [next(known).tobytes() if flag else None for flag in there]
    none = np.zeros(0, np.int32)
    columns = [np.concatenate([none, *parts[name]]) for name in ("class", "width", "height")]
    return ImageTable(paths, columns[0], columns[1], columns[2], digests)
