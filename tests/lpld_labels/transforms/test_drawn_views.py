"""Pools that leave their views out: the same batches, digests and commands, in fewer bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpld_labels import LabelBatch, PoolReader, PoolWriter
from lpld_labels.codecs import codec_named
from lpld_labels.errors import InvalidArgumentError, PoolConflictError
from lpld_labels.format.drawing import draw_views
from lpld_labels.format.manifest import PoolHeader
from lpld_labels.inspect.check import check_pool
from lpld_labels.pool.publish import views_per_image
from lpld_labels.pool.reader import PoolReader as Reader
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.transforms.copy import merge_pools
from lpld_labels.transforms.encode import encode_pool
from lpld_labels.transforms.plan import apply_plan, plan_budget
from lpld_labels.transforms.prune import prune_pool
from lpld_labels.transforms.settings import EncodeSettings, PlanSettings, PruneSettings
from tests.factories import assert_same_views, grow_pool, make_batches, make_header, make_images, write_pool
from tests.label_factory import make_logits

IMAGES = make_images(50, classes=10)


def drawn_batches(header: PoolHeader, epochs: int = 4) -> list[LabelBatch]:
    """Return all batches of some epochs as a build makes them."""
    made = []
    for epoch in range(epochs):
        for batch in range(-(-len(IMAGES) // header.batch_size)):
            views = draw_views(
                header.augmentation,
                IMAGES,
                seed=header.seed or 0,
                epoch=epoch,
                batch=batch,
                batch_size=header.batch_size,
            )
            labels = make_logits(views.rows, header.classes, seed=100 * epoch + batch).astype(np.float16)
            made.append(LabelBatch(**vars(views), labels=labels))
    return made


@pytest.fixture
def stored(tmp_path: Path) -> PoolReader:
    header = make_header(10, 16)
    return write_pool(tmp_path / "stored", drawn_batches(header), header=header, images=IMAGES)


@pytest.mark.parametrize("mix", ["none", "cutmix", "mixup"])
def test_views_go_and_come_back(tmp_path: Path, mix: str) -> None:
    header = make_header(10, 16, mix=mix)
    stored = write_pool(tmp_path / "stored", drawn_batches(header), header=header, images=IMAGES)
    encode_pool(stored, tmp_path / "drawn", EncodeSettings(views="drawn"))
    drawn = PoolReader(tmp_path / "drawn")
    assert not drawn.manifest.files_of("views")
    assert not (tmp_path / "drawn" / "views").exists()
    assert drawn.manifest.content_digest == stored.manifest.content_digest
    assert drawn.manifest.coverage == stored.manifest.coverage
    for batch in stored:
        found = drawn.read(batch.key)
        assert_same_views(found, batch)
        np.testing.assert_array_equal(found.labels, batch.labels)
    np.testing.assert_array_equal(drawn.images_at(3), stored.images_at(3))
    np.testing.assert_array_equal(views_per_image(drawn), views_per_image(stored))
    assert check_pool(drawn.location).whole
    again = encode_pool(drawn, tmp_path / "again", EncodeSettings(views="stored")).manifest
    assert again.content_digest == stored.manifest.content_digest
    assert [e.digest for e in again.files_of("views")] == [
        e.digest for e in stored.manifest.files_of("views")
    ]
    assert check_pool(tmp_path / "again").whole


def test_views_can_replace_another_pool(stored: PoolReader, tmp_path: Path) -> None:
    prune_pool(stored, tmp_path / "out", PruneSettings(ratio=2))
    with pytest.raises(PoolConflictError, match="another pool"):
        encode_pool(stored, tmp_path / "out", EncodeSettings(views="drawn"))
    made = encode_pool(stored, tmp_path / "out", EncodeSettings(views="drawn"), overwrite=True).manifest
    assert made.counts == stored.manifest.counts
    assert check_pool(tmp_path / "out").whole
    assert encode_pool(stored, tmp_path / "out", EncodeSettings(views="drawn")).manifest == made


def test_labels_are_not_decoded(stored: PoolReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reader, "labels_at", lambda *_: pytest.fail("labels were decoded"))
    monkeypatch.setattr(type(stored.codec), "decode", lambda *_, **__: pytest.fail("labels were decoded"))
    manifest = encode_pool(stored, tmp_path / "drawn", EncodeSettings(views="drawn")).manifest
    assert [e.digest for e in manifest.files_of("labels")] == [
        e.digest for e in stored.manifest.files_of("labels")
    ]


def test_every_command_keeps_views_as_they_are(stored: PoolReader, tmp_path: Path) -> None:
    encode_pool(stored, tmp_path / "drawn", EncodeSettings(views="drawn"))
    drawn = PoolReader(tmp_path / "drawn")
    for pool, name in ((stored, "a"), (drawn, "b")):
        prune_pool(pool, tmp_path / f"{name}-pruned", PruneSettings(ratio=2))
        encode_pool(pool, tmp_path / f"{name}-encoded", EncodeSettings(codec="int8"))
        plan = plan_budget(pool, PlanSettings(budget=10**6, codecs=("f16",)))
        apply_plan(pool, tmp_path / f"{name}-planned", plan)
    for step in ("pruned", "encoded", "planned"):
        first, second = PoolReader(tmp_path / f"a-{step}"), PoolReader(tmp_path / f"b-{step}")
        assert (first.manifest.views, second.manifest.views) == ("stored", "drawn")
        assert first.manifest.content_digest == second.manifest.content_digest
        assert check_pool(second.location).whole


def test_drawn_pools_are_merged_and_extended(tmp_path: Path) -> None:
    header = make_header(10, 16)
    made = drawn_batches(header)
    codec = codec_named("f16")
    for name, part in (("a", made[:7]), ("b", made[7:])):
        with PoolWriter(tmp_path / name, header=header, images=IMAGES, codec=codec, views="drawn") as writer:
            writer.extend(part)
            writer.commit()
    merge_pools([PoolReader(tmp_path / "a"), PoolReader(tmp_path / "b")], tmp_path / "merged")
    grow_pool(tmp_path / "a", made)
    merged, extended = PoolReader(tmp_path / "merged"), PoolReader(tmp_path / "a")
    assert merged.manifest.content_digest == extended.manifest.content_digest
    assert merged.manifest.coverage == extended.manifest.coverage
    for pool in (merged, extended):
        assert check_pool(pool.location).whole
        assert len(pool) == len(made)


def test_codec_and_views_change_together(stored: PoolReader, tmp_path: Path) -> None:
    request = EncodeSettings(codec="klt", fidelity=0.9)
    encode_pool(stored, tmp_path / "kept", request)
    result = encode_pool(stored, tmp_path / "left", replace(request, views="drawn"))
    kept = PoolReader(tmp_path / "kept")
    assert result.manifest.content_digest == kept.manifest.content_digest
    assert result.after < pool_bytes(kept.manifest)
    assert result.manifest.header.lineage[-1].parameters["settings"]["views"] == "drawn"
    assert encode_pool(stored, tmp_path / "left", replace(request, views="drawn")).manifest == result.manifest


@pytest.mark.parametrize("change", [{"seed": None}, {"seed": 1}])
def test_views_that_were_not_drawn_are_kept(tmp_path: Path, change: dict[str, Any]) -> None:
    """Imported pools have no seed, and pools of made-up views another."""
    header = make_header(10, 8, **change)
    pool = write_pool(tmp_path / "pool", make_batches(1, 2), header=header, images=IMAGES)
    with pytest.raises(InvalidArgumentError, match="cannot be left out"):
        encode_pool(pool, tmp_path / "drawn", EncodeSettings(views="drawn"))
    assert not (tmp_path / "drawn").exists()


def test_a_writer_proves_every_batch(tmp_path: Path) -> None:
    header = make_header(10, 16)
    good = drawn_batches(header)
    with PoolWriter(tmp_path / "pool", header=header, images=IMAGES, views="drawn") as writer:
        writer.append(good[0])
        changed = {**vars(good[1]), "flips": ~good[1].flips}
        with pytest.raises(InvalidArgumentError, match="drawing them gives other views"):
            writer.append(LabelBatch(**changed))
        writer.commit()
    assert len(PoolReader(tmp_path / "pool")) == 1


def _many(path: Path, epochs: int, codec: str) -> PoolReader:
    """Write a drawn pool of 100 classes, 1000 images and batches of 100."""
    images = make_images(1000, classes=100)
    header = make_header(100, 100, mix="none")
    with PoolWriter(path, header=header, images=images, codec=codec_named(codec), views="drawn") as writer:
        for number in range(10 * epochs):
            views = draw_views(
                header.augmentation,
                images,
                seed=0,
                epoch=number // 10,
                batch=number % 10,
                batch_size=100,
            )
            labels = make_logits(100, 100, rank=40, seed=number).astype(np.float16)
            writer.append(LabelBatch(**vars(views), labels=labels))
        writer.commit()
    return PoolReader(path)


def test_a_drawn_pool_is_little_more_than_its_labels(tmp_path: Path) -> None:
    manifest = _many(tmp_path / "pool", 12, "int8").manifest
    assert pool_bytes(manifest) > 1e6
    needed = manifest.components["labels"] + manifest.files_of("images")[0].bytes
    assert pool_bytes(manifest) <= 1.06 * needed


def test_a_drawn_klt_pool_is_little_more_than_its_labels(tmp_path: Path) -> None:
    pool = _many(tmp_path / "pool", 62, "f16")
    manifest = encode_pool(pool, tmp_path / "klt", EncodeSettings(codec="klt", fidelity=0.99)).manifest
    assert manifest.views == "drawn"
    assert pool_bytes(manifest) > 1e6
    payload = manifest.components["labels"] + manifest.components["codec"]
    assert pool_bytes(manifest) <= 1.06 * (payload + manifest.files_of("images")[0].bytes)


def test_views_are_a_third_of_a_small_pool(tmp_path: Path) -> None:
    pool = _many(tmp_path / "pool", 20, "f16")
    request = EncodeSettings(codec="klt", fidelity=0.8)
    drawn = encode_pool(pool, tmp_path / "drawn", request)
    stored = encode_pool(pool, tmp_path / "stored", replace(request, views="stored"))
    assert drawn.manifest.content_digest == stored.manifest.content_digest
    assert stored.after >= 1.5 * drawn.after
