import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpld_labels import ImageTable, LabelBatch, LabelPoolError, PoolReader, PoolWriter
from lpld_labels.codecs import codec_named
from lpld_labels.format.manifest import LineageStep
from lpld_labels.format.records import BatchKey, LabelArray, ViewBatch
from lpld_labels.inspect.report import make_report, report_page
from lpld_labels.inspect.sample import MOST_ROWS, entropy, gather_facts, probabilities, take_sample
from tests.factories import flip_bit, make_batches, make_header, make_images, write_pool
from tests.lpld_labels.inspect.pages import HOSTILE, picture_folder, read_page


class CountingReader(PoolReader):
    labels_read: list[BatchKey]
    views_read: list[BatchKey]

    def read_labels(self, key: tuple[int, int], *, dtype: Any = None) -> LabelArray:
        self.labels_read.append(BatchKey(*key))
        return super().read_labels(key, dtype=dtype)

    def read_views(self, key: tuple[int, int]) -> ViewBatch:
        self.views_read.append(BatchKey(*key))
        return super().read_views(key)


class BrokenReader(PoolReader):
    """Gives a label that is not finite, as a pool would whose teacher overflowed."""

    def read_labels(self, key: tuple[int, int], *, dtype: Any = None) -> LabelArray:
        labels = np.array(super().read_labels(key, dtype=dtype))
        labels[0] = np.nan
        return labels


def with_labels(batch: LabelBatch, labels: LabelArray) -> LabelBatch:
    return replace(batch, labels=labels.astype(np.float16))


def warned(pool: PoolReader) -> str:
    return " ".join(make_report(pool).warnings)


