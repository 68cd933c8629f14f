"""A command that writes to an address, interrupted before and after others have written there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lpld_labels import PoolReader
from lpld_labels.errors import PoolConflictError
from lpld_labels.transforms.copy import copy_pool
from lpld_labels.transforms.prune import prune_pool
from lpld_labels.transforms.remote_output import outgoing_folder
from lpld_labels.transforms.settings import PruneSettings
from tests.lpld_labels.io.pools import content, small_pool

SCORED = PruneSettings(ratio=2, by="diff", prefer="hard")


@pytest.fixture(autouse=True)
def _surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LPLD_LABELS_CACHE", str(tmp_path / "cache"))


class Reads:
    """Counts labels that are read, and stops at the fourth."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = PoolReader.read_labels

        def counted(*args: Any, **more: Any) -> Any:
            self.count += 1
            if self.count == 4:
                raise KeyboardInterrupt
            return real(*args, **more)

        monkeypatch.setattr(PoolReader, "read_labels", counted)


def test_scoring_goes_on(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with PoolReader(small_pool(tmp_path / "pool", epochs=6)) as pool:
        prune_pool(pool, tmp_path / "whole", SCORED)
        reads = Reads(monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            prune_pool(pool, f"{bucket}/out", SCORED)
        reads.count = 100
        prune_pool(pool, f"{bucket}/out", SCORED)
    assert content(f"{bucket}/out") == content(tmp_path / "whole")
    assert not list(outgoing_folder(f"{bucket}/out").rglob("*.parquet"))
    assert not (outgoing_folder(f"{bucket}/out") / "pool").exists()


def test_a_pool_that_is_there_is_still_seen(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores that wait do not hide what somebody has published meanwhile."""
    small_pool(tmp_path / "other", epochs=2)
    with PoolReader(small_pool(tmp_path / "pool", epochs=6)) as pool:
        reads = Reads(monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            prune_pool(pool, f"{bucket}/out", SCORED)
        copy_pool(tmp_path / "other", f"{bucket}/out")
        reads.count = 100
        with pytest.raises(PoolConflictError, match="another pool"):
            prune_pool(pool, f"{bucket}/out", SCORED)
        prune_pool(pool, f"{bucket}/out", SCORED, overwrite=True)
        prune_pool(pool, tmp_path / "whole", SCORED)
    assert content(f"{bucket}/out") == content(tmp_path / "whole")
