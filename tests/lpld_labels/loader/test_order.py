"""The order of label batches is a promise: (policy, seed, epoch) -> keys, kept as a table.

A run that was saved by one version goes on with another, so the table must not change.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lpld_labels import PoolReader
from lpld_labels.loader import label_loader
from lpld_labels.loader.sampling import POLICIES
from tests.factories import make_batch, write_pool

TABLE = json.loads(Path(__file__).with_name("golden_order.json").read_text())
# Stored epoch -> its batches: two epochs were pruned to pieces, one is gone.
STORED = {0: (0, 1, 2, 3, 4), 1: (1, 3), 3: (2,), 4: (0, 1, 2, 4)}


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> PoolReader:
    batches = [make_batch(epoch, batch) for epoch, numbers in STORED.items() for batch in numbers]
    return write_pool(tmp_path_factory.mktemp("pools") / "pool", batches)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_keeps_its_order(pool: PoolReader, policy: str) -> None:
    assert set(TABLE) == set(POLICIES)
    for seed, epochs in TABLE[policy].items():
        loader = label_loader(pool, policy=policy, seed=int(seed), batches_per_epoch=5)
        for expected in epochs:
            assert [list(batch.key) for batch in loader] == expected
