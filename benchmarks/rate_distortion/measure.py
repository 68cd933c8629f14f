"""Measuring codecs on a pool: sizes apart and together, what is kept, and how fast."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from lpld_labels import PoolReader
from lpld_labels.codecs import Codec, codec_named
from lpld_labels.codecs.fidelity import Fidelity, payload_bytes, rebatched, try_codec
from lpld_labels.codecs.klt import KltCodec
from lpld_labels.codecs.klt_fit import KltFitter
from lpld_labels.codecs.packing import pack_bands
from lpld_labels.format.records import LabelArray
from lpld_labels.transforms.encode import LabelSample
from lpld_labels.transforms.settings import EncodeSettings

MILLION = 1_000_000
ROWS = (10_000, MILLION, 60_000_000)
SIMPLE = ("f16", "int8", "int6", "int4")
TOP_K = (5, 10, 20, 50, 100, 200)
STEPS = (0.015, 0.03, 0.06, 0.12, 0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0)
PEAKS = (1, 4, 16)
DEMANDS = ((0.99, 1.0), (0.97, 20.0), (0.96, 20.0), (0.90, 20.0))
QUICK_TOP_K, QUICK_STEPS, QUICK_PEAKS, QUICK_DEMANDS = (
    (10, 50),
    (0.03, 0.7, 4.0),
    (1, 4),
    ((0.965, 20.0), (0.905, 20.0)),
)
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
    """One codec setting: bytes per row by rows of the pool, kept information, fp16 MB/s per core."""

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

    def envelope(self, temperature: float) -> list[Point]:
        """Return the klt settings that no other beats at a temperature, by rising size."""
        best: list[Point] = []
        for point in sorted((p for p in self.points if p.family.startswith("klt")), key=lambda p: p.payload):
            if not best or point.fidelity.kept[temperature] > best[-1].fidelity.kept[temperature]:
                best.append(point)
        return best

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
        self._sample = LabelSample(pool, EncodeSettings(codec="klt"))
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
        integers = np.concatenate([codec.numbers(block).integers for block in self._rest])
        return RateDistortion(
            name=Path(self._pool.location).name,
            classes=self._pool.classes,
            rows_fitted=self._fitted,
            rows_measured=sum(map(len, self._rest)),
            points=tuple(self._points()),
            codec=codec,
            entropy=_entropy(integers),
            coded=sum(
                len(blob)
                for block in self._rest
                for blob in pack_bands(codec.numbers(block).integers, codec.edges)
            )
            / len(integers),
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
        for step in QUICK_STEPS if self._quick else STEPS:
            for peaks in QUICK_PEAKS if self._quick else PEAKS:
                codecs = {rows: self._fitter.for_rows(rows).codec(step, peaks=peaks) for rows in ROWS}
                name = f"klt step {step:g}, {peaks} peak{'s' * (peaks > 1)}"
                yield self._point(name, "klt", codecs[MILLION], codecs)
        for fidelity, temperature in QUICK_DEMANDS if self._quick else DEMANDS:
            codecs = {
                rows: self._fitter.for_rows(rows).for_fidelity(fidelity, temperature=temperature)
                for rows in ROWS
            }
            name = f"klt {fidelity:g} at T={temperature:g}"
            yield self._point(name, "klt, by fidelity", codecs[MILLION], codecs)

    def _point(
        self, name: str, family: str, codec: Codec, by_rows: dict[int, KltCodec] | None = None
    ) -> Point:
        payload, fidelity = self._tried(codec)
        batch = rebatched(self._rest, self._pool.header.batch_size)[0]
        encoded = codec.encode(batch).payload
        runs = 3 if self._quick else 15
        half_bytes = batch.size * 2 / 1e6
        size = self._pool.header.batch_size
        weighed = self._sample.weigh(codec).labels_per_row
        container = max(weighed - self._payload(codec, self._rest[: max(1, min(16, 4096 // size))]), 0.0)
        sizes = {}
        for rows in ROWS:
            used = codec if by_rows is None else by_rows[rows]
            sizes[rows] = RowBytes(
                payload=payload if used is codec else self._payload(used, self._rest),
                tables=sum(map(len, used.tables().values())) / rows,
                container=container,
            )
        return Point(
            name=name,
            family=family,
            sizes=sizes,
            fidelity=fidelity,
            encode_rate=half_bytes / cpu_seconds(partial(codec.encode, batch), runs),
            decode_rate=half_bytes
            / cpu_seconds(partial(codec.decode, encoded, rows=len(batch), classes=batch.shape[1]), runs),
        )

    def _payload(self, codec: Codec, blocks: Sequence[LabelArray]) -> float:
        """Return payload bytes per row of some blocks."""
        batches = rebatched(blocks, self._pool.header.batch_size)
        used = sum(payload_bytes(codec.encode(batch).payload) for batch in batches)
        return used / sum(map(len, batches))

    def _tried(self, codec: Codec) -> tuple[float, Fidelity]:
        header = self._pool.header
        trial = try_codec(codec, self._rest, batch_size=header.batch_size, label_kind=header.label_kind)
        return trial.payload_per_row, trial.fidelity


def cpu_seconds(call: Callable[[], object], runs: int) -> float:
    """Return the median processor time of a call: what one core needs, however busy the others are."""
    seconds = []
    for number in range(runs + 2):
        start = time.process_time()
        call()
        if number >= 2:
            seconds.append(time.process_time() - start)
    return float(np.median(seconds))


def _entropy(integers: LabelArray) -> float:
    """Return the sum of the columns' empirical entropies, in bytes per row."""
    bits = 0.0
    for column in integers.T:
        share = np.unique(column, return_counts=True)[1] / len(column)
        bits -= float((share * np.log2(share)).sum())
    return bits / 8
