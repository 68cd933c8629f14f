"""The order of label batches is a promise: (sampling, seed, epoch) -> keys, kept as a table.

A run that was saved by one version goes on with another, so the table must not change.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lpld_labels import PoolReader
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.loader import label_loader
from lpld_labels.loader.schedule import SAMPLINGS, WHOLE_EPOCHS
from tests.factories import make_batch, write_pool

TABLE = json.loads(Path(__file__).with_name("golden_order.json").read_text())
# Stored epoch -> its batches: two epochs were pruned to pieces, one is gone.
STORED = {0: (0, 1, 2, 3, 4), 1: (1, 3), 3: (2,), 4: (0, 1, 2, 4)}


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> PoolReader:
    batches = [make_batch(epoch, batch) for epoch, numbers in STORED.items() for batch in numbers]
    return write_pool(tmp_path_factory.mktemp("pools") / "pool", batches)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_sampling_keeps_its_order(pool: PoolReader, sampling: str) -> None:
    assert set(TABLE) == set(SAMPLINGS)
    for seed, epochs in TABLE[sampling].items():
        loader = label_loader(pool, sampling=sampling, seed=int(seed), batches_per_epoch=5)
        for expected in epochs:
            assert [list(batch.key) for batch in loader] == expected


def test_equal_epochs_leave_out_batches_that_lack_rows(tmp_path: Path) -> None:
    batches = [
        make_batch(epoch, batch, rows=8 if batch < 2 else 5) for epoch in range(3) for batch in range(3)
    ]
    pool = write_pool(tmp_path / "pool", batches)
    for sampling in SAMPLINGS:
        loader = label_loader(pool, sampling=sampling, batches_per_epoch=4, equal_epochs=True)
        length = 2 if sampling in WHOLE_EPOCHS else 4
        for _ in range(4):
            assert [batch.views.rows for batch in loader] == [8] * length
        with pytest.raises(InvalidArgumentError, match="field 'equal_epochs' differs"):
            label_loader(pool, sampling=sampling, batches_per_epoch=4).load_state_dict(loader.state_dict())


def test_uneven_epochs_cannot_be_made_equal(pool: PoolReader) -> None:
    with pytest.raises(InvalidArgumentError, match=r"different numbers of batches.*got 1 to 5 batches"):
        label_loader(pool, sampling="epochs", equal_epochs=True)
