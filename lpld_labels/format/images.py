"""The image table: which files the labels are about.

Views point into it by row number. Digests let a loader prove that the folder it was given is the
one that was labelled.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.schema import IMAGE_SCHEMA

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageTable:
    """All images of a pool, in the order views refer to them.

    paths: relative POSIX path of each image below the image folder.
    classes, widths, heights: int32 [N]; class index, size in pixels (>= 1).
    digests: first 16 bytes of the SHA-256 of each file, or None where the file was not at hand.
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
        if len(self) and (self.classes.min() < 0 or self.widths.min() < 1 or self.heights.min() < 1):
            raise InvalidArgumentError("image table has a negative class or an empty image")

    def __len__(self) -> int:
        return len(self.paths)

    def digest(self) -> str:
        """Return the hex digest of classes and image contents (paths only where contents are unknown)."""
        lines = (
            b"%d:%s\n" % (label, digest if digest is not None else b"path:" + path.encode())
            for label, digest, path in zip(self.classes.tolist(), self.digests, self.paths, strict=True)
        )
        return hashlib.sha256(b"".join(lines)).hexdigest()

    def to_table(self) -> pa.Table:
        columns = [
            pa.array(np.arange(len(self), dtype=np.int32)),
            pa.array(self.paths, pa.string()),
            pa.array(self.classes, pa.int32()),
            pa.array(self.widths, pa.int32()),
            pa.array(self.heights, pa.int32()),
            pa.array(self.digests, pa.binary(16)),
        ]
        return pa.Table.from_arrays(columns, schema=IMAGE_SCHEMA)

    def to_parquet(self) -> bytes:
        """Return the bytes of images.parquet."""
        sink = io.BytesIO()
        pq.write_table(self.to_table(), sink, compression="zstd", write_page_checksum=True)
        return sink.getvalue()

    @staticmethod
    def from_table(table: pa.Table) -> ImageTable:
        return ImageTable(
            paths=table["path"].to_pylist(),
            classes=table["class"].to_numpy(),
            widths=table["width"].to_numpy(),
            heights=table["height"].to_numpy(),
            digests=table["digest"].to_pylist(),
        )
