"""The real labels that benchmarks take when nothing else is named."""

from pathlib import Path

import numpy as np

from benchmarks.common.label_source import REAL_LABELS, real_batches
from benchmarks.data.make_in1k_logits import batches, write_pool
from lpld_labels import PoolReader
from lpld_labels.inspect.check import check_pool


def test_the_committed_pool_is_whole_and_small() -> None:
    assert check_pool(REAL_LABELS).whole
    size = sum(path.stat().st_size for path in REAL_LABELS.rglob("*") if path.is_file())
    assert size <= 10_000_000
    with PoolReader(REAL_LABELS) as pool:
        assert (len(pool), pool.classes, pool.manifest.counts.rows) == (42, 1000, 42 * 128)
        # Photo N is of class N: under CutMix the teacher says so three times in ten, not one in a thousand.
        right = [np.mean(pool.read_labels(key).argmax(1) == pool.read(key).images) for key in pool.keys]
    assert 0.25 < np.mean(right) < 0.4


def test_the_arrays_give_the_pool(tmp_path: Path) -> None:
    known = list(real_batches())[:8]
    arrays = {
        "logits": np.stack([batch.labels for batch in known]),
        "crop": np.stack([batch.crops / np.float32(224) for batch in known]).astype(np.float32),
        "flip": np.stack([batch.flips for batch in known]),
        "image": np.stack([batch.images for batch in known]),
        "mix_slot": np.stack([batch.mix.partner for batch in known if batch.mix]).astype(np.int16),
        "lam": np.array([batch.mix.strength for batch in known if batch.mix], np.float32),
        "box": np.array([batch.mix.box for batch in known if batch.mix], np.int16),
    }
    write_pool(arrays, tmp_path / "pool")
    with PoolReader(tmp_path / "pool") as again, PoolReader(REAL_LABELS) as committed:
        assert again.keys == committed.keys[:8]
        for key in again.keys:
            assert again.read_encoded(key).digest == committed.read_encoded(key).digest
    assert [batch.key for batch in batches(arrays)] == [batch.key for batch in known]
