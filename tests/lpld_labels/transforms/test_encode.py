from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpld_labels import ImageTable, LabelBatch, PoolReader, PoolWriter
from lpld_labels.codecs import codec_named
from lpld_labels.errors import InvalidArgumentError, PoolConflictError
from lpld_labels.format.drawing import draw_views
from lpld_labels.format.manifest import PoolHeader
from lpld_labels.inspect.check import check_pool
from lpld_labels.pool.publish import views_per_image
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.transforms.copy import merge_pools
from lpld_labels.transforms.encode import EncodeResult, LabelSample, encode_pool
from lpld_labels.transforms.plan import apply_plan, plan_budget
from lpld_labels.transforms.settings import EncodeSettings, PlanSettings, PruneSettings
from tests.factories import (
    assert_same_views,
    grow_pool,
    make_batch,
    make_batches,
    make_header,
    make_images,
    prune_pool,
    write_pool,
)
from tests.label_factory import make_logits, make_probabilities

CLASSES = 40
ROWS = 32
INT8, INT4 = EncodeSettings(codec="int8"), EncodeSettings(codec="int4")
KLT = EncodeSettings(codec="klt", fidelity=0.95)


def labelled(batches: int = 12, *, probabilities: bool = False) -> list[LabelBatch]:
    """Return batches whose labels look like a network's; the last one is incomplete."""
    images = make_images(classes=CLASSES)
    made = []
    for number in range(batches):
        rows = ROWS if number < batches - 1 or batches == 1 else ROWS // 2
        blank = make_batch(number // 4, number % 4, rows=rows, classes=CLASSES, images=images)
        make = make_probabilities if probabilities else make_logits
        made.append(replace(blank, labels=make(rows, CLASSES, seed=number)))
    return made


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolReader]:
    path = tmp_path_factory.mktemp("pools") / "pool"
    with write_pool(path, labelled(), header=make_header(CLASSES, ROWS)) as pool:
        yield pool


def kept_of(result: EncodeResult) -> dict[float, float]:
    assert result.fidelity is not None
    return result.fidelity.kept


@pytest.mark.parametrize(
    "settings",
    [
        INT8,
        INT4,
        EncodeSettings(codec="f16:plain"),
        EncodeSettings(codec="topk:10:8"),
        EncodeSettings(codec="klt", fidelity=0.97, temperature=4),
    ],
    ids=lambda settings: str(settings.codec),
)
def test_every_codec(tmp_path: Path, pool: PoolReader, settings: EncodeSettings) -> None:
    result = encode_pool(pool, tmp_path / "out", settings)
    assert check_pool(tmp_path / "out").whole
    with PoolReader(tmp_path / "out") as out:
        assert list(out.keys) == list(pool.keys)
        for key in out.keys:
            assert_same_views(out.read_views(key), pool.read_views(key))
            assert np.isfinite(out.read_labels(key)).all()
        step = out.header.lineage[-1]
        assert (step.operation, step.parent_digest) == ("encode", pool.manifest.content_digest)
        assert result.fidelity is not None
        assert step.parameters["fidelity"] == result.fidelity.as_json()
    assert result.before == pool_bytes(pool.manifest)
    assert result.after == sum(f.stat().st_size for f in (tmp_path / "out").rglob("*") if f.is_file())
    assert kept_of(result)[20] > (0.3 if str(settings.codec).startswith("topk") else 0.9)


def test_lossless_there_and_back(tmp_path: Path, pool: PoolReader) -> None:
    plain = encode_pool(pool, tmp_path / "plain", EncodeSettings(codec="f16:plain"))
    assert plain.manifest.content_digest == pool.manifest.content_digest
    assert kept_of(plain) == {1.0: 1.0, 4.0: 1.0, 20.0: 1.0}
    back = encode_pool(PoolReader(tmp_path / "plain"), tmp_path / "back", EncodeSettings(codec="f16"))
    assert back.manifest.content_digest == pool.manifest.content_digest
    assert [step.operation for step in back.manifest.header.lineage] == ["encode", "encode"]


