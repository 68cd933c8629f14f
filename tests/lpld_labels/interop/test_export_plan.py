"""What an export says about the programs it is for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lpld_labels import PoolReader, PoolWriter, Teacher
from lpld_labels.codecs import codec_named
from lpld_labels.format.images import ImageTable
from lpld_labels.format.records import BatchKey, ViewBatch
from lpld_labels.interop.export_plan import Claim, moved_crops
from lpld_labels.interop.exporting import export_pool
from lpld_labels.interop.importing import import_labels
from lpld_labels.interop.layouts import TINY
from lpld_labels.interop.settings import ExportOptions, ImportOptions
from tests.factories import make_batch, make_header, make_images
from tests.lpld_labels.interop.label_folders import write_epochs, write_images


def claims_of(
    pool: Path, folder: Path, label_format: str, options: ExportOptions | None = None
) -> dict[str, Claim]:
    """Export; return the claims by the last word of their option."""
    with PoolReader(pool) as reader:
        report = export_pool(reader, folder, label_format=label_format, options=options)
    return {claim.option.split(",")[0].split()[-1]: claim for claim in report.claims}


def test_a_folder_of_theirs_holds_in_every_way(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", size=64)
    source = write_epochs(tmp_path / "labels", epochs=2, ids_file=True, classes=200, size=64)
    import_labels(source, tmp_path / "pool", images=images)
    claims = claims_of(tmp_path / "pool", tmp_path / "out", "lpld")
    assert claims["batch"].holds
    assert claims["epoch"].holds
    assert "must not exceed 6" in claims["batch"].why


def test_a_pool_in_its_own_order_does_not_replay_by_epoch(tmp_path: Path) -> None:
    """Three defects, each named: order, resize, normalisation and size of views."""
    with PoolWriter(tmp_path / "pool", header=make_header(), images=make_images()) as writer:
        for epoch in range(2):
            for batch in range(7):
                writer.append(make_batch(epoch, batch, rows=2 if batch == 6 else 8))
        writer.commit()
    claims = claims_of(tmp_path / "pool", tmp_path / "out", "lpld")
    assert not claims["batch"].holds
    for text in ("it resizes with Pillow", "224 or 64 pixels, the pool's 32 x 32", "--resize pil"):
        assert text in claims["batch"].why
    assert "its sampler would put it" in claims["epoch"].why
    assert "its sampler" not in claims["batch"].why


def test_normalisation_of_another_kind_is_named(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", size=64)
    source = write_epochs(tmp_path / "labels", epochs=1, ids_file=True, classes=200, size=64)
    options = ImportOptions(mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))
    import_labels(source, tmp_path / "pool", images=images, options=options)
    claim = claims_of(tmp_path / "pool", tmp_path / "out", "lpld")["batch"]
    assert not claim.holds
    assert f"normalises by mean {list(TINY.mean)}, unknown by mean [0.5, 0.5, 0.5]" in claim.why


def test_a_pruned_pool_replays_by_batch_alone(tmp_path: Path) -> None:
    teacher = Teacher(name="t", mean=TINY.mean, std=TINY.std)
    with PoolWriter(
        tmp_path / "pool", header=make_header(teachers=(teacher,)), images=make_images()
    ) as writer:
        for key in [(0, 1), (3, 2), (5, 0)]:
            writer.append(make_batch(*key))
        writer.commit()
    claims = claims_of(tmp_path / "pool", tmp_path / "out", "lpld")
    assert "not a complete run" in claims["epoch"].why
    assert "never shows the last batch" in claims["batch_to_epoch"].why


@pytest.mark.parametrize(
    ("codec", "top_k", "changes"), [("f16", None, False), ("f16", 3, True), ("topk:4", None, True)]
)
def test_a_dropped_tail_is_told(tmp_path: Path, codec: str, top_k: int | None, changes: bool) -> None:
    with PoolWriter(
        tmp_path / "pool", header=make_header(), images=make_images(), codec=codec_named(codec)
    ) as writer:
        writer.append(make_batch(0, 0))
        writer.commit()
    (claim,) = claims_of(tmp_path / "pool", tmp_path / "out", "lpqld", ExportOptions(top_k=top_k)).values()
    assert ("largest to probability 0" in claim.why) is changes


def test_batches_that_lpqld_cannot_tell_apart(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images")
    source = write_epochs(tmp_path / "labels", epochs=1, ids_file=True)
    import_labels(source, tmp_path / "pool", images=images)
    with PoolReader(tmp_path / "pool") as pool:
        views = [pool.read(key) for key in pool.keys]
        header = pool.header
        table = pool.images
    with PoolWriter(tmp_path / "twice", header=header, images=table) as writer:
        for batch in views:
            writer.append(batch)
            fields = {name: getattr(batch, name) for name in ("images", "crops", "flips", "mix", "labels")}
            writer.append(type(batch)(key=BatchKey(1, batch.key.batch), **fields))
        writer.commit()
    (claim,) = claims_of(tmp_path / "twice", tmp_path / "out", "lpqld").values()
    assert "6 of 6 batches begin with the same images" in claim.why


def test_half_precision_moves_crops_of_large_images() -> None:
    """The programs add two rounded numbers, so sizes from 1024 on can be off by one."""
    rng = np.random.default_rng(0)
    moved = {}
    for side in (224, 1023, 3000):
        table = ImageTable(
            paths=["a/b.png"],
            classes=np.zeros(1, np.int32),
            widths=np.full(1, side, np.int32),
            heights=np.full(1, side, np.int32),
            digests=[bytes(16)],
        )
        sizes = rng.integers(1, side + 1, (4000, 2))
        corners = (rng.random((4000, 2)) * (side - sizes + 1)).astype(np.int64)
        crops = np.concatenate([corners, sizes], axis=1).astype(np.int32)
        views = ViewBatch(
            key=BatchKey(0, 0),
            images=np.zeros(4000, np.int32),
            crops=crops,
            flips=np.zeros(4000, np.bool_),
        )
        fractions = (crops / side).astype(np.float32)
        assert moved_crops(fractions, views, table) == 0
        moved[side] = moved_crops(fractions.astype(np.float16), views, table)
    assert (moved[224], moved[1023]) == (0, 0)
    assert moved[3000] > 100
