"""What a batch goes through on its way, it goes through once: checks, digests, bounds."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpld_core.relabel.build import build_pool
from lpld_core.teachers.ensemble import Ensemble
from lpld_labels.errors import InvalidBatchError
from lpld_labels.format import digests, records
from lpld_labels.loader import pool_loader
from lpld_labels.pool import plan, views
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.writer import PoolWriter
from lpld_labels.render import apply
from lpld_labels.transforms.encode import encode_pool
from lpld_labels.transforms.settings import EncodeSettings, PruneSettings
from tests.factories import prune_pool
from tests.lpld_core.image_folders import SMALL_BUILD

BATCHES = 18


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often views were checked, digested, drawn and held against their images.

    groups: row groups of views held against their images, all batches of one at once. bounds: batches,
    before they are written or rendered.
    """
    seen: Counter[str] = Counter()

    def count(place: object, function: str, name: str) -> None:
        original: Callable[..., Any] = getattr(place, function)

        def counted(*arguments: Any, **keywords: Any) -> Any:
            seen[name] += 1
            return original(*arguments, **keywords)

        monkeypatch.setattr(place, function, counted)

    count(records.ViewBatch, "__post_init__", "checks")
    count(digests, "_view_parts", "digests")
    count(views, "check_views", "groups")
    count(views, "draw_views", "drawn")
    count(plan, "require_readable_views", "bounds")
    count(apply, "require_readable_views", "bounds")
    return seen


def test_build(images: Path, ensemble: Ensemble, tmp_path: Path, counts: Counter[str]) -> None:
    build_pool(images, tmp_path / "pool", replace(SMALL_BUILD, epochs=3), ensemble=ensemble)
    # Two batches more were drawn and digested in the preflight.
    assert counts == {"checks": BATCHES + 2, "digests": BATCHES + 2, "bounds": BATCHES}


def test_read(pool_path: Path, counts: Counter[str]) -> None:
    with PoolReader(pool_path) as reader:
        for _ in range(2):
            assert len(list(reader)) == BATCHES
    assert counts == {"digests": BATCHES, "groups": 1}


def test_prune(pool_path: Path, tmp_path: Path, counts: Counter[str]) -> None:
    with PoolReader(pool_path) as reader:
        prune_pool(reader, tmp_path / "pruned", PruneSettings(ratio=2))
    # Row groups are read whole; only what stays of them, of the batches that are complete, is digested.
    assert counts == {"digests": 15 // 2, "groups": 1}


def test_encode(pool_path: Path, tmp_path: Path, counts: Counter[str]) -> None:
    with PoolReader(pool_path) as reader:
        encode_pool(reader, tmp_path / "encoded", EncodeSettings(codec="int8"))
    assert (counts["groups"], counts["bounds"]) == (1, 0)
    # The other records are those of the batches that are weighed before, under other keys.
    assert counts["digests"] == BATCHES + counts["checks"]


def test_views_that_are_drawn(pool_path: Path, tmp_path: Path, counts: Counter[str]) -> None:
    with PoolReader(pool_path) as reader:
        encode_pool(reader, tmp_path / "drawn", EncodeSettings(codec="int8", views="drawn"))
    # One batch more is drawn before anything is written, to see whether it can be done.
    assert counts["drawn"] == BATCHES + 1
    counts.clear()
    with PoolReader(tmp_path / "drawn") as reader:
        prune_pool(reader, tmp_path / "pruned", PruneSettings(ratio=2))
    assert (counts["drawn"], counts["bounds"]) == (15 // 2, 0)


def test_views_proven_elsewhere_are_checked(pool_path: Path, tmp_path: Path, counts: Counter[str]) -> None:
    """What was proven holds for a pool of the same frame only: of smaller images, crops reach outside."""
    with PoolReader(pool_path) as reader:
        smaller = replace(reader.images, heights=np.ones_like(reader.images.heights))
        batch = reader.read_encoded(reader.keys[0])
        strict = PoolWriter(tmp_path / "smaller", header=reader.header, images=smaller)
        with pytest.raises(InvalidBatchError, match="crop outside its image"):
            strict.append_encoded(batch)
        PoolWriter(tmp_path / "alike", header=reader.header, images=reader.images).append_encoded(batch)
    assert counts["bounds"] == 1


def test_training(pool_path: Path, images: Path, counts: Counter[str]) -> None:
    loader = pool_loader(pool_path, images, sampling="stored")
    assert sum(len(list(loader)) for _ in range(3)) == BATCHES
    assert counts == {"digests": BATCHES, "groups": 1}
