"""Encoding pools: every codec, resuming, processes, budgets, and what is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpld_labels import LabelBatch, PoolReader, PoolWriter
from lpld_labels.codecs import codec_named
from lpld_labels.errors import (
    InvalidArgumentError,
    PoolConflictError,
    PoolCorruptError,
    StagingMismatchError,
)
from lpld_labels.exec.local import LocalExecutor
from lpld_labels.format.drawing import draw_views
from lpld_labels.format.manifest import PoolHeader
from lpld_labels.inspect.check import check_pool
from lpld_labels.pool.publish import views_per_image
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.pool.unfinished import partial_directory
from lpld_labels.transforms.copy import merge_pools
from lpld_labels.transforms.encode import EncodeResult, encode_pool
from lpld_labels.transforms.plan import apply_plan, plan_budget
from lpld_labels.transforms.prune import prune_pool
from lpld_labels.transforms.sample import LabelSample
from lpld_labels.transforms.settings import EncodeSettings, PlanSettings, PruneSettings
from tests.factories import (
    assert_same_views,
    grow_pool,
    make_batch,
    make_batches,
    make_header,
    make_images,
    write_pool,
)
from tests.label_factory import make_logits, make_probabilities

CLASSES = 40
ROWS = 32


def labelled(batches: int = 12, *, probabilities: bool = False, classes: int = CLASSES) -> list[LabelBatch]:
    """Return batches whose labels look like a network's; the last one is incomplete."""
    images = make_images(classes=classes)
    made = []
    for number in range(batches):
        rows = ROWS if number < batches - 1 or batches == 1 else ROWS // 2
        blank = make_batch(number // 4, number % 4, rows=rows, classes=classes, images=images)
        make = make_probabilities if probabilities else make_logits
        made.append(replace(blank, labels=make(rows, classes, seed=number)))
    return made


@pytest.fixture
def pool(tmp_path: Path) -> PoolReader:
    header = make_header(CLASSES, ROWS)
    return write_pool(tmp_path / "pool", labelled(), header=header)


def kept_of(result: EncodeResult) -> dict[float, float]:
    assert result.fidelity is not None
    return result.fidelity.kept


REQUESTS = {
    "int8": EncodeSettings(codec="int8"),
    "int4": EncodeSettings(codec="int4"),
    "f16:plain": EncodeSettings(codec="f16:plain"),
    "topk": EncodeSettings(codec="topk:10:8"),
    "klt": EncodeSettings(codec="klt", fidelity=0.97, temperature=4),
}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_every_codec(tmp_path: Path, pool: PoolReader, request_: EncodeSettings) -> None:
    result = encode_pool(pool, tmp_path / "out", request_)
    assert check_pool(tmp_path / "out").whole
    with PoolReader(tmp_path / "out") as out:
        assert list(out.keys) == list(pool.keys)
        for key in out.keys:
            assert_same_views(out.read_views(key), pool.read_views(key))
            decoded = out.read_labels(key)
            assert np.isfinite(decoded).all()
            assert decoded.shape == pool.read_labels(key).shape
        step = out.header.lineage[-1]
        assert step.operation == "encode"
        assert step.parent_digest == pool.manifest.content_digest
        assert result.fidelity is not None
        assert step.parameters["fidelity"] == result.fidelity.as_json()
    assert result.before == pool_bytes(pool.manifest)
    assert result.after == sum(f.stat().st_size for f in (tmp_path / "out").rglob("*") if f.is_file())
    assert kept_of(result)[20] > (0.3 if str(request_.codec).startswith("topk") else 0.9)


def test_lossless_there_and_back(tmp_path: Path, pool: PoolReader) -> None:
    plain = encode_pool(pool, tmp_path / "plain", EncodeSettings(codec="f16:plain"))
    assert plain.manifest.content_digest == pool.manifest.content_digest
    assert kept_of(plain) == {1.0: 1.0, 4.0: 1.0, 20.0: 1.0}
    back = encode_pool(PoolReader(tmp_path / "plain"), tmp_path / "back", EncodeSettings(codec="f16"))
    assert back.manifest.content_digest == pool.manifest.content_digest
    assert [step.operation for step in back.manifest.header.lineage] == ["encode", "encode"]


def test_processes_write_the_same_pool(tmp_path: Path, pool: PoolReader) -> None:
    done: list[tuple[int, int]] = []
    alone = encode_pool(pool, tmp_path / "alone", EncodeSettings(codec="klt", fidelity=0.95))
    together = encode_pool(
        pool,
        tmp_path / "together",
        EncodeSettings(codec="klt", fidelity=0.95),
        executor=LocalExecutor(2),
        progress=lambda d, t: done.append((d, t)),
    )
    assert together.manifest.content_digest == alone.manifest.content_digest
    assert done[-1] == (12, 12)


def test_an_interrupted_run_goes_on(
    tmp_path: Path, pool: PoolReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lpld_labels.pool.plan.SHARD_BATCHES", 3)
    settings = EncodeSettings(codec="klt", fidelity=0.95)
    whole = encode_pool(pool, tmp_path / "whole", settings)

    def stop(done: int, total: int) -> None:
        if done == 8:
            raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        encode_pool(pool, out, settings, progress=stop)
    assert not out.exists()
    assert partial_directory(out).is_dir()
    done: list[int] = []
    result = encode_pool(pool, out, settings, progress=lambda d, t: done.append(d))
    assert result.manifest.content_digest == whole.manifest.content_digest
    assert done[-1] == 12
    assert min(done) >= 6, "two of four shards were safe already"
    assert not partial_directory(out).exists()
    again = encode_pool(pool, out, settings, progress=lambda d, t: pytest.fail("nothing is left to do"))
    assert again.manifest == result.manifest
    assert again.fidelity is not None
    assert result.fidelity is not None
    assert again.fidelity.as_json() == result.fidelity.as_json()


def test_other_settings_do_not_mix_with_unfinished_work(
    tmp_path: Path, pool: PoolReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lpld_labels.pool.plan.SHARD_BATCHES", 3)

    def stop(done: int, total: int) -> None:
        if done == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_pool(pool, tmp_path / "out", EncodeSettings(codec="int8"), progress=stop)
    with pytest.raises(StagingMismatchError):
        encode_pool(pool, tmp_path / "out", EncodeSettings(codec="int4"))


def test_lossy_pools_are_not_encoded_again_by_accident(tmp_path: Path, pool: PoolReader) -> None:
    encode_pool(pool, tmp_path / "int8", EncodeSettings(codec="int8"))
    with PoolReader(tmp_path / "int8") as lossy:
        with pytest.raises(InvalidArgumentError, match="already lost information"):
            encode_pool(lossy, tmp_path / "out", EncodeSettings(codec="int4"))
        assert not (tmp_path / "out").exists()
        encode_pool(lossy, tmp_path / "out", EncodeSettings(codec="int4", from_lossy=True))


def test_the_output_must_be_free(tmp_path: Path, pool: PoolReader) -> None:
    with pytest.raises(InvalidArgumentError, match="the output is the same as an input"):
        encode_pool(pool, tmp_path / "pool", EncodeSettings(codec="int8"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(PoolConflictError, match="already here"):
        encode_pool(pool, tmp_path / "other", EncodeSettings(codec="int8"))


def test_a_swapped_basis_is_refused(tmp_path: Path, pool: PoolReader) -> None:
    encode_pool(pool, tmp_path / "out", EncodeSettings(codec="klt", fidelity=0.97))
    encode_pool(pool, tmp_path / "other", EncodeSettings(codec="klt", fidelity=0.97, seed=1))
    table = tmp_path / "out" / "codec" / "mean.npy"
    shutil.copy(tmp_path / "other" / "codec" / "mean.npy", table)
    with pytest.raises(PoolCorruptError, match=r"mean\.npy.*not the one this pool was written with"):
        PoolReader(tmp_path / "out")
    # One of another size is refused as well.
    (tmp_path / "out" / "codec" / "basis.pco").write_bytes(b"something else")
    with pytest.raises(PoolCorruptError, match=r"basis\.pco"):
        PoolReader(tmp_path / "out")


def test_a_single_batch_and_an_empty_pool(tmp_path: Path) -> None:
    with write_pool(tmp_path / "one", labelled(1), header=make_header(CLASSES, ROWS)) as one:
        result = encode_pool(one, tmp_path / "out", EncodeSettings(codec="klt", fidelity=0.9))
        assert result.manifest.counts.rows == ROWS
    with (
        write_pool(tmp_path / "none", []) as none,
        pytest.raises(InvalidArgumentError, match="no labels"),
    ):
        encode_pool(none, tmp_path / "nothing", EncodeSettings(codec="int8"))


def test_estimates_are_close(tmp_path: Path, pool: PoolReader) -> None:
    for name in ("int8", "topk:10", "f16"):
        codec = codec_named(name)
        counts = pool.manifest.counts
        settings = EncodeSettings(codec=name)
        size = LabelSample(pool, settings).weigh(codec)
        estimate = size.total(counts.batches, counts.rows, incomplete=counts.incomplete_batches)
        written = encode_pool(pool, tmp_path / name.replace(":", "_"), settings).after
        assert written <= estimate < 1.25 * written


def test_probabilities(tmp_path: Path) -> None:
    header = make_header(CLASSES, ROWS, label_kind="probabilities")
    with write_pool(tmp_path / "pool", labelled(probabilities=True), header=header) as pool:
        for name, request in {
            "klt": EncodeSettings(codec="klt", fidelity=0.97, temperature=1),
            "topk": EncodeSettings(codec="topk:10"),
            "int8": EncodeSettings(codec="int8"),
        }.items():
            result = encode_pool(pool, tmp_path / name, request)
            assert kept_of(result)[1] > 0.9
            with PoolReader(tmp_path / name) as out:
                total = out.read_labels((0, 0)).astype(np.float64).sum(axis=1)
                np.testing.assert_allclose(total, 1, atol=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"codec": "int8", "fidelity": 0.9}, "has no fidelity"),
        ({"codec": "int8", "temperature": 4.0}, "has no temperature"),
    ],
)
def test_requests_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        EncodeSettings(**options)


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
    monkeypatch.setattr(PoolReader, "labels_at", lambda *_: pytest.fail("labels were decoded"))
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
