"""Labels of a pool, drawn at random: some to fit a codec, others to tune it, others to judge it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from lpld_labels.codecs import Codec
from lpld_labels.codecs.fidelity import TEMPERATURES, Fidelity, try_codec
from lpld_labels.codecs.fitting import NO_KEEPER, Keeper
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.random_streams import keyed_generator
from lpld_labels.format.records import BatchKey, LabelArray
from lpld_labels.pool.checkpoint import keys_digest
from lpld_labels.pool.reader import PoolReader

FIT_VALUES = 1 << 25
FIT_ROWS = (8192, 65536)
"""Fit on FIT_VALUES label values (33,554 rows of 1000 classes), but within these numbers of rows."""
TUNE_VALUES = 1 << 21
TUNE_ROWS = (768, 4096)
"""Likewise for choosing settings, which decodes these rows a dozen times."""
MEASURE_ROWS = 4096


class LabelSample:
    """Whole batches of a pool, each for one purpose only, read when they are asked for.

    A pool of two batches has none left to judge with: tuning and judging then share. Of a single batch
    every other row is for fitting. keeper: of what is read and measured.
    """

    def __init__(self, pool: PoolReader, *, seed: int = 0, keeper: Keeper = NO_KEEPER) -> None:
        self.pool = pool
        keys = list(pool.keys)
        if not keys:
            raise InvalidArgumentError("the pool has no labels", where=pool.location, expected="a batch")
        order = keyed_generator(seed, len(keys)).permutation(len(keys))
        shuffled = [keys[place] for place in order.tolist()]
        size = pool.header.batch_size
        quarter = len(keys) // 4
        wanted = {
            "tune": min(_batches(TUNE_VALUES // pool.classes, TUNE_ROWS, size), max(quarter, 1)),
            "measure": min(-(-MEASURE_ROWS // size), quarter),
            "fit": _batches(FIT_VALUES // pool.classes, FIT_ROWS, size),
        }
        self._single = len(keys) == 1
        self._keys: dict[str, list[BatchKey]] = {}
        for purpose, count in wanted.items():
            chosen, shuffled = shuffled[:count], shuffled[count:]
            self._keys[purpose] = sorted(chosen)
        self.keeper = keeper.about(**{purpose: keys_digest(chosen) for purpose, chosen in self._keys.items()})

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

    def judged(self, codec: Codec, *, temperatures: Sequence[float] = TEMPERATURES) -> Fidelity:
        """Return what a codec keeps of the labels to judge by."""
        header = self.pool.header
        trial = try_codec(
            codec,
            self.measure,
            batch_size=header.batch_size,
            label_kind=header.label_kind,
            temperatures=temperatures,
        )
        return trial.fidelity

    def _read(self, purpose: str) -> list[LabelArray]:
        blocks = dict(self.keeper.get(purpose) or {})
        for key in self._keys[purpose][len(blocks) :]:
            # A copy, because what a reader hands out may hold on to a whole row group.
            blocks[str(len(blocks))] = np.array(self.pool.read_labels(key))
            self.keeper.put(purpose, blocks)
        return [blocks[str(number)] for number in range(len(blocks))]


def _batches(rows: int, bounds: tuple[int, int], batch_size: int) -> int:
    """Return how many batches hold so many rows, within bounds."""
    return -(-min(max(rows, bounds[0]), bounds[1]) // batch_size)
