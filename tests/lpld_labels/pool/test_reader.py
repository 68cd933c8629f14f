import gc
import multiprocessing
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lpld_labels import BatchKey, LabelPoolError, PoolReader
from lpld_labels.errors import BatchNotFoundError, ManifestError, PoolFormatError
from tests.factories import edit_manifest, flip_bit, make_batches, write_pool
from tests.lpld_labels.pool.test_writer import open_writer

GOLDEN = Path(__file__).parents[2] / "golden" / "v1"
BATCHES = make_batches(3, 4, rows=16, classes=20)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_pool(tmp_path / "pool", BATCHES).close()
    return tmp_path / "pool"


def test_batches_come_in_any_order_asked_for(path: Path) -> None:
    with PoolReader(path) as pool:
        order = [batch.key for batch in BATCHES][::-2]
        assert [batch.key for batch in pool.iterate(order)] == order
        assert [batch.key for batch in pool] == [batch.key for batch in BATCHES]
        assert (1, 2) in pool
        assert (9, 9) not in pool
        with pytest.raises(BatchNotFoundError, match="epoch 9 batch 9"):
            pool.read((9, 9))


def _sum_of(pool: PoolReader, key: BatchKey, results: Any) -> None:
    results.put(float(pool.read(key).labels.astype(np.float64).sum()))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_what_the_parent_opened(path: Path, method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    with PoolReader(path) as pool:
        pool.read((0, 0))
        results = context.Queue()
        workers = [context.Process(target=_sum_of, args=(pool, b.key, results)) for b in BATCHES[:3]]
        for worker in workers:
            worker.start()
        sums = sorted(results.get(timeout=60) for _ in workers)
        for worker in workers:
            worker.join()
    assert sums == sorted(float(b.labels.astype(np.float64).sum()) for b in BATCHES[:3])


def test_threads_share_a_reader(path: Path) -> None:
    found: list[bytes] = []

    def read_all(pool: PoolReader) -> None:
        found.extend(pool.read(batch.key).labels.tobytes() for batch in BATCHES * 10)

    with PoolReader(path) as pool:
        threads = [threading.Thread(target=read_all, args=(pool,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == sorted(batch.labels.tobytes() for batch in BATCHES * 40)


def test_few_of_many_shards_are_open_at_a_time(tmp_path: Path) -> None:
    batches = make_batches(10, 6)
    with open_writer(tmp_path / "pool", shard_batches=1) as writer:
        writer.extend(batches)
        writer.commit()
    with PoolReader(tmp_path / "pool", open_shards=4, view_cache_bytes=0) as pool:
        assert pool.index.shards == 60
        for number in np.random.default_rng(0).permutation(60).tolist():
            np.testing.assert_array_equal(pool.read(batches[number].key).labels, batches[number].labels)
        links = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert 0 < sum(file.is_relative_to(tmp_path) for file in links) <= 2 * 4


def _allocated_after_reading(path: Path) -> int:
    with PoolReader(path) as pool:
        for key in pool.keys:
            pool.read(key)
    gc.collect()
    return pa.total_allocated_bytes()


@pytest.mark.parametrize("name", sorted(path.parent.name for path in GOLDEN.glob("*/pool.json")))
def test_a_pool_that_was_read_leaves_nothing_in_memory(name: str) -> None:
    # Once an epoch, a leak of a page of labels for each batch fills any memory.
    before = _allocated_after_reading(GOLDEN / name)
    assert [_allocated_after_reading(GOLDEN / name) for _ in range(2)] == [before] * 2


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"format": "something-else"}, ManifestError, "not a label pool"),
        ({"format_version": 2}, PoolFormatError, "upgrade lpld-labels"),
        ({"classes": "ten"}, ManifestError, "field 'classes'"),
        ({"augmentation__surprise": 1}, ManifestError, "field 'augmentation.surprise'"),
        ({"codec__name": "mystery"}, PoolFormatError, "unknown codec"),
        ({"counts__rows": 999}, ManifestError, "counts.rows"),
        ({"counts__images": 51, "coverage__minimum": 0}, ManifestError, "expected 50, the number of rows"),
        ({"files": []}, ManifestError, "batches"),
    ],
)
def test_lying_manifests(path: Path, changes: dict[str, Any], kind: type[LabelPoolError], words: str) -> None:
    edit_manifest(path, **changes)
    with pytest.raises(kind, match=words) as caught:
        PoolReader(path)
    assert "\n" not in str(caught.value)


def test_ignorable_fields_are_ignored_and_no_shard_is_read_at_opening(path: Path) -> None:
    edit_manifest(path, future={"must_understand": False, "note": "hello"})
    for file in path.glob("[vl]*/*"):
        file.write_bytes(b"x" * file.stat().st_size)
    assert len(PoolReader(path)) == len(BATCHES)


@pytest.mark.parametrize("codec", ["f16", "f16:plain", "int8"])
def test_a_flipped_bit_never_becomes_a_label(tmp_path: Path, codec: str) -> None:
    with write_pool(tmp_path / "pool", BATCHES, codec=codec) as pool:
        whole = [batch.labels.tobytes() for batch in pool]
    (file,) = (tmp_path / "pool" / "labels").iterdir()
    data = file.read_bytes()
    caught = 0
    for place in np.random.default_rng(0).integers(0, len(data), 60).tolist():
        file.write_bytes(data)
        flip_bit(file, place, bit=2)
        try:
            with PoolReader(tmp_path / "pool") as pool:
                assert [batch.labels.tobytes() for batch in pool] == whole
        except LabelPoolError:
            caught += 1
    # Bits that labels do not depend on, such as key columns, are not noticed.
    assert caught > 30
