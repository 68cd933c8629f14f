"""Pools of unusual shapes make a page, or one clear error."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpld_labels import ImageTable, LabelBatch, LabelPoolError, PoolReader
from lpld_labels.codecs import codec_named
from lpld_labels.inspect.report import make_report, report_page
from lpld_labels.inspect.sample import probabilities
from tests.browser import Browser
from tests.factories import make_batches, make_header, make_images, write_pool
from tests.lpld_labels.inspect.pages import picture_folder, read_page


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a pool is like."""

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

    def header(self) -> Any:
        header = make_header(self.classes, self.rows, self.mix, label_kind=self.kind)
        cutout = 0.3 if self.cutout else None
        how = replace(header.augmentation, cutout_fraction=cutout, patch_grid=self.patches)
        return replace(header, augmentation=how)

    def made(self, images: ImageTable) -> list[LabelBatch]:
        batches = make_batches(
            1,
            self.batches,
            rows=self.rows,
            classes=self.classes,
            images=images,
            mix=self.mix,
            cutout=self.cutout,
            patches=self.patches,
        )
        if self.kind == "logits":
            return batches
        return [
            replace(batch, labels=probabilities(batch.labels, "logits").astype(np.float16))
            for batch in batches
        ]

    def write(self, path: Path) -> None:
        table = make_images(self.images, self.image_classes)
        codec = codec_named(self.codec, label_kind=self.kind)
        write_pool(path, self.made(table), codec=codec, header=self.header(), images=table).close()


def shapes() -> Iterator[Shape]:
    """Yield a hundred shapes and more."""
    for mix, kind, codec in itertools.product(
        ("none", "cutmix", "mixup"),
        ("logits", "probabilities"),
        ("f16", "f16:plain", "f32", "int8", "topk:2"),
    ):
        yield Shape(mix=mix, kind=kind, codec=codec)
        yield Shape(mix=mix, kind=kind, codec=codec, batches=1, rows=1, images=1, image_classes=1)
    for batches, classes, mix in itertools.product((0, 1), (2, 3, 300, 10450), ("none", "cutmix", "mixup")):
        yield Shape(batches=batches, classes=classes, mix=mix, image_classes=1, images=1)
    for cutout, patches, mix in itertools.product((False, True), (None, 1, 3), ("none", "cutmix", "mixup")):
        yield Shape(cutout=cutout, patches=patches, mix=mix, images=40)


ALL = list(dict.fromkeys(shapes()))


def test_a_hundred_unusual_pools_make_a_page(tmp_path: Path) -> None:
    assert len(ALL) >= 100
    for number, shape in enumerate(ALL):
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


@pytest.fixture
def pictured(tmp_path: Path) -> Path:
    picture_folder(tmp_path / "images", ["a", "b", "c"], each=2)
    return tmp_path / "images"


@pytest.mark.parametrize("mix", ["none", "cutmix", "mixup"])
def test_views_of_every_kind_are_drawn(tmp_path: Path, pictured: Path, mix: str) -> None:
    from lpld_labels.render.images import scan_image_folder

    shape = Shape(mix=mix, cutout=True, patches=2, images=6)
    table = scan_image_folder(pictured)
    write_pool(tmp_path / "pool", shape.made(table), header=shape.header(), images=table).close()
    with PoolReader(tmp_path / "pool") as pool:
        page = read_page(report_page(make_report(pool, images=pictured)))
    pictures = [a for name, a in page.tags if name == "image"]
    assert len(pictures) == 12 * (2 if mix == "none" else 3)
    assert all((a["href"] or "").startswith("data:image/jpeg;base64,") for a in pictures)


def test_other_images_than_the_labelled_ones_are_one_clear_error(tmp_path: Path, pictured: Path) -> None:
    Shape(images=6).write(tmp_path / "pool")
    with PoolReader(tmp_path / "pool") as pool, pytest.raises(LabelPoolError, match="image"):
        make_report(pool, images=pictured)


def test_pages_of_unusual_pools_are_quiet_in_the_browser(tmp_path: Path) -> None:
    chosen = [Shape(batches=0), Shape(classes=10450, batches=1), Shape(mix="mixup", kind="probabilities")]
    with Browser(tmp_path / "profile") as chromium:
        for number, shape in enumerate(chosen):
            shape.write(tmp_path / str(number))
            with PoolReader(tmp_path / str(number)) as pool:
                (tmp_path / "page.html").write_bytes(report_page(make_report(pool)))
            chromium.open(tmp_path / "page.html", width=400)
            assert chromium.complaints() == []
            assert chromium.requests() == []
            assert chromium.evaluate("document.documentElement.scrollWidth") <= 400
