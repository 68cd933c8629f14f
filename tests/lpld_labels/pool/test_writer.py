import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpld_labels import LabelBatch, PoolReader, PoolWriter
from lpld_labels.codecs import codec_named
from lpld_labels.codecs.topk import TopKCodec
from lpld_labels.errors import (
    InvalidArgumentError,
    InvalidBatchError,
    ManifestError,
    NotAPoolError,
    PoolConflictError,
    PoolWriteError,
    StagingMismatchError,
)
from lpld_labels.format.limits import MAX_JSON_BYTES
from lpld_labels.format.manifest import LineageStep, PoolHeader, Teacher
from lpld_labels.inspect.check import check_pool
from tests.factories import (
    grow_pool,
    make_batch,
    make_batches,
    make_header,
    make_images,
    run_python,
    write_pool,
)

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


def test_digest_does_not_depend_on_order_shards_or_container(tmp_path: Path) -> None:
    batches = make_batches()
    reference = digest_of(batches, tmp_path / "reference")
    for number, (name, order, size) in enumerate(
        [("f16", 1, 1), ("f16:plain", 1, 1 << 20), ("f16", -1, 400), ("f16:plain", -1, 1)]
    ):
        path, codec = tmp_path / f"pool{number}", codec_named(name)
        with PoolWriter(path, header=HEADER, images=IMAGES, codec=codec, shard_bytes=size) as writer:
            writer.extend(batches[::order])
            lineage = (LineageStep(operation="test", parameters={"number": number}),)
            assert writer.commit(lineage=lineage).content_digest == reference
        assert check_pool(path).whole


def test_extending_adds_only_what_is_new(tmp_path: Path) -> None:
    batches = make_batches(4, 4)
    path = tmp_path / "pool"
    write_pool(path, batches[::4], header=HEADER, images=IMAGES).close()
    before = {file: file.read_bytes() for file in (path / "labels").iterdir()}
    manifest = grow_pool(path, batches)
    assert manifest.content_digest == digest_of(batches, tmp_path / "whole")
    assert all(file.read_bytes() == data for file, data in before.items())
    assert len(list(path.glob("batches-*.parquet"))) == 1
    assert check_pool(path).whole


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


def test_one_writer_one_pool_and_each_batch_once(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    with open_writer(path) as writer:
        with pytest.raises(PoolConflictError, match="another process"):
            open_writer(path)
        writer.append(make_batch(0, 0))
        with pytest.raises(PoolConflictError, match="epoch 0 batch 0"):
            writer.append(make_batch(0, 0))
        writer.commit()
    with pytest.raises(PoolConflictError, match="already here"):
        open_writer(path)


def test_unfinished_work_of_another_pool_is_not_joined(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    with open_writer(path) as writer:
        writer.append(make_batch(0, 0))
    with pytest.raises(StagingMismatchError, match="'seed' differs"):
        PoolWriter(path, header=replace(HEADER, seed=1), images=IMAGES)
    with pytest.raises(StagingMismatchError, match="images_digest"):
        PoolWriter(path, header=HEADER, images=make_images(40))
    with pytest.raises(StagingMismatchError, match="codec"):
        PoolWriter(path, header=HEADER, images=IMAGES, codec=codec_named("int8"))


LOUD = make_batch(0, 0, dtype=np.float32)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (make_batch(0, 0, classes=11), "number of classes"),
        (make_batch(0, 0, rows=9), "too large"),
        (make_batch(0, 0, images=make_images(1000)), "image outside the image table of 50"),
        (make_batch(0, 0, images=make_images(size=64)), "crop outside its image"),
        (replace(LOUD, labels=LOUD.labels * np.float32(1e5)), "use codec 'f32'"),
    ],
)
def test_batches_that_do_not_fit_the_pool_are_refused(tmp_path: Path, batch: LabelBatch, words: str) -> None:
    with open_writer(tmp_path / "pool") as writer, pytest.raises(InvalidBatchError, match=words):
        writer.append(batch)


def test_image_classes_must_fit_the_labels(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="classes below 10"):
        PoolWriter(tmp_path / "pool", header=HEADER, images=make_images(classes=20))


def with_teacher(**facts: Any) -> PoolHeader:
    grey = (0.5, 0.5, 0.5)
    return make_header(teachers=(Teacher(**{"name": "a", "mean": grey, "std": grey, **facts}),))


def with_views(**facts: Any) -> PoolHeader:
    return replace(HEADER, augmentation=replace(HEADER.augmentation, **facts))


