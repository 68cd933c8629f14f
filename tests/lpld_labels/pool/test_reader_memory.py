"""What a reader has read and let go of is gone from memory, whatever the codec."""

from __future__ import annotations

import gc
from pathlib import Path

import pyarrow as pa
import pytest

from lpld_labels import PoolReader

GOLDEN = Path(__file__).parents[2] / "golden" / "v1"


def read_all(path: Path) -> int:
    """Read a pool and return the bytes that Arrow holds afterwards."""
    with PoolReader(path) as pool:
        for key in pool.keys:
            pool.read(key)
    gc.collect()
    return pa.total_allocated_bytes()


@pytest.mark.parametrize("name", sorted(path.parent.name for path in GOLDEN.glob("*/pool.json")))
def test_a_pool_that_was_read_leaves_nothing_behind(name: str) -> None:
    # Once an epoch, a leak of a page of labels for each batch fills any memory.
    before = read_all(GOLDEN / name)
    assert [read_all(GOLDEN / name) for _ in range(2)] == [before] * 2