def test_a_single_batch_an_empty_pool_and_a_lossy_one(tmp_path: Path, pool: PoolReader) -> None:
    with write_pool(tmp_path / "one", labelled(1), header=make_header(CLASSES, ROWS)) as one:
        assert encode_pool(one, tmp_path / "klt", KLT).manifest.counts.rows == ROWS
    with write_pool(tmp_path / "none", []) as none, pytest.raises(InvalidArgumentError, match="no labels"):
        encode_pool(none, tmp_path / "nothing", INT8)
    encode_pool(pool, tmp_path / "int8", INT8)
    with PoolReader(tmp_path / "int8") as lossy:
        with pytest.raises(InvalidArgumentError, match="already lost information"):
            encode_pool(lossy, tmp_path / "out", INT4)
        assert not (tmp_path / "out").exists()
        encode_pool(lossy, tmp_path / "out", replace(INT4, from_lossy=True))


@pytest.mark.parametrize("name", ["int8", "topk:10", "f16"])
def test_estimates_are_close(tmp_path: Path, pool: PoolReader, name: str) -> None:
    counts, settings = pool.manifest.counts, EncodeSettings(codec=name)
    size = LabelSample(pool, settings).weigh(codec_named(name))
    estimate = size.total(counts.batches, counts.rows, incomplete=counts.incomplete_batches)
    written = encode_pool(pool, tmp_path / "out", settings).after
    assert written <= estimate < 1.25 * written


def test_probabilities(tmp_path: Path) -> None:
    header = make_header(CLASSES, ROWS, label_kind="probabilities")
    with write_pool(tmp_path / "pool", labelled(probabilities=True), header=header) as pool:
        for settings in (replace(KLT, temperature=1), EncodeSettings(codec="topk:10"), INT8):
            out = tmp_path / str(settings.codec)
            assert kept_of(encode_pool(pool, out, settings))[1] > 0.9
            with PoolReader(out) as encoded:
                total = encoded.read_labels((0, 0)).astype(np.float64).sum(axis=1)
                np.testing.assert_allclose(total, 1, atol=0.05)


DRAWN, STORED = EncodeSettings(views="drawn"), EncodeSettings(views="stored")
IMAGES = make_images(50, classes=10)
HEADER = make_header(10, 16)


