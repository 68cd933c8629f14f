"""Codecs `f16` and `f32`."""

from __future__ import annotations

import numpy as np

from .blobs import join_planes, unzstd
from .codec_base import Decoded, Part, little
from .fields import Fields
from .schema import BYTES, FIXED, FLOAT, REQUIRED, Node, column, list_column


class FloatCodec:
    """IEEE half or single precision values."""

    def __init__(self, name: str, parameters: Fields, classes: int) -> None:
        """Take the layout."""
        self.classes = classes
        self.dtype = "<f2" if name == "f16" else "<f4"
        self.planes = 2 if name == "f16" else 4
        self.compact = parameters.choice("layout", ("compact", "plain")) == "compact"
        parameters.finish(ignorable=False)
        self.per_view = not self.compact
        if self.compact:
            self.nodes = tuple(column(f"plane_{k}", BYTES) for k in range(self.planes))
        elif name == "f16":
            self.nodes = (list_column("labels", Node("element", REQUIRED, FIXED, 2, "FLOAT16")),)
        else:
            self.nodes = (list_column("labels", column("element", FLOAT)),)

    def identity(self) -> bytes:
        """Give none."""
        return b""

    def decode(self, part: Part) -> Decoded:
        """Decode one batch."""
        shape = (part.rows, self.classes)
        if self.compact:
            size = part.rows * self.classes
            names = [f"plane_{k}" for k in range(self.planes)]
            planes = [unzstd(part.blob(name), size, part.file, name) for name in names]
            values = join_planes(planes, self.dtype, shape)
        else:
            values = np.ascontiguousarray(part.array("labels")).reshape(-1).view(self.dtype).reshape(shape)
        part.finite(values, "labels")
        return Decoded(values.astype(np.float32), (little(values),))
