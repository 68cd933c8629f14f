"""Labels of a pool, drawn at random: some to fit a codec, others to tune it, others to judge it."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.order import keyed_generator
from lpld_labels.reader import PoolReader
from lpld_labels.records import BatchKey, LabelArray

FIT_VALUES = 1 << 25
FIT_ROWS = (8192, 65536)
"""Fit on FIT_VALUES label values (33,554 rows of 1000 classes), but within these numbers of rows."""
TUNE_ROWS = 2048
MEASURE_ROWS = 4096


class LabelSample:
    """Whole batches of a pool, each for one purpose only, read when they are asked for.

    A pool of two batches has none left to judge with: tuning and judging then share. Of a single batch
    every other row is for fitting.
    """

    def __init__(self, pool: PoolReader, *, seed: int = 0) -> None:
        self._pool = pool
        keys = list(pool.keys)
        if not keys:
            raise InvalidArgumentError("the pool has no labels", where=pool.location, expected="a batch")
        order = keyed_generator(seed, len(keys)).permutation(len(keys))
        shuffled = [keys[place] for place in order.tolist()]
        size = pool.header.batch_size
        wanted = {
            "tune": min(-(-TUNE_ROWS // size), max(len(keys) // 4, 1)),
            "measure": min(-(-MEASURE_ROWS // size), len(keys) // 4),
            "fit": -(-min(max(FIT_VALUES // pool.classes, FIT_ROWS[0]), FIT_ROWS[1]) // size),
        }
        self._single = len(keys) == 1
        self._keys: dict[str, list[BatchKey]] = {}
        for purpose, count in wanted.items():
            self._keys[purpose], shuffled = shuffled[:count], shuffled[count:]

    @cached_property
    def fit(self) -> list[LabelArray]:
        """Blocks [B, C] to fit to."""
        if self._single:
            return [block[::2] for block in self._read("tune")]
        return self._read("fit")

    @cached_property
    def tune(self) -> list[LabelArray]:
        """Blocks [B, C] to choose settings by."""
        blocks = self._read("tune")
        return [block[1::2] for block in blocks] if self._single else blocks

    @cached_property
    def measure(self) -> list[LabelArray]:
        """Blocks [B, C] to judge the result by; none of their rows were fitted to."""
        return self._read("measure") or self.tune

    def _read(self, purpose: str) -> list[LabelArray]:
        # Copies, because what a reader hands out may hold on to a whole row group.
        return [np.array(self._pool.read_labels(key)) for key in sorted(self._keys[purpose])]
