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
    with PoolWriter(path, header=head, images=images, codec=codec, shard_batches=BATCHES // shards) as writer:
        for number in range(BATCHES):
            writer.append(make_batch(number, 0, rows=ROWS, classes=CLASSES, images=images))
        writer.commit()
    return path


def _random_reads(path: Path) -> float:
    """Return the seconds of processor time that all batches take in random order."""
    order = np.random.default_rng(0).permutation(BATCHES).tolist()
    with PoolReader(path) as pool:
        start = time.process_time()
        for number in order:
            pool.labels_at(number)
        return time.process_time() - start


@pytest.mark.timing
def test_six_hundred_shards_are_read_like_six(tmp_path: Path) -> None:
    few, many = _pool(tmp_path / "few", 6), _pool(tmp_path / "many", 600)
    assert PoolReader(many).index.shards == 600
    rounds = [(_random_reads(few), _random_reads(many)) for _ in range(12)]
    quickest = [min(times) for times in zip(*rounds, strict=True)]
    # Opening and closing files is what is left.
    assert quickest[1] <= 1.3 * quickest[0], quickest
    opening = []
    for _ in range(5):
        start = time.perf_counter()
        PoolReader(many).close()
        opening.append(time.perf_counter() - start)
    assert min(opening) < 0.1, opening
