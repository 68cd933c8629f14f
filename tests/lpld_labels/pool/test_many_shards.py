"""Reading at random does not depend on how many shards a pool has."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from lpld_labels import PoolReader, PoolWriter
from lpld_labels.codecs import codec_named
from tests.factories import make_batch, make_header, make_images

BATCHES, ROWS, CLASSES = 1200, 16, 1000


def _pool(path: Path, shards: int) -> Path:
    images = make_images(50, classes=CLASSES)
    head = make_header(CLASSES, ROWS)
    codec = codec_named("int8")
    with PoolWriter(path, header=head, images=images, codec=codec) as writer:
        for number in range(BATCHES):
            writer.append(make_batch(number, 0, rows=ROWS, classes=CLASSES, images=images))
            if number % (BATCHES // shards) == BATCHES // shards - 1:
                writer.flush()
        # A commit would merge shards as small as these.
        writer._shard_bytes = 1
        writer.commit()
    return path


def _random_reads(path: Path) -> float:
    """Return the seconds that all batches take in random order."""
    order = np.random.default_rng(0).permutation(BATCHES).tolist()
    with PoolReader(path) as pool:
        start = time.perf_counter()
        for number in order:
            pool.labels_at(number)
        return time.perf_counter() - start


@pytest.mark.timing
def test_six_hundred_shards_are_read_like_six(tmp_path: Path) -> None:
    few, many = _pool(tmp_path / "few", 6), _pool(tmp_path / "many", 600)
    assert PoolReader(many).index.shards == 600
    rounds = [(_random_reads(few), _random_reads(many)) for _ in range(5)]
    quickest = [min(times) for times in zip(*rounds, strict=True)]
    # 1.32 to 1.38 were measured: opening and closing files is what is left. Reading a footer for each batch,
    # as drafts did, is far above this bound.
    assert quickest[1] <= 2 * quickest[0], quickest
    opening = []
    for _ in range(5):
        start = time.perf_counter()
        PoolReader(many).close()
        opening.append(time.perf_counter() - start)
    assert min(opening) < 0.1, opening
