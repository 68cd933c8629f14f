"""Writing: streams, several writers, crashes, resuming, refusing."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lpld_labels import BatchKey, ImageTable, LabelBatch, LineageStep, PoolReader, PoolWriter
from lpld_labels.codecs import codec_named
from lpld_labels.errors import (
    DuplicateBatchError,
    InvalidArgumentError,
    InvalidBatchError,
    NotAPoolError,
    PoolConflictError,
    StagingMismatchError,
)
from lpld_labels.inspect.check import check_pool
from tests.factories import make_batch, make_batches, make_header, make_images, write_pool

HEADER = make_header()
IMAGES = make_images()


def open_writer(path: Path, *, onto: PoolReader | None = None, seal_seconds: float = 60) -> PoolWriter:
    return PoolWriter(path, header=HEADER, images=IMAGES, onto=onto, seal_seconds=seal_seconds)


def digest_of(batches: Sequence[LabelBatch], path: Path) -> str:
    with write_pool(path, batches, header=HEADER, images=IMAGES) as pool:
        return pool.manifest.content_digest


def test_nothing_is_a_pool_before_the_commit(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    with open_writer(path) as writer:
        writer.extend(make_batches())
    with pytest.raises(NotAPoolError, match="unfinished build"):
        PoolReader(path)
    with open_writer(path) as writer:
        writer.commit()
    assert len(PoolReader(path)) == 12
    assert not (path / "staging").exists()


def test_an_exception_keeps_what_was_appended_and_publishes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pool"

    def interrupted() -> None:
        with open_writer(path) as writer:
            writer.append(make_batch(0, 0))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not (path / "pool.json").exists()
    assert BatchKey(0, 0) in open_writer(path)


def test_digest_does_not_depend_on_order_shards_or_container(tmp_path: Path) -> None:
    batches = make_batches()
    reference = digest_of(batches, tmp_path / "reference")
    for number, (codec, order, shard_bytes) in enumerate(
        [("f16", 1, 1), ("f16:plain", 1, 1 << 20), ("f16", -1, 400), ("f16:plain", -1, 1)]
    ):
        path = tmp_path / f"pool{number}"
        with PoolWriter(
            path, header=HEADER, images=IMAGES, codec=codec_named(codec), shard_bytes=shard_bytes
        ) as writer:
            for batch in batches[::order]:
                writer.append(batch)
            lineage = (LineageStep(operation="test", parameters={"number": number}),)
            assert writer.commit(lineage=lineage).content_digest == reference
        assert check_pool(path).whole


def test_digest_depends_on_every_field(tmp_path: Path) -> None:
    batch = make_batch(0, 0, cutout=True, patches=2)
    assert batch.mix is not None
    assert batch.cutout is not None
    assert batch.patch_order is not None
    changed = {
        "labels": batch.labels + np.float16(1),
        "images": (batch.images + 1) % len(IMAGES),
        "crops": np.maximum(batch.crops - 1, [0, 0, 1, 1]),
        "flips": ~batch.flips,
        "mix": replace(batch.mix, strength=batch.mix.strength / 2),
        "cutout": replace(batch.cutout, fill=255 - batch.cutout.fill),
        "patch_order": batch.patch_order[:, ::-1].copy(),
        "key": BatchKey(0, 1),
    }
    digests = {digest_of([batch], tmp_path / "same")}
    for name, value in changed.items():
        digests.add(digest_of([replace(batch, **{name: value})], tmp_path / name))
    assert len(digests) == len(changed) + 1


def test_many_small_shards_are_merged_by_the_commit(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    with open_writer(path, seal_seconds=0) as writer:
        writer.extend(make_batches(5, 4))
        assert len(list((path / "staging").glob("*/shard.json"))) == 20
        writer.commit()
    assert len(list((path / "views").iterdir())) == 1
    assert check_pool(path).whole


def test_extending_adds_only_what_is_new(tmp_path: Path) -> None:
    batches = make_batches(4, 4)
    path = tmp_path / "pool"
    write_pool(path, batches[::4], header=HEADER, images=IMAGES).close()
    before = {file.name: file.read_bytes() for file in (path / "labels").iterdir()}
    with PoolReader(path) as pool, open_writer(path, onto=pool) as writer:
        assert sorted(writer.keys) == [batch.key for batch in batches[::4]]
        writer.extend(batches)
        manifest = writer.commit()
    assert manifest.content_digest == digest_of(batches, tmp_path / "whole")
    for name, data in before.items():
        assert (path / "labels" / name).read_bytes() == data
    assert len(list(path.glob("batches-*.parquet"))) == 1
    assert check_pool(path).whole


def _fill(path: Path, part: int) -> None:
    with open_writer(path, seal_seconds=0) as writer:
        writer.extend(make_batches(6, 4)[part::3])


def test_three_processes_fill_one_pool(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_fill, args=(path, part)) for part in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    with open_writer(path) as writer:
        manifest = writer.commit()
    assert manifest.content_digest == digest_of(make_batches(6, 4), tmp_path / "alone")
    assert (manifest.counts.epochs, manifest.counts.batches) == (6, 24)
    assert check_pool(path).whole


def test_two_writers_of_the_same_batch_are_told_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    first, second = open_writer(path), open_writer(path)
    first.append(make_batch(0, 0))
    second.append(replace(make_batch(0, 0), labels=make_batch(0, 1).labels))
    second.append(make_batch(0, 1))
    second.flush()
    with pytest.raises(DuplicateBatchError, match="two writers wrote epoch 0 batch 0"):
        first.commit()
    assert len(list((path / "staging").glob("*/shard.json"))) == 2
    assert not (path / "pool.json").exists()


def test_the_same_batch_from_two_writers_is_kept_once(tmp_path: Path) -> None:
    """A worker that was given up for lost may seal its work after another has done it again."""
    path = tmp_path / "pool"
    first, second, third, late = (open_writer(path) for _ in range(4))
    first.append(make_batch(0, 0))
    second.extend([make_batch(0, 0), make_batch(0, 1)])
    third.append(make_batch(0, 1))
    late.append(make_batch(0, 1))
    for writer in (first, second, third):
        writer.flush()
    manifest = open_writer(path).commit()
    assert manifest.content_digest == digest_of(make_batches(1, 2), tmp_path / "alone")
    assert check_pool(path).whole
    late.flush()
    with PoolReader(path) as pool:
        assert open_writer(path, onto=pool).commit().content_digest == manifest.content_digest
    assert check_pool(path).whole
    assert not (path / "staging").exists()


def test_a_batch_cannot_be_appended_twice(tmp_path: Path) -> None:
    with open_writer(tmp_path / "pool") as writer:
        writer.append(make_batch(0, 0))
        with pytest.raises(DuplicateBatchError, match="epoch 0 batch 0"):
            writer.append(make_batch(0, 0))


def test_a_pool_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", make_batches(1, 1), header=HEADER, images=IMAGES).close()
    with pytest.raises(PoolConflictError, match="already here"):
        open_writer(tmp_path / "pool")


def test_another_pools_staging_is_not_joined(tmp_path: Path) -> None:
    open_writer(tmp_path / "pool").append(make_batch(0, 0))
    with pytest.raises(StagingMismatchError, match="field 'seed' differs"):
        PoolWriter(tmp_path / "pool", header=replace(HEADER, seed=1), images=IMAGES)
    with pytest.raises(StagingMismatchError, match="images_digest"):
        PoolWriter(tmp_path / "pool", header=HEADER, images=make_images(40))
    with pytest.raises(StagingMismatchError, match="codec"):
        PoolWriter(tmp_path / "pool", header=HEADER, images=IMAGES, codec=codec_named("int8"))


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (make_batch(0, 0, classes=11), "number of classes"),
        (make_batch(0, 0, rows=9), "too large"),
        (make_batch(0, 0, images=make_images(1000)), "indices below 50"),
        (make_batch(0, 0, images=make_images(size=64)), "outside image"),
    ],
)
def test_views_outside_the_pool_are_refused(tmp_path: Path, batch: LabelBatch, words: str) -> None:
    with open_writer(tmp_path / "pool") as writer, pytest.raises(InvalidBatchError, match=words):
        writer.append(batch)


def test_labels_that_overflow_half_precision_are_refused(tmp_path: Path) -> None:
    batch = make_batch(0, 0, dtype=np.float32)
    loud = replace(batch, labels=batch.labels * np.float32(1e5))
    with open_writer(tmp_path / "pool") as writer, pytest.raises(InvalidBatchError, match="use codec 'f32'"):
        writer.append(loud)


def test_image_classes_must_fit_the_labels(tmp_path: Path) -> None:
    images: ImageTable = make_images(classes=20)
    with pytest.raises(InvalidArgumentError, match="classes below 10"):
        PoolWriter(tmp_path / "pool", header=HEADER, images=images)


def test_the_manifest_is_stable_text(tmp_path: Path) -> None:
    write_pool(tmp_path / "a", make_batches(), header=HEADER, images=IMAGES).close()
    write_pool(tmp_path / "b", make_batches(), header=HEADER, images=IMAGES).close()
    first, second = ((tmp_path / name / "pool.json").read_bytes() for name in "ab")
    assert first == second
    assert json.loads(first)["format_version"] == 1