def test_only_a_sample_is_read(tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", make_batches(40, 20, rows=64)).close()
    pool = CountingReader(tmp_path / "pool")
    pool.labels_read, pool.views_read = [], []
    report = make_report(pool)
    wanted = MOST_ROWS // 64
    assert len(pool) == 800
    assert len(pool.labels_read) == len(set(pool.labels_read)) == wanted
    assert set(pool.views_read) <= set(pool.labels_read)
    assert len(report.sample.rows) == MOST_ROWS
    assert not report.sample.whole
    assert f"random sample of {MOST_ROWS:,} rows" in read_page(report_page(report)).text
    spread = {key.epoch for key in pool.labels_read}
    assert len(spread) > 30, "the sample is not spread over the pool"


def test_measures_are_those_of_the_labels(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", make_batches(2, 2))
    sample = take_sample(pool)
    rows = sample.rows
    assert sample.whole
    assert len(rows) == 32
    for row in range(len(rows)):
        batch = pool.read(sample.keys[int(rows.batch[row])])
        slot = int(rows.slot[row])
        shares = probabilities(batch.labels[slot : slot + 1], "logits")[0]
        assert rows.confidence[row] == pytest.approx(shares.max())
        assert rows.entropy[row] == pytest.approx(-(shares * np.log2(shares)).sum())
        assert rows.image[row] == batch.images[slot]
        assert batch.mix is not None
        assert rows.partner[row] == batch.images[batch.mix.partner[slot]]
        assert rows.strength[row] == batch.mix.strength
        assert rows.area[row] == pytest.approx(batch.crops[slot, 2:].prod() / 48**2)
        best = int(batch.labels[slot].argmax())
        classes = pool.images.classes
        own, partner = classes[rows.image[row]] == best, classes[rows.partner[row]] == best
        assert rows.agreement[row] == (0 if own else 1 if partner else 2)


def test_a_probability_of_zero_stays_zero() -> None:
    labels = np.array([[0.9, 0.1, 0.0]], np.float16)
    np.testing.assert_allclose(probabilities(labels, "probabilities", 20.0), [[0.527, 0.473, 0]], atol=1e-3)
    assert entropy(np.array([[1.0, 0.0]]))[0] == 0


def test_what_is_odd_is_said(tmp_path: Path) -> None:
    images = make_images(60, 10)
    batches = make_batches(1, 4, images=make_images(20, 10))
    seen = np.unique(np.concatenate([batch.images for batch in batches]))
    constant = [with_labels(batches[0], np.full((8, 10), 2.0)), *batches[1:]]
    text = warned(write_pool(tmp_path / "a", constant, images=images))
    assert f"Images never seen as themselves: {60 - len(seen)} of 60" in text
    assert "Constant labels, the same value for every class: 8 of 32 looked at" in text
    missing = [
        replace(
            batch, images=np.zeros(8, np.int32), crops=np.tile(np.array([0, 0, 48, 48], np.int32), (8, 1))
        )
        for batch in batches
    ]
    text = warned(write_pool(tmp_path / "b", missing, images=images))
    said = "Classes missing, with images but not one view: 9 (class0001, class0002, class0003 and 6 more)"
    assert said in text
    same = [with_labels(batch, np.tile(batches[0].labels[:1], (8, 1))) for batch in batches]
    assert "All labels looked at are the same" in warned(write_pool(tmp_path / "c", same, images=images))
    unmixed = [replace(batch, mix=None) for batch in batches]
    assert "not mixed, though the pool says cutmix: 32" in warned(
        write_pool(tmp_path / "d", unmixed, images=images)
    )
    assert "no label batch" in warned(write_pool(tmp_path / "e", []))


def test_labels_in_another_class_order_are_noticed(tmp_path: Path) -> None:
    images = make_images(50, 10)
    right, wrong = [], []
    for batch in make_batches(4, 8, images=images, mix="none"):
        own = 9.0 * np.eye(10)[images.classes[batch.images]]
        right.append(with_labels(batch, own))
        wrong.append(with_labels(batch, np.roll(own, 1, axis=1)))
    assert "class order" not in warned(write_pool(tmp_path / "right", right, images=images))
    assert "same class order?" in warned(write_pool(tmp_path / "wrong", wrong, images=images))


def test_labels_that_are_no_numbers_are_said_and_shown(tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", make_batches(1, 2)).close()
    with BrokenReader(tmp_path / "pool") as pool:
        report = make_report(pool)
    said = "Labels that are not finite (NaN or infinite): 2 of 16 looked at, the first of image class"
    assert any(text.startswith(said) for text in report.warnings)
    assert "not finite" in read_page(report_page(report)).text


def test_a_damaged_batch_is_said_and_the_rest_shown(tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", make_batches(1, 2, rows=64, classes=1000), codec="f16:plain").close()
    (path,) = (tmp_path / "pool" / "labels").glob("*.parquet")
    flip_bit(path, 2000)
    with PoolReader(tmp_path / "pool") as pool:
        report = make_report(pool)
    assert any(text.startswith("Batches that cannot be read: 1 (") for text in report.warnings)
    assert len(report.sample.rows) == 64
    read_page(report_page(report))


def test_outside_text_everywhere_stays_text(tmp_path: Path) -> None:
    images = replace(make_images(4, 2), paths=[f"{HOSTILE}/{n}.png" for n in range(4)])
    header = make_header(10, 8)
    header = replace(header, teachers=(replace(header.teachers[0], name=HOSTILE),), ensemble=HOSTILE)
    step = LineageStep(operation=HOSTILE, parent_digest="a" * 64, parameters={HOSTILE: [HOSTILE]})
    with PoolWriter(tmp_path / "pool", header=header, images=images) as writer:
        writer.extend(make_batches(1, 1, images=images))
        writer.commit(lineage=(step,))
    with PoolReader(tmp_path / "pool") as pool:
        assert list(gather_facts(pool).names[:3]) == [HOSTILE.partition("/")[0]] * 2 + ["class 2"]
        page = read_page(report_page(make_report(pool)))
    assert page.text.count("<script>alert(1)</script>") >= 6


@dataclass(frozen=True, kw_only=True)
class Shape:
    classes: int = 3
    image_classes: int = 3
    images: int = 5
    mix: str = "cutmix"
    kind: str = "logits"
    codec: str = "f16"
    batches: int = 2
    cutout: bool = False
    patches: int | None = None
    rows: int = 6

    def write(self, path: Path, table: ImageTable | None = None) -> None:
        table = table or make_images(self.images, self.image_classes)
        header = make_header(self.classes, self.rows, self.mix, label_kind=self.kind)
        how = replace(
            header.augmentation, cutout_fraction=0.3 if self.cutout else None, patch_grid=self.patches
        )
        batch: dict[str, Any] = {"mix": self.mix, "cutout": self.cutout, "patches": self.patches}
        batches = make_batches(1, self.batches, rows=self.rows, classes=self.classes, images=table, **batch)
        if self.kind == "probabilities":
            batches = [with_labels(batch, probabilities(batch.labels, "logits")) for batch in batches]
        codec = codec_named(self.codec, label_kind=self.kind)
        write_pool(path, batches, codec=codec, header=replace(header, augmentation=how), images=table).close()


def shapes() -> Iterator[Shape]:
    for kind, codec in itertools.product(("logits", "probabilities"), ("f16", "f32", "int8", "topk:2")):
        yield Shape(kind=kind, codec=codec)
        yield Shape(mix="none", kind=kind, codec=codec, batches=1, rows=1, images=1, image_classes=1)
    for batches, classes in ((0, 2), (0, 300), (1, 3), (1, 10450)):
        yield Shape(batches=batches, classes=classes, image_classes=1, images=1)
    for cutout, patches, mix in itertools.product((False, True), (None, 1, 3), ("none", "cutmix", "mixup")):
        yield Shape(cutout=cutout, patches=patches, mix=mix, images=40)


@pytest.mark.slow
def test_unusual_pools_make_a_page(tmp_path: Path) -> None:
    for number, shape in enumerate(dict.fromkeys(shapes())):
        shape.write(tmp_path / str(number))
        with PoolReader(tmp_path / str(number)) as pool:
            report = make_report(pool)
        page = read_page(report_page(report))
        marks = [int(a["data-marks"] or 0) for _, a in page.tags if "data-marks" in a]
        assert len(marks) == 10 + len(report.cards), shape
        assert len(report.cards) == min(shape.batches * shape.rows, 96), shape
        if not shape.batches:
            assert "no label batch" in report.warnings[0]
        elif shape.images == 1 and shape.classes > 1:
            assert any("Classes without an image" in text for text in report.warnings), shape


@pytest.mark.parametrize("mix", ["none", "cutmix", "mixup"])
def test_views_of_every_kind_are_drawn(tmp_path: Path, mix: str) -> None:
    table = picture_folder(tmp_path / "images", ["a", "b", "c"], each=2)
    Shape(mix=mix, cutout=True, patches=2, images=6).write(tmp_path / "pool", table)
    with PoolReader(tmp_path / "pool") as pool:
        page = read_page(report_page(make_report(pool, images=tmp_path / "images")))
    pictures = [a for name, a in page.tags if name == "image"]
    assert len(pictures) == 12 * (2 if mix == "none" else 3)
    assert all((a["href"] or "").startswith("data:image/jpeg;base64,") for a in pictures)
    Shape(images=6).write(tmp_path / "other")
    with PoolReader(tmp_path / "other") as pool, pytest.raises(LabelPoolError, match="image"):
        make_report(pool, images=tmp_path / "images")


def test_the_documentation_explains_every_chart(project: Path, tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", make_batches(1, 2), codec="int4")
    page = read_page(report_page(make_report(pool)))
    charts = [a for name, a in page.tags if name == "svg" and "data-marks" in a]
    drawn = {str(a["aria-label"]) for a in charts if a["class"] != "chart bars"}
    assert len(drawn) >= 10
    lines = (project / "docs" / "report.md").read_text().splitlines()
    rows = [line.split("|")[1] for line in lines if line.startswith("| ")]
    assert drawn - {name.strip() for row in rows for name in row.split(",")} == set()
    for text in ("docs/report.md", "README.md"):
        assert re.search(r"images/report.png\)", (project / text).read_text())
    assert 0 < (project / "docs" / "images" / "report.png").stat().st_size < 150_000
