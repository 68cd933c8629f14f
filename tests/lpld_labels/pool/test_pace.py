"""How much work a kill may cost: one rule, and all who write follow it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lpld_labels import PoolReader, PoolWriter
from lpld_labels.pool.pace import Pace
from lpld_labels.transforms.prune import PruneSettings, prune_pool
from tests.factories import make_batches, make_header, make_images, write_pool


def test_saving_costs_less_than_a_minute() -> None:
    now = [0.0]
    pace = Pace(clock=lambda: now[0])
    assert not pace.due()
    now[0] = 29.0
    assert not pace.due()
    now[0] = 30.0
    assert pace.due()
    pace.saved()
    assert not pace.due()


def test_a_writer_that_is_told_nothing_seals_by_the_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lpld_labels.pool.pace.SAVE_SECONDS", 0.0)
    path = tmp_path / "pool"
    with PoolWriter(path, header=make_header(), images=make_images()) as writer:
        for sealed, batch in enumerate(make_batches(1, 3), 1):
            writer.append(batch)
            assert len(list((path / "staging").glob("*/shard.json"))) == sealed


def test_pools_made_of_pools_are_sealed_by_the_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lpld_labels.pool.pace.SAVE_SECONDS", 0.0)
    write_pool(tmp_path / "pool", make_batches(2, 3)).close()
    out = tmp_path / "out"
    sealed: list[int] = []

    def look(done: int, total: int) -> None:
        del done, total
        sealed.append(len(list((out / "staging").glob("*/shard.json"))))

    with PoolReader(tmp_path / "pool") as pool:
        prune_pool(pool, out, PruneSettings(ratio=1), progress=look)
    assert sealed == [1, 2, 3, 4, 5, 6]