def drawn_batches(
    header: PoolHeader = HEADER, images: ImageTable = IMAGES, epochs: int = 4, **labels: Any
) -> list[LabelBatch]:
    """Return all batches of some epochs as a build makes them."""
    size = header.batch_size
    made = []
    for epoch in range(epochs):
        for batch in range(-(-len(images) // size)):
            views = draw_views(
                header.augmentation, images, seed=header.seed or 0, epoch=epoch, batch=batch, batch_size=size
            )
            logits = make_logits(views.rows, header.classes, seed=100 * epoch + batch, **labels)
            made.append(LabelBatch(**vars(views), labels=logits))
    return made


def write_drawn(path: Path, batches: list[LabelBatch], **options: Any) -> PoolReader:
    settings: dict[str, Any] = {"header": HEADER, "images": IMAGES, **options}
    with PoolWriter(path, views="drawn", **settings) as writer:
        writer.extend(batches)
        writer.commit()
    return PoolReader(path)


@pytest.fixture
def stored(tmp_path: Path) -> PoolReader:
    return write_pool(tmp_path / "stored", drawn_batches(), header=HEADER, images=IMAGES)


@pytest.mark.parametrize("mix", ["none", "cutmix", "mixup"])
def test_views_are_left_out_and_come_back(tmp_path: Path, mix: str) -> None:
    header = make_header(10, 16, mix=mix)
    stored = write_pool(tmp_path / "stored", drawn_batches(header), header=header, images=IMAGES)
    encode_pool(stored, tmp_path / "drawn", DRAWN)
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
    again = encode_pool(drawn, tmp_path / "again", STORED).manifest
    assert again.content_digest == stored.manifest.content_digest
    assert again.files_of("views") == stored.manifest.files_of("views")
    assert check_pool(tmp_path / "again").whole


def test_views_without_decoding(stored: PoolReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prune_pool(stored, tmp_path / "out", PruneSettings(ratio=2))
    with pytest.raises(PoolConflictError, match="different pool"):
        encode_pool(stored, tmp_path / "out", DRAWN)
    monkeypatch.setattr(PoolReader, "labels_at", lambda *_: pytest.fail("labels were decoded"))
    monkeypatch.setattr(type(stored.codec), "decode", lambda *_, **__: pytest.fail("labels were decoded"))
    made = encode_pool(stored, tmp_path / "out", DRAWN, overwrite=True).manifest
    assert made.counts == stored.manifest.counts
    assert made.files_of("labels") == stored.manifest.files_of("labels")
    assert encode_pool(stored, tmp_path / "out", DRAWN).manifest == made


def test_every_command_keeps_views_as_they_are(stored: PoolReader, tmp_path: Path) -> None:
    encode_pool(stored, tmp_path / "drawn", DRAWN)
    drawn = PoolReader(tmp_path / "drawn")
    for pool, name in ((stored, "stored"), (drawn, "drawn")):
        prune_pool(pool, tmp_path / f"{name}-pruned", PruneSettings(ratio=2))
        encode_pool(pool, tmp_path / f"{name}-encoded", INT8)
        plan = plan_budget(pool, PlanSettings(budget=10**6, codecs=("f16",)))
        apply_plan(pool, tmp_path / f"{name}-planned", plan)
    for step in ("pruned", "encoded", "planned"):
        first, second = (PoolReader(tmp_path / f"{name}-{step}") for name in ("stored", "drawn"))
        assert (first.manifest.views, second.manifest.views) == ("stored", "drawn")
        assert first.manifest.content_digest == second.manifest.content_digest
        assert check_pool(second.location).whole


def test_drawn_pools_are_merged_and_extended(tmp_path: Path) -> None:
    made = drawn_batches()
    halves = [write_drawn(tmp_path / "a", made[:7]), write_drawn(tmp_path / "b", made[7:])]
    manifests = merge_pools(halves, tmp_path / "merged"), grow_pool(tmp_path / "a", made)
    assert manifests[0].content_digest == manifests[1].content_digest
    assert manifests[0].coverage == manifests[1].coverage
    for name in ("merged", "a"):
        assert check_pool(tmp_path / name).whole
        assert len(PoolReader(tmp_path / name)) == len(made)


def test_only_views_that_were_drawn_are_left_out(tmp_path: Path) -> None:
    """Imported pools have no seed, and pools of made-up views another."""
    for seed in (None, 1):
        header = make_header(10, 8, seed=seed)
        pool = write_pool(tmp_path / f"pool{seed}", make_batches(1, 2), header=header, images=IMAGES)
        with pytest.raises(InvalidArgumentError, match="must be stored"):
            encode_pool(pool, tmp_path / "drawn", DRAWN)
        assert not (tmp_path / "drawn").exists()
    good = drawn_batches()
    changed = LabelBatch(**{**vars(good[1]), "flips": ~good[1].flips})
    with pytest.raises(InvalidArgumentError, match="drawing them gives different views"):
        write_drawn(tmp_path / "pool", [good[0], changed])
    assert len(write_drawn(tmp_path / "pool", [])) == 1


def test_a_drawn_pool_is_little_more_than_its_labels(tmp_path: Path) -> None:
    header, images = make_header(100, 100, mix="none"), make_images(1000, classes=100)
    batches = drawn_batches(header, images, epochs=20, rank=40)
    options: dict[str, Any] = {"header": header, "images": images}
    many = write_drawn(tmp_path / "int8", batches[:120], codec=codec_named("int8"), **options).manifest
    assert pool_bytes(many) > 1e6
    assert pool_bytes(many) <= 1.06 * (many.components["labels"] + many.files_of("images")[0].bytes)
    pool = write_drawn(tmp_path / "pool", batches, **options)
    settings = EncodeSettings(codec="klt", fidelity=0.8)
    drawn = encode_pool(pool, tmp_path / "drawn", settings)
    stored = encode_pool(pool, tmp_path / "stored", replace(settings, views="stored"))
    assert drawn.manifest.views == "drawn"
    assert drawn.manifest.content_digest == stored.manifest.content_digest
    assert stored.manifest.header.lineage[-1].parameters["settings"]["views"] == "stored"
    assert stored.after >= 1.5 * drawn.after
