"""Measuring codecs on a pool: sizes apart and together, what is kept, and how fast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.harness import interleaved
from benchmarks.label_source import LabelSource
from lpld_labels import Augmentation, ImageTable, PoolHeader, PoolReader, PoolWriter
from lpld_labels.codecs import Codec, codec_named
from lpld_labels.codecs.klt import KltCodec
from lpld_labels.codecs.klt_fit import KltFitter
from lpld_labels.encode_size import weigh
from lpld_labels.fidelity import Fidelity
from lpld_labels.records import LabelArray
from lpld_labels.trial import rebatched, try_codec

MILLION = 1_000_000
ROWS = (10_000, MILLION, 60_000_000)
SIMPLE = ("f16", "int8", "int6", "int4")
TOP_K = (5, 10, 20, 50, 100, 200)
STEPS = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6)
DEMANDS = ((0.99, 1.0), (0.97, 20.0), (0.96, 20.0), (0.90, 20.0))
QUICK_TOP_K, QUICK_STEPS, QUICK_DEMANDS = (10, 50), (0.7, 1.0, 4.0), ((0.99, 1.0), (0.91, 20.0))
TUNE_EVERY = 5
"""One in so many batches of the fitting half chooses which directions are worth keeping."""


@dataclass(frozen=True, kw_only=True)
class RowBytes:
    """Bytes per row of a pool: label payload, share of the codec's tables, container of the labels files."""

    payload: float
    tables: float
    container: float

    @property
    def total(self) -> float:
        """Everything but views and image table, which are the same for every codec."""
        return self.payload + self.tables + self.container

    def as_json(self) -> dict[str, float]:
        """Return the parts and their sum."""
        parts = {"payload": self.payload, "tables": self.tables, "container": self.container}
        return {name: round(value, 3) for name, value in {**parts, "total": self.total}.items()}


