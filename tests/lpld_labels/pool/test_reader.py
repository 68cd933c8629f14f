"""Reading: random access, projection, processes, damaged pools."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lpld_labels import BatchKey, LabelPoolError, PoolReader, PoolWriter
from lpld_labels.codecs import codec_named
from lpld_labels.errors import (
    BatchNotFoundError,
    InvalidArgumentError,
    ManifestError,
    NotAPoolError,
    PoolCorruptError,
    PoolFormatError,
)
from lpld_labels.io.verified_parquet import VerifiedParquet
from lpld_labels.pool.label_pages import LabelFiles
from lpld_labels.pool.publish import views_per_image
from lpld_labels.pool.shard import label_schema
from lpld_labels.pool.views import StoredViews
from tests.factories import assert_same_views, make_batch, make_batches, make_header, make_images, write_pool

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


def test_a_uri_opens_like_a_path(path: Path) -> None:
    with PoolReader(path.as_uri()) as pool:
        np.testing.assert_array_equal(pool.read((1, 2)).labels, BATCHES[6].labels)
    with pytest.raises(InvalidArgumentError, match="no client opens"):
        PoolReader("nosuchscheme://bucket/pool")


def test_views_are_read_without_touching_labels(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touched: list[tuple[str, Any]] = []
    real = VerifiedParquet.read

    def recorded(self: VerifiedParquet, group: int, columns: Any = None) -> Any:
        touched.append((self.where, columns))
        return real(self, group, columns)

    pages: list[Any] = []
    real_pages = LabelFiles.block

    def recorded_pages(self: LabelFiles, shard: int, group: Any) -> Any:
        pages.append(group)
        return real_pages(self, shard, group)

    monkeypatch.setattr(VerifiedParquet, "read", recorded)
    monkeypatch.setattr(LabelFiles, "block", recorded_pages)
    with PoolReader(path) as pool:
        assert len(pool.images)
        touched.clear()
        assert_same_views(pool.read_views((1, 2)), BATCHES[6])
        assert touched
        assert all("/views/" in where for where, _ in touched)
        assert not pages
        touched.clear()
        pool.read_labels((1, 2))
        assert not touched
        assert pages


def test_views_of_each_image_are_counted(path: Path) -> None:
    with PoolReader(path) as pool:
        some = views_per_image(pool, np.array([2, 5]))
        found = views_per_image(pool)
    images = np.concatenate([batch.images for batch in BATCHES])
    np.testing.assert_array_equal(found, np.bincount(images, minlength=len(found)))
    images = np.concatenate([BATCHES[2].images, BATCHES[5].images])
    np.testing.assert_array_equal(some, np.bincount(images, minlength=len(found)))


def test_a_reader_can_be_pickled(path: Path) -> None:
    with PoolReader(path) as pool:
        pool.read((0, 0))
        with pickle.loads(pickle.dumps(pool)) as copy:
            assert copy.manifest == pool.manifest
            np.testing.assert_array_equal(copy.read((1, 2)).labels, BATCHES[6].labels)


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
    failures: list[BaseException] = []

    def read_all(pool: PoolReader) -> None:
        try:
            for _ in range(20):
                for batch in BATCHES:
                    np.testing.assert_array_equal(pool.read(batch.key).labels, batch.labels)
        except BaseException as error:  # noqa: BLE001 (a thread must hand its failure over)
            failures.append(error)

    with PoolReader(path) as pool:
        threads = [threading.Thread(target=read_all, args=(pool,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_memory_is_bounded_by_the_view_cache(path: Path) -> None:
    pool = PoolReader(path, view_cache_bytes=0)
    for _ in pool:
        pass
    assert isinstance(pool._views, StoredViews)
    blocks = pool._views._blocks
    assert blocks.held <= max(block.nbytes for block in blocks._blocks.values())


def _edit(path: Path, **changes: Any) -> None:
    document = json.loads((path / "pool.json").read_text())
    for name, value in changes.items():
        target = document
        *parents, last = name.split("__")
        for parent in parents:
            target = target[parent]
        target[last] = value
    (path / "pool.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"format": "something-else"}, ManifestError, "not a label pool"),
        ({"format_version": 2}, PoolFormatError, "upgrade lpld-labels"),
        ({"format_version": "one"}, ManifestError, "format_version"),
        ({"classes": "ten"}, ManifestError, "field 'classes'"),
        ({"surprise": 1}, ManifestError, "field 'surprise'"),
        ({"augmentation__surprise": 1}, ManifestError, "field 'augmentation.surprise'"),
        ({"codec__name": "mystery"}, PoolFormatError, "unknown codec"),
        ({"codec__parameters": {"layout": "odd"}}, ManifestError, "layout"),
        ({"counts__batches": 13}, ManifestError, "counts.batches"),
        ({"counts__rows": 999}, ManifestError, "counts.rows"),
        ({"counts__epochs": 1}, ManifestError, "counts.epochs"),
        ({"files": []}, ManifestError, "batches"),
    ],
)
def test_a_manifest_that_lies_is_refused(
    path: Path, changes: dict[str, Any], kind: type[LabelPoolError], words: str
) -> None:
    _edit(path, **changes)
    with pytest.raises(kind, match=words) as caught:
        PoolReader(path)
    assert "\n" not in str(caught.value)


def test_the_image_count_is_checked_before_images_are_read(path: Path) -> None:
    _edit(path, counts__images=51, coverage__minimum=0)
    with pytest.raises(ManifestError, match="expected the 50 rows of images"):
        PoolReader(path)


def test_fields_that_may_be_ignored_are_ignored(path: Path) -> None:
    _edit(path, future={"must_understand": False, "note": "hello"})
    assert len(PoolReader(path)) == len(BATCHES)


def test_a_manifest_cannot_point_outside_its_pool(path: Path) -> None:
    document = json.loads((path / "pool.json").read_text())
    document["files"][0]["path"] = "../elsewhere.parquet"
    (path / "pool.json").write_text(json.dumps(document))
    with pytest.raises(ManifestError, match="a path such as"):
        PoolReader(path)


def test_files_that_are_gone_or_cut_are_named_at_once(path: Path) -> None:
    (file,) = (path / "labels").iterdir()
    data = file.read_bytes()
    file.write_bytes(data[:-10])
    with pytest.raises(PoolCorruptError, match=f"{file.name}.*wrong size"):
        PoolReader(path)
    file.unlink()
    with pytest.raises(PoolCorruptError, match=f"{file.name}.*missing"):
        PoolReader(path)


@pytest.mark.parametrize("codec", ["f16", "f16:plain", "int8"])
def test_a_flipped_bit_never_becomes_a_label(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "pool"
    write_pool(path, BATCHES, codec=codec).close()
    (file,) = (path / "labels").iterdir()
    data = bytearray(file.read_bytes())
    rng = np.random.default_rng(0)
    caught = 0
    for place in rng.integers(0, len(data), 60).tolist():
        data[place] ^= 4
        file.write_bytes(data)
        try:
            with PoolReader(path) as pool:
                for expected in BATCHES:
                    np.testing.assert_array_equal(
                        pool.read(expected.key).labels.astype(np.float32),
                        _expected(codec, expected.labels),
                    )
        except LabelPoolError:
            caught += 1
        data[place] ^= 4
    # What is not caught hit a byte that labels do not depend on (footer statistics, key columns).
    assert caught > 30


@pytest.mark.parametrize("role", ["views", "labels"])
def test_damaged_footers_are_never_parsed(path: Path, role: str) -> None:
    (file,) = (path / role).iterdir()
    whole = file.read_bytes()
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    for place in range(len(whole) - footer, len(whole), 11):
        for bit in (0, 3, 7):
            file.write_bytes(_flipped(whole, place, bit))
            with PoolReader(path) as pool:
                np.testing.assert_array_equal(pool.read_labels((1, 2)), BATCHES[6].labels)
                if role == "views":
                    with pytest.raises(PoolCorruptError, match="footer differs from the manifest"):
                        pool.read_views((1, 2))
                else:
                    entry = pool.manifest.files_of("labels")[0]
                    with pytest.raises(PoolCorruptError, match="footer differs from the manifest"):
                        pool.open_parquet(entry, label_schema(pool.codec, pool.classes))


def _flipped(data: bytes, place: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 1 << bit
    return bytes(changed)


def _expected(codec: str, labels: Any) -> Any:
    from lpld_labels.codecs import codec_named

    chosen = codec_named(codec)
    payload = chosen.encode(labels).payload
    return chosen.decode(payload, rows=len(labels), classes=labels.shape[1])


def test_not_a_pool(tmp_path: Path) -> None:
    with pytest.raises(NotAPoolError, match="no pool"):
        PoolReader(tmp_path)
    with pytest.raises(NotAPoolError):
        PoolReader(tmp_path / "nowhere")
    (tmp_path / "pool.json").write_bytes(b"\xff\x00 not json")
    with pytest.raises(ManifestError, match="not valid JSON"):
        PoolReader(tmp_path)


def test_opening_reads_no_shard(path: Path) -> None:
    for file in sorted((path / "views").iterdir()) + sorted((path / "labels").iterdir()):
        os.truncate(file, file.stat().st_size)
        file.write_bytes(b"x" * file.stat().st_size)
    assert len(PoolReader(path)) == len(BATCHES)


GOLDEN = Path(__file__).parents[2] / "golden" / "v1"


def _allocated_after_reading(path: Path) -> int:
    """Read a pool and return the bytes that Arrow holds afterwards."""
    with PoolReader(path) as pool:
        for key in pool.keys:
            pool.read(key)
    gc.collect()
    return pa.total_allocated_bytes()


@pytest.mark.parametrize("name", sorted(path.parent.name for path in GOLDEN.glob("*/pool.json")))
def test_a_pool_that_was_read_leaves_nothing_behind(name: str) -> None:
    # Once an epoch, a leak of a page of labels for each batch fills any memory.
    before = _allocated_after_reading(GOLDEN / name)
    assert [_allocated_after_reading(GOLDEN / name) for _ in range(2)] == [before] * 2


MANY, ROWS, CLASSES = 1200, 16, 1000


def _pool(path: Path, shards: int) -> Path:
    images = make_images(50, classes=CLASSES)
    head = make_header(CLASSES, ROWS)
    codec = codec_named("int8")
    with PoolWriter(path, header=head, images=images, codec=codec, shard_batches=MANY // shards) as writer:
        for number in range(MANY):
            writer.append(make_batch(number, 0, rows=ROWS, classes=CLASSES, images=images))
        writer.commit()
    return path


def _random_reads(path: Path) -> float:
    """Return the seconds of processor time that all batches take in random order."""
    order = np.random.default_rng(0).permutation(MANY).tolist()
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
