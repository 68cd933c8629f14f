"""Codec `klt`: coordinates in a basis fitted to the pool."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .blobs import npy_vector, pcodec_int16
from .codec_base import Decoded, Floats, Part, little
from .codec_topk import classes_of_gaps
from .errors import need
from .fields import Fields
from .schema import BYTES, column

TABLES = ("basis.pco", "scale.npy", "mean.npy")
Load = Callable[[str, int], bytes]


@dataclass(frozen=True)
class Tables:
    """The tables of the codec."""

    basis: NDArray[np.int16]
    scale: Floats
    mean: NDArray[np.float16]

    def digest(self) -> bytes:
        """Give the SHA-256 of the identity bytes."""
        return hashlib.sha256(little(self.basis) + little(self.scale) + little(self.mean)).digest()

    def vectors(self) -> Floats:
        """Give the basis vectors in float32, [L + 1, C]."""
        out = np.empty((len(self.basis) + 1, len(self.mean)), np.float32)
        out[0] = np.float32(1.0 / math.sqrt(len(self.mean)))
        with np.errstate(over="ignore"):
            np.multiply(self.basis, self.scale[:, None], out=out[1:], dtype=np.float32, casting="same_kind")
        return out


def read_tables(load: Load, length: int, classes: int) -> Tables:
    """Read the tables; `load` proves a file of at most so many bytes."""
    header = 10 + 65535
    scale = npy_vector(load("scale.npy", header + 4 * length), "<f4", length, "codec/scale.npy")
    mean = npy_vector(load("mean.npy", header + 2 * classes), "<f2", classes, "codec/mean.npy")
    blob = load("basis.pco", 2**20 + 4 * length * classes)
    basis = pcodec_int16(blob, (length, classes), "codec/basis.pco", "basis")
    need(np.isfinite(scale).all(), "codec/scale.npy", "scale", "NaN or infinite")
    need(np.isfinite(mean).all(), "codec/mean.npy", "mean", "NaN or infinite")
    return Tables(basis, scale, mean)


class KltCodec:
    """Coefficients quantised with one step, and peaks."""

    per_view = False

    def __init__(self, parameters: Fields, classes: int, label_kind: str, load: Load) -> None:
        """Take the parameters and the tables."""
        name, file = parameters.name, parameters.file
        self.classes, self.label_kind = classes, label_kind
        self.step = parameters.number("step")
        with np.errstate(over="ignore"):
            narrow = np.float32(self.step)
        need(narrow > 0 and np.isfinite(narrow), file, name("step"), "not above 0 and finite in float32")
        self.edges: list[int] = parameters.items("edges", classes + 2)
        whole = all(isinstance(e, int) and not isinstance(e, bool) for e in self.edges)
        need(whole and len(self.edges) >= 2 and self.edges[0] == 0, file, name("edges"), "no edges from 0")
        rising = all(a < b for a, b in pairwise(self.edges))
        need(rising, file, name("edges"), "not rising")
        self.length = self.edges[-1] - 1
        need(self.length <= classes, file, name("edges"), "L is above C")
        need(self.length * classes <= 2**26, file, name("edges"), "L x C is above 2^26")
        self.peaks = parameters.integer("peaks", 0, classes)
        need(parameters.string("label_kind") == label_kind, file, name("label_kind"), "not the manifest's")
        need(isinstance(parameters.take("target"), dict), file, name("target"), "not an object")
        parameters.finish(ignorable=False)
        names = [f"band_{k}" for k in range(len(self.edges) - 1)]
        names += ["peak_gaps", "peak_values"] if self.peaks else []
        self.nodes = tuple(column(item, BYTES) for item in names)
        self.tables = read_tables(load, self.length, classes)
        self._vectors: Floats | None = None

    def identity(self) -> bytes:
        """Give step, m and the tables' digest."""
        return struct.pack("<dI", self.step, self.peaks) + self.tables.digest()

    def decode(self, part: Part) -> Decoded:
        """Decode one batch."""
        integers = np.empty((part.rows, self.length + 1), np.int16)
        for k, (low, high) in enumerate(pairwise(self.edges)):
            band = pcodec_int16(part.blob(f"band_{k}"), (part.rows, high - low), part.file, f"band_{k}")
            integers[:, low:high] = band
        if self._vectors is None:
            self._vectors = self.tables.vectors()
        canonical = [little(integers)]
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = integers.astype(np.float32) * np.float32(self.step)
            labels = np.matmul(scaled, self._vectors, dtype=np.float32)
            labels += self.tables.mean.astype(np.float32)
            if self.peaks:
                classes = classes_of_gaps(part, "peak_gaps", self.peaks, self.classes)
                shape = (part.rows, self.peaks)
                values = pcodec_int16(part.blob("peak_values"), shape, part.file, "peak_values")
                rows = np.arange(part.rows)[:, None]
                labels[rows, classes] += values.astype(np.float32) * np.float32(self.step / 8)
                canonical += [little(classes.astype(np.int32)), little(values)]
        part.finite(labels, "labels")
        if self.label_kind == "probabilities":
            labels -= labels.max(axis=1, keepdims=True)
            np.exp(labels, out=labels)
            labels /= labels.sum(axis=1, keepdims=True)
        return Decoded(labels, tuple(canonical))