@dataclass(frozen=True, kw_only=True)
class Point:
    """One codec setting: bytes per row by rows of the pool, kept information, MB/s of fp16 logits."""

    name: str
    family: str
    sizes: dict[int, RowBytes]
    fidelity: Fidelity
    encode_rate: float
    decode_rate: float

    @property
    def payload(self) -> float:
        """Payload bytes per row in a pool of a million rows."""
        return self.sizes[MILLION].payload

    def as_json(self) -> dict[str, Any]:
        """Return the numbers for a results file."""
        return {
            "codec": self.name,
            "family": self.family,
            "bytes_per_row": {str(rows): size.as_json() for rows, size in self.sizes.items()},
            **self.fidelity.as_json(),
            "encode_mb_per_s": round(self.encode_rate, 1),
            "decode_mb_per_s": round(self.decode_rate, 1),
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class RateDistortion:
    """All settings measured on one pool, and how close entropy coding comes to the entropy at step 1.

    codec: klt at step 1, for further measurements. entropy, coded: bytes per row.
    """

    name: str
    classes: int
    rows_fitted: int
    rows_measured: int
    points: tuple[Point, ...]
    codec: KltCodec
    entropy: float
    coded: float
    sample: LabelArray

    def family(self, name: str) -> list[Point]:
        """Return the points of a family by rising size."""
        return sorted((p for p in self.points if p.family == name), key=lambda point: point.payload)

    def as_json(self) -> dict[str, Any]:
        """Return the numbers for a results file."""
        return {
            "labels": self.name,
            "classes": self.classes,
            "rows_fitted": self.rows_fitted,
            "rows_measured": self.rows_measured,
            "entropy_at_step_1": {
                "empirical_bytes_per_row": round(self.entropy, 2),
                "coded_bytes_per_row": round(self.coded, 2),
            },
            "settings": [point.as_json() for point in self.points],
        }

    @staticmethod
    def measure(pool: PoolReader, *, quick: bool = False) -> RateDistortion:
        """Fit on every other batch, measure on the rest; one thread."""
        with threadpool_limits(1):
            return _Bench(pool, quick=quick).run()


class _Bench:
    def __init__(self, pool: PoolReader, *, quick: bool) -> None:
        self._pool = pool
        self._quick = quick
        first = [np.array(pool.read_labels(key)) for key in pool.keys[::2]]
        self._rest = [np.array(pool.read_labels(key)) for key in pool.keys[1::2]]
        tune = first[::TUNE_EVERY]
        fit = [block for place, block in enumerate(first) if place % TUNE_EVERY]
        self._fitted = sum(map(len, fit))
        self._fitter = KltFitter(
            fit=fit,
            tune=tune,
            rows=MILLION,
            batch_size=pool.header.batch_size,
            label_kind=pool.header.label_kind,
        )

    def run(self) -> RateDistortion:
        codec = self._fitter.codec(1.0)
        integers = np.concatenate([codec.integers(block) for block in self._rest])
        return RateDistortion(
            name=Path(self._pool.location).name,
            classes=self._pool.classes,
            rows_fitted=self._fitted,
            rows_measured=sum(map(len, self._rest)),
            points=tuple(self._points()),
            codec=codec,
            entropy=_entropy(integers),
            coded=self._tried(codec)[0],
            sample=rebatched(self._rest, self._pool.header.batch_size)[0],
        )

    def _points(self) -> Iterator[Point]:
        kind = self._pool.header.label_kind
        for name in SIMPLE:
            yield self._point(name, "int-n" if name != "f16" else name, codec_named(name))
        for k in QUICK_TOP_K if self._quick else TOP_K:
            for bits in (16, 8):
                if k < self._pool.classes:
                    name = f"topk:{k}:{bits}"
                    yield self._point(name, f"top-k, {bits} bits", codec_named(name, label_kind=kind))
        steps = QUICK_STEPS if self._quick else STEPS
        settings: list[tuple[str, dict[int, KltCodec]]] = [
            (f"klt step {step:g}", {rows: self._fitter.for_rows(rows).codec(step) for rows in ROWS})
            for step in steps
        ]
        for fidelity, temperature in QUICK_DEMANDS if self._quick else DEMANDS:
            codecs = {
                rows: self._fitter.for_rows(rows).for_fidelity(fidelity, temperature=temperature)
                for rows in ROWS
            }
            settings.append((f"klt {fidelity:g} at T={temperature:g}", codecs))
        for name, codecs in settings:
            yield self._point(name, "klt", codecs[MILLION], codecs)

    def _point(
        self, name: str, family: str, codec: Codec, by_rows: dict[int, KltCodec] | None = None
    ) -> Point:
        payload, fidelity = self._tried(codec)
        batch = rebatched(self._rest, self._pool.header.batch_size)[0]
        encoded = codec.encode(batch).payload
        timings = interleaved(
            {
                "encode": partial(codec.encode, batch),
                "decode": partial(codec.decode, encoded, rows=len(batch), classes=batch.shape[1]),
            },
            runs=3 if self._quick else 15,
        )
        half_bytes = batch.size * 2 / 1e6
        sizes = {}
        for rows in ROWS:
            used = codec if by_rows is None else by_rows[rows]
            own = payload if used is codec else self._tried(used)[0]
            labels = weigh(self._pool, used, self._pool.keys[1::2]).labels_per_batch
            sizes[rows] = RowBytes(
                payload=own,
                tables=sum(map(len, used.tables().values())) / rows,
                container=max(labels / self._pool.header.batch_size - self._weighed_payload(used), 0.0),
            )
        return Point(
            name=name,
            family=family,
            sizes=sizes,
            fidelity=fidelity,
            encode_rate=half_bytes / timings["encode"].median,
            decode_rate=half_bytes / timings["decode"].median,
        )

    def _weighed_payload(self, codec: Codec) -> float:
        """Return payload bytes per row of the batches that `weigh` takes."""
        size = self._pool.header.batch_size
        blocks: Sequence[LabelArray] = self._rest[: max(1, min(16, 4096 // size))]
        return try_codec(codec, blocks, batch_size=size, temperatures=(1.0,)).payload_per_row

    def _tried(self, codec: Codec) -> tuple[float, Fidelity]:
        header = self._pool.header
        trial = try_codec(codec, self._rest, batch_size=header.batch_size, label_kind=header.label_kind)
        return trial.payload_per_row, trial.fidelity


def real_pool(data: Path, folder: Path) -> PoolReader:
    """Write the shared real logits as a pool of their 42 batches."""
    source = LabelSource.load(data)
    side = 224
    augmentation = Augmentation(output_height=side, output_width=side, resize="pil", mix="cutmix")
    sizes = np.full(1000, side, np.int32)
    images = ImageTable(
        paths=[f"{number:04d}.jpg" for number in range(1000)],
        classes=np.arange(1000, dtype=np.int32),
        widths=sizes,
        heights=sizes,
        digests=[None] * 1000,
    )
    header = PoolHeader(classes=1000, batch_size=128, augmentation=augmentation)
    with PoolWriter(folder, header=header, images=images) as writer:
        count = source.rows // 128
        writer.extend(
            source.batches(count, rows=128, augmentation=augmentation, images=1000, per_epoch=count)
        )
        writer.commit()
    return PoolReader(folder)


def _entropy(integers: LabelArray) -> float:
    """Return the sum of the columns' empirical entropies, in bytes per row."""
    bits = 0.0
    for column in integers.T:
        share = np.unique(column, return_counts=True)[1] / len(column)
        bits -= float((share * np.log2(share)).sum())
    return bits / 8
