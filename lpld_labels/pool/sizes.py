"""What a pruned pool weighs: guessed from its parent before anything is read, measured once it is staged.

A pool's bytes are those of all files its manifest names, and of the manifest itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lpld_labels.format.manifest import Manifest
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.staging import StagingArea

# The batch index and one more step of lineage, at their largest.
_INDEX_FILE = 2000
_INDEX_ENTRY = 24
_LINEAGE_STEP = 800
# Schema and footer of a views file and a labels file, whatever they hold.
_SHARD_FILES = 7000


@dataclass(frozen=True, kw_only=True, eq=False)
class SizeModel:
    """Bytes of the parts of a pool.

    fixed: image table, codec tables and manifest. per_batch: float64 [N], views and labels of each batch of
        the parent, shared out by rows within its shard.
    """

    fixed: int
    per_batch: npt.NDArray[np.float64]

    @staticmethod
    def of(pool: PoolReader) -> SizeModel:
        """Take the sizes from a pool's manifest and index; no other file is read."""
        manifest = pool.manifest
        shards = zip(manifest.files_of("views"), manifest.files_of("labels"), strict=True)
        per_row = np.array([(views.bytes + labels.bytes) / max(views.rows, 1) for views, labels in shards])
        return SizeModel(
            fixed=sum(entry.bytes for role in ("images", "codec") for entry in manifest.files_of(role))
            + len(manifest.dump())
            + _LINEAGE_STEP,
            per_batch=pool.index.rows * per_row[pool.index.places[:, 0]],
        )

    def estimate(self, kept: npt.NDArray[np.int64]) -> int:
        """Return the likely bytes of a pool of some of the parent's batches."""
        return int(self.fixed + _SHARD_FILES + index_bytes(len(kept)) + self.per_batch[kept].sum())

    def staged(self, out: Path, batches: int) -> int:
        """Return the bytes of the pool that waits in `out` to be committed, at most a little too high."""
        shards = StagingArea(out).sealed()
        return (
            self.fixed
            + index_bytes(batches)
            + sum(shard.views_bytes + shard.labels_bytes for shard in shards)
        )


def index_bytes(batches: int) -> int:
    """Return the bytes of a batch index, at its largest."""
    return _INDEX_FILE + _INDEX_ENTRY * batches


def pool_bytes(manifest: Manifest) -> int:
    """Return the bytes of a pool: all its files and the manifest."""
    return sum(entry.bytes for entry in manifest.files) + len(manifest.dump())
