import numpy as np

from benchmarks.common.label_source import REAL_LABELS
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