@pytest.mark.parametrize(
    ("header", "field"),
    [
        (with_teacher(std=None), r"teachers\[0\]\.std"),
        (with_teacher(mean=(math.nan, 0.0, 0.0)), r"teachers\[0\]\.mean\[0\]"),
        (with_teacher(name="a\udcff"), r"teachers\[0\]\.name"),
        (with_teacher(weights_digest="unknown"), r"teachers\[0\]\.weights_digest"),
        (with_views(output_height=99_999_999), r"augmentation\.output_height"),
        (with_views(mix_alpha=math.inf), r"augmentation\.mix_alpha"),
        (make_header(seed=2**64), "seed"),
        (make_header(batch_size=1 << 20), "batch_size"),
        (make_header(classes=1 << 25), "classes"),
    ],
)
def test_bad_headers_are_refused_before_any_work(tmp_path: Path, header: PoolHeader, field: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"field '{field}'"):
        PoolWriter(tmp_path / "pool", header=header, images=IMAGES)
    assert not (tmp_path / "pool").exists()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (math.nan, r"field 'lineage\[0\]\.parameters\.value' cannot be written as JSON"),
        ("a\udcff", r"expected text .*, got 'a\\udcff'"),
        (10**30, "is out of range"),
        ("x" * MAX_JSON_BYTES, "too large"),
    ],
    ids=["nan", "no text", "integer", "length"],
)
def test_a_manifest_that_cannot_be_read_is_not_published(tmp_path: Path, value: object, words: str) -> None:
    batches, path = make_batches(2, 3), tmp_path / "pool"
    with open_writer(path) as writer:
        writer.extend(batches)
        with pytest.raises(InvalidArgumentError, match=words):
            writer.commit(lineage=(LineageStep(operation="test", parameters={"value": value}),))
        assert not (path / "pool.json").exists()
    with open_writer(path) as writer:
        assert all(batch.key in writer for batch in batches), "finished work is kept"
        assert writer.commit().counts.batches == 6
    assert [one.name for one in tmp_path.iterdir()] == ["pool"]


def test_what_readers_would_refuse_is_not_published(tmp_path: Path) -> None:
    """A mix strength of -0.0 becomes 0.0; negative probabilities and another kind's codec are refused."""
    batch = make_batch(0, 0)
    assert batch.mix is not None
    with PoolWriter(tmp_path / "zero", header=HEADER, images=IMAGES) as writer:
        writer.append(replace(batch, mix=replace(batch.mix, strength=-0.0)))
        writer.commit()
    assert check_pool(tmp_path / "zero").problems == ()
    header = make_header(label_kind="probabilities")
    negative = PoolWriter(tmp_path / "negative", header=header, images=IMAGES)
    with negative, pytest.raises(InvalidBatchError, match="'labels'"):
        negative.append(batch)
    codec = TopKCodec(k=2)
    with PoolWriter(tmp_path / "kinds", header=header, images=IMAGES, codec=codec) as writer:
        writer.append(replace(batch, labels=np.abs(batch.labels)))
        with pytest.raises(ManifestError, match="label_kind"):
            writer.commit()
    assert not (tmp_path / "kinds").exists()


def test_a_full_disk_loses_nothing_that_was_sealed(tmp_path: Path, project: Path) -> None:
    """A file-size limit makes the kernel refuse writes as a full disk does."""
    path = tmp_path / "pool"
    script = """
        import resource, sys
        from pathlib import Path
        from lpld_labels.errors import PoolWriteError
        from tests.factories import make_batches
        from tests.lpld_labels.pool.test_writer import open_writer
        writer = open_writer(Path(sys.argv[1]), shard_batches=4)
        batches = make_batches(3, 4)
        writer.extend(batches[:4])
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        try:
            with writer:
                writer.extend(batches[4:])
                writer.commit()
        except PoolWriteError as error:
            print(error)
            sys.exit(7)
    """
    ended = run_python(script, path, check=False, cwd=project)
    assert ended.returncode == 7, ended.stderr
    assert "disk is full" in ended.stdout
    assert not (path / "pool.json").exists()
    assert not list((tmp_path / "pool.partial").glob(".tmp-*"))
    batches = make_batches(3, 4)
    with open_writer(path) as writer:
        assert [batch.key in writer for batch in batches] == [True] * 4 + [False] * 8
        writer.extend(batches)
        assert writer.commit().content_digest == digest_of(batches, tmp_path / "whole")


def test_a_read_only_directory_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o755)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            # Already inside the directory: its private parents need not be crossed again.
            os.chdir(folder)
            if os.geteuid() == 0:
                os.setuid(65534)  # Permissions do not stop root.
            else:
                folder.chmod(0o555)
            open_writer(Path("pool"))
        except PoolWriteError as error:
            status = 0 if "no permission to write" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.timing
def test_memory_stays_flat_while_the_pool_grows(tmp_path: Path, project: Path) -> None:
    script = """
        import sys
        from pathlib import Path
        from benchmarks.common.harness import peak_memory_mb
        from tests.factories import make_batch, make_header, make_images
        from lpld_labels import PoolWriter
        images = make_images(classes=500)
        header = make_header(500, 64)
        with PoolWriter(Path(sys.argv[1]), header=header, images=images, shard_bytes=1 << 20) as w:
            for number in range(int(sys.argv[2])):
                w.append(make_batch(0, number, rows=64, classes=500, images=images))
            w.commit()
        print(peak_memory_mb())
    """
    peaks = [float(run_python(script, tmp_path / str(n), n, cwd=project).stdout) for n in (60, 600)]
    # Ten times the batches are 35 MB more labels; what may grow is a few bytes of index per batch.
    assert peaks[1] - peaks[0] < 12, peaks
