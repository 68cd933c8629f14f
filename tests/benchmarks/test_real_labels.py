"""The real labels and the photos that benchmarks take when nothing else is named."""

from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.common.label_source import REAL_LABELS, real_batches, repeated_batches
from benchmarks.common.photos import photo_folder
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


def test_labels_that_come_again_are_others() -> None:
    made = list(repeated_batches(REAL_LABELS, 44, per_epoch=7))
    assert (made[0].labels == next(real_batches()).labels).all()
    assert 0 < np.abs(made[42].labels.astype(np.float32) - made[0].labels).mean() < 0.1
    assert (made[42].images == (made[0].images + 1) % 1000).all()
    assert made[43].key == (6, 1)


def test_photos_are_cut_from_packages_or_taken_from_a_folder(tmp_path: Path) -> None:
    packaged = photo_folder(tmp_path / "packaged", side=64, count=24)
    paths = sorted(packaged.rglob("*.jpg"))
    assert [len(list(folder.iterdir())) for folder in sorted(packaged.iterdir())] == [10, 10, 4]
    assert len({path.read_bytes() for path in paths}) == 24
    own = photo_folder(tmp_path / "own", side=32, count=30, images=packaged)
    with Image.open(own / "new002" / "class002_id009.jpg") as photo:
        assert (photo.size, photo.mode) == ((32, 32), "RGB")
