"""Writing: streams, several writers, crashes, resuming, refusing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lpld_labels import BatchKey, ImageTable, LabelBatch, PoolReader, PoolWriter
from lpld_labels.codecs import codec_named
from lpld_labels.codecs.topk import TopKCodec
from lpld_labels.errors import (
    InvalidArgumentError,
    InvalidBatchError,
    ManifestError,
    NotAPoolError,
    PoolConflictError,
    StagingMismatchError,
)
from lpld_labels.format.manifest import LineageStep
from lpld_labels.inspect.check import check_pool
from tests.factories import grow_pool, make_batch, make_batches, make_header, make_images, write_pool

HEADER = make_header()
IMAGES = make_images()


def open_writer(path: Path, *, shard_batches: int = 4096) -> PoolWriter:
    return PoolWriter(path, header=HEADER, images=IMAGES, shard_batches=shard_batches)


def digest_of(batches: Sequence[LabelBatch], path: Path) -> str:
    with write_pool(path, batches, header=HEADER, images=IMAGES) as pool:
        return pool.manifest.content_digest


def test_nothing_is_a_pool_before_the_commit(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    with open_writer(path) as writer:
        writer.extend(make_batches())
    with pytest.raises(NotAPoolError, match="the pool is unfinished"):
        PoolReader(path)
    with open_writer(path) as writer:
        writer.commit()
    assert len(PoolReader(path)) == 12
    assert [one.name for one in tmp_path.iterdir()] == ["pool"]


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


def test_extending_adds_only_what_is_new(tmp_path: Path) -> None:
    batches = make_batches(4, 4)
    path = tmp_path / "pool"
    write_pool(path, batches[::4], header=HEADER, images=IMAGES).close()
    before = {file.name: file.read_bytes() for file in (path / "labels").iterdir()}
    manifest = grow_pool(path, batches)
    assert manifest.content_digest == digest_of(batches, tmp_path / "whole")
    for name, data in before.items():
        assert (path / "labels" / name).read_bytes() == data
    assert len(list(path.glob("batches-*.parquet"))) == 1
    assert check_pool(path).whole


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with open_writer(tmp_path / "pool"), pytest.raises(PoolConflictError, match="another process"):
        open_writer(tmp_path / "pool")


def test_shards_of_an_interrupted_writer_are_found_again(tmp_path: Path) -> None:
    batches, path = make_batches(3, 4), tmp_path / "pool"
    with open_writer(path, shard_batches=5) as writer:
        writer.extend(batches[:7])
    with open_writer(path) as writer:
        assert [batch.key in writer for batch in batches] == [True] * 7 + [False] * 5
        writer.extend(batches)
        assert writer.commit().content_digest == digest_of(batches, tmp_path / "whole")
    assert len(list((path / "labels").iterdir())) == 3
    assert check_pool(path).whole


def test_a_batch_cannot_be_appended_twice(tmp_path: Path) -> None:
    with open_writer(tmp_path / "pool") as writer:
        writer.append(make_batch(0, 0))
        with pytest.raises(PoolConflictError, match="epoch 0 batch 0"):
            writer.append(make_batch(0, 0))


def test_a_pool_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", make_batches(1, 1), header=HEADER, images=IMAGES).close()
    with pytest.raises(PoolConflictError, match="already here"):
        open_writer(tmp_path / "pool")


def test_unfinished_work_of_another_pool_is_not_joined(tmp_path: Path) -> None:
    with open_writer(tmp_path / "pool") as writer:
        writer.append(make_batch(0, 0))
    with pytest.raises(StagingMismatchError, match="'seed' differs"):
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
        (make_batch(0, 0, images=make_images(1000)), "image outside the image table of 50"),
        (make_batch(0, 0, images=make_images(size=64)), "crop outside its image"),
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


def test_what_readers_would_refuse_is_not_published(tmp_path: Path) -> None:
    """A mix strength of -0.0 becomes 0.0; negative probabilities and another kind's codec are refused."""
    batch = make_batch(0, 0)
    assert batch.mix is not None
    images = make_images()
    with PoolWriter(tmp_path / "zero", header=make_header(), images=images) as writer:
        writer.append(replace(batch, mix=replace(batch.mix, strength=-0.0)))
        writer.commit()
    assert check_pool(tmp_path / "zero").problems == ()
    header = make_header(label_kind="probabilities")
    negative = PoolWriter(tmp_path / "negative", header=header, images=images)
    with negative, pytest.raises(InvalidBatchError, match="'labels'"):
        negative.append(batch)
    codec = TopKCodec(k=2)
    with PoolWriter(tmp_path / "kinds", header=header, images=images, codec=codec) as writer:
        writer.append(replace(batch, labels=np.abs(batch.labels)))
        with pytest.raises(ManifestError, match="label_kind"):
            writer.commit()
    assert not (tmp_path / "kinds").exists()
