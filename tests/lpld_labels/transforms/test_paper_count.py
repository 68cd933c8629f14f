"""How many batches LPLD's programs keep, where that is asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lpld_labels import PoolReader
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.transforms.prune import PruneSettings, prune_pool
from lpld_labels.transforms.selection import Candidates, kept_count, paper_count
from tests.factories import write_pool
from tests.lpld_labels.transforms.partial_batches import EPOCHS, PER_EPOCH, with_partials


def candidates(epochs: int, per_epoch: int) -> Candidates:
    rows = np.full(epochs * per_epoch, 8, np.int32)
    return Candidates(
        places=np.arange(len(rows)),
        epochs=np.repeat(np.arange(epochs, dtype=np.int32), per_epoch),
        batches=np.tile(np.arange(per_epoch, dtype=np.int32), epochs),
        rows=rows,
    )


@pytest.mark.parametrize(
    ("ratio", "prune_ratio", "epochs"), [(1, 0.0, 100), (10, 0.9, 9), (20, 0.95, 5), (40, 0.975, 2)]
)
def test_it_is_the_programs_own_arithmetic(ratio: float, prune_ratio: float, epochs: int) -> None:
    everything = candidates(100, 78)
    assert paper_count(everything, ratio, level="epoch") == 78 * epochs
    # As their training program writes it.
    assert paper_count(everything, ratio, level="batch") == int((1 - prune_ratio) * 7800)
    assert kept_count(7800, ratio) - paper_count(everything, ratio, level="batch") in (0, 1)


def test_only_whole_epochs_stay(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", with_partials())
    settings = PruneSettings(ratio=4, level="epoch", count="paper")
    prune_pool(pool, tmp_path / "child", settings)
    child = PoolReader(tmp_path / "child")
    kept, sizes = np.unique(child.index.epochs, return_counts=True)
    assert len(kept) == int((1 - 0.75) * EPOCHS)
    assert set(sizes.tolist()) == {PER_EPOCH - 1}
    assert child.header.lineage[-1].parameters["count"] == "paper"


def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no epoch would be left"):
        paper_count(candidates(10, 5), 10, level="epoch")
    uneven = candidates(3, 4).subset(np.arange(12) != 5)
    with pytest.raises(InvalidArgumentError, match="epochs differ"):
        paper_count(uneven, 2, level="epoch")
    with pytest.raises(InvalidArgumentError, match="goes with a ratio"):
        PruneSettings(budget=1000, count="paper")
