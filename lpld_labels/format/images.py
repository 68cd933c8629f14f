"""The image table: path, class, size and digest of each image. Views refer to images by index."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.digests import text_bytes
from lpld_labels.format.limits import MAX_CLASSES, MAX_SIDE
from lpld_labels.format.records import IntArray
from lpld_labels.format.schema import IMAGE_SCHEMA, image_paths_problem


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageTable:
    """All images of a pool.

    paths: relative POSIX path of each image below the image folder.
    classes: int32 [N], class indices. widths, heights: int32 [N], sizes in pixels (>= 1).
    digests: for each image file the first 16 bytes of its SHA-256, or None if unknown.
    """

    paths: Sequence[str]
    classes: IntArray
    widths: IntArray
    heights: IntArray
    digests: Sequence[bytes | None]

    def __post_init__(self) -> None:
        lengths = {len(self.paths), len(self.classes), len(self.widths), len(self.heights), len(self.digests)}
        if len(lengths) != 1:
            raise InvalidArgumentError("image table columns differ in length", got=sorted(lengths))
        for field, values, low, high in (
            ("class", self.classes, 0, MAX_CLASSES - 1),
            ("width", self.widths, 1, MAX_SIDE),
            ("height", self.heights, 1, MAX_SIDE),
        ):
            for row in np.flatnonzero((values < low) | (values > high)).tolist():
                raise InvalidArgumentError(
                    f"image {row} has a {field} out of range", expected=f"{low} to {high}", got=values[row]
                )
        problem = image_paths_problem(self.paths)
        if problem is not None:
            row, expected = problem
            raise InvalidArgumentError(
                f"path of image {row} is not allowed in pools",
                expected=expected,
                got=repr(self.paths[row][:200]),
                hint="rename this file",
            )

    def __len__(self) -> int:
        return len(self.paths)

    def digest(self) -> bytes:
        """Return the 32-byte digest of all classes and image digests. If a digest is None, hash the path."""
        parts = [text_bytes("lpld-image-table"), struct.pack("<Q", len(self))]
        for label, digest, path in zip(self.classes.tolist(), self.digests, self.paths, strict=True):
            known = text_bytes(path) if digest is None else digest
            parts.append(struct.pack("<IB", label, digest is not None) + known)
        return hashlib.sha256(b"".join(parts)).digest()

    def to_table(self) -> pa.Table:
        numbers = np.arange(len(self), dtype=np.int32)
        columns: list[Any] = [numbers, self.paths, self.classes, self.widths, self.heights, self.digests]
        arrays = [pa.array(values, kind) for values, kind in zip(columns, IMAGE_SCHEMA.types, strict=True)]
        return pa.Table.from_arrays(arrays, schema=IMAGE_SCHEMA)

    @staticmethod
    def from_table(table: pa.Table, *, classes: int) -> ImageTable:
        """Read the image table of a pool with `classes` classes; raise InvalidArgumentError if invalid."""
        numbers = table["image"].to_numpy()
        if not np.array_equal(numbers, np.arange(len(numbers))):
            raise InvalidArgumentError("column 'image' does not count 0, 1, 2, ...")
        labels = table["class"].to_numpy()
        if int(labels.max(initial=0)) >= classes:
            raise InvalidArgumentError(
                "column 'class' is out of range", expected=f"0 to {classes - 1}", got=int(labels.max())
            )
        try:
            paths = cast("list[str]", table["path"].to_pylist())
        except UnicodeDecodeError:
            raise InvalidArgumentError("column 'path' is not UTF-8") from None
        return ImageTable(
            paths=paths,
            classes=labels,
            widths=table["width"].to_numpy(),
            heights=table["height"].to_numpy(),
            digests=table["digest"].to_pylist(),
        )
