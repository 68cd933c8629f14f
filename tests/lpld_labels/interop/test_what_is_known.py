"""What an import takes from the published programs, what it asks for, and what it leaves unknown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lpld_labels import PoolReader
from lpld_labels.errors import ImageMismatchError, LabelSourceError
from lpld_labels.format.manifest import ENSEMBLE_WORDS
from lpld_labels.interop.importing import ImportReport, import_labels
from lpld_labels.interop.layouts import CIFAR, IMAGENET, TINY, Normalisation
from lpld_labels.interop.settings import ImportOptions
from tests.lpld_labels.interop.label_folders import (
    CLASSES,
    batch_list,
    write_epochs,
    write_fkd,
    write_images,
)


@pytest.mark.parametrize(
    ("classes", "side", "rule", "normalisation"),
    [(100, 32, "average", CIFAR), (10, 32, "average", CIFAR), (200, 64, "average", IMAGENET)],
)
def test_the_branches_of_gvbsm_are_told_apart(
    tmp_path: Path, classes: int, side: int, rule: str, normalisation: Normalisation
) -> None:
    images = write_images(tmp_path / "images", size=side)
    source = write_epochs(tmp_path / "labels", epochs=1, ids_in_batch=True, classes=classes, size=side)
    report = import_labels(source, tmp_path / "pool", images=images)
    with PoolReader(tmp_path / "pool") as pool:
        (teacher,) = pool.header.teachers
        assert pool.header.ensemble == ENSEMBLE_WORDS[rule]  # type: ignore[index]
    assert (teacher.mean, teacher.std) == (normalisation.mean, normalisation.std)
    assert any("G-VBSM's branch" in line and "--ensemble" in line for line in report.assumed)


@pytest.mark.parametrize(("classes", "side"), [(100, 64), (1000, 32), (20, 32)])
def test_gvbsm_of_no_published_branch_is_asked_about(tmp_path: Path, classes: int, side: int) -> None:
    images = write_images(tmp_path / "images", size=side)
    source = write_epochs(tmp_path / "labels", epochs=1, ids_in_batch=True, classes=classes, size=side)
    with pytest.raises(LabelSourceError, match=r"several teachers.*--ensemble average"):
        import_labels(source, tmp_path / "pool", images=images)
    options = ImportOptions(ensemble="norm-scaled", teachers=("a", "b"), mean=(0.5,) * 3, std=(0.2,) * 3)
    import_labels(source, tmp_path / "told", images=images, options=options)
    with PoolReader(tmp_path / "told") as pool:
        assert pool.header.ensemble == ENSEMBLE_WORDS["norm-scaled"]
        assert [(t.name, t.mean) for t in pool.header.teachers] == [("a", (0.5,) * 3), ("b", (0.5,) * 3)]


def test_mixup_of_small_gvbsm_branches_is_pointed_out(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images")
    source = write_epochs(tmp_path / "labels", epochs=1, ids_in_batch=True, classes=100, mix="mixup")
    report = import_labels(source, tmp_path / "pool", images=images)
    assert any("before MixUp" in line for line in report.odd)


@pytest.mark.parametrize("ids_file", [False, True])
def test_an_unknown_normalisation_stays_unknown(tmp_path: Path, ids_file: bool) -> None:
    images = write_images(tmp_path / "images")
    source = write_epochs(tmp_path / "labels", epochs=1, ids_file=ids_file)
    report = import_labels(source, tmp_path / "pool", images=images)
    with PoolReader(tmp_path / "pool") as pool:
        assert [(t.mean, t.std) for t in pool.header.teachers] == [(None, None)]
    assert any("normalisation is not known" in line and "--mean" in line for line in report.odd)


def test_lpld_has_tiny_imagenets_normalisation_at_200_classes(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", size=64)
    source = write_epochs(tmp_path / "labels", epochs=1, ids_file=True, classes=200, size=64)
    import_labels(source, tmp_path / "pool", images=images)
    with PoolReader(tmp_path / "pool") as pool:
        assert pool.header.teachers[0].mean == TINY.mean
    plain = write_epochs(tmp_path / "plain", epochs=1, classes=200, size=64)
    import_labels(plain, tmp_path / "other", images=images)
    with PoolReader(tmp_path / "other") as pool:
        assert pool.header.teachers[0].mean is None  # SRe2L's program is for ImageNet-1K


def write_lpqld(folder: Path, *, classes: int, kept: int, size: int) -> list[list[object]]:
    """Write two batches as LPQLD's program does, top-k labels in falling order."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    ids = [np.arange(8), np.arange(8, 16)]
    saved = []
    for number, part in enumerate(ids):
        content = batch_list(part, rng, classes=classes, size=size)
        top = content[5].float().topk(kept)
        content = [content[0].half(), content[1], content[2].to(torch.uint8), *content[3:]]
        content[5:] = [top.values.half(), top.indices.short()]
        torch.save(content, folder / f"batch_{number}.tar")
        saved.append(content)
    text = ", ".join(f'"{n}": {part.tolist()}' for n, part in enumerate(ids))
    (folder / "sampler_indices_batch.json").write_text(f"{{{text}}}")
    return saved


def imported_lpqld(tmp_path: Path, size: int = 64) -> tuple[list[list[object]], ImportReport]:
    images = write_images(tmp_path / "images", size=size)
    saved = write_lpqld(tmp_path / "labels", classes=200, kept=10, size=size)
    options = ImportOptions(classes=200, allow_extra_images=True)
    return saved, import_labels(tmp_path / "labels", tmp_path / "pool", images=images, options=options)


def test_lpqld_makes_views_of_224_pixels_of_any_images(tmp_path: Path) -> None:
    _, report = imported_lpqld(tmp_path)
    with PoolReader(tmp_path / "pool") as pool:
        assert pool.header.augmentation.output_height == 224
    assert any("as LPQLD's program" in line for line in report.assumed)


def test_lpqld_labels_have_no_tail_at_any_temperature(tmp_path: Path) -> None:
    """Its trainer softens the k values alone and gives all other classes probability 0 (MR-k)."""
    saved, _ = imported_lpqld(tmp_path)
    with PoolReader(tmp_path / "pool") as pool:
        for number, key in enumerate(pool.keys):
            values, classes = saved[number][5:7]
            assert isinstance(values, torch.Tensor)
            assert isinstance(classes, torch.Tensor)
            theirs = torch.zeros(8, 200).scatter_(1, classes.long(), (values.float() / 20).softmax(1))
            ours = (torch.from_numpy(pool.read_labels(key, dtype=np.float32).copy()) / 20).softmax(1)
            assert torch.equal(ours > 0, theirs > 0)
            torch.testing.assert_close(ours, theirs, atol=1e-7, rtol=1e-6)


def test_classes_of_top_k_labels_are_asked_for(tmp_path: Path) -> None:
    """Labels of 3 classes say nothing about how many there are, nor do 5 image folders."""
    images = write_images(tmp_path / "images")
    write_fkd(tmp_path / "labels", images)
    for file in (tmp_path / "labels").rglob("*.tar"):
        content = torch.load(file, weights_only=False)
        content[2][:, 0] = [0, 1, 2]
        torch.save(content, file)
    with pytest.raises(LabelSourceError, match="give --classes"):
        import_labels(tmp_path / "labels", tmp_path / "pool", images=images)


def test_fkd_below_its_save_path(tmp_path: Path) -> None:
    """FKD's program makes SAVE_PATH/NAME/train/CLASS/IMAGE.tar."""
    images = write_images(tmp_path / "images")
    write_fkd(tmp_path / "save" / "imagenet", images)
    options = ImportOptions(classes=CLASSES)
    report = import_labels(tmp_path / "save", tmp_path / "pool", images=images, options=options)
    inner = import_labels(tmp_path / "save" / "imagenet", tmp_path / "inner", images=images, options=options)
    assert report.content_digest == inner.content_digest
    write_fkd(tmp_path / "save" / "other", images)
    with pytest.raises(LabelSourceError, match=r"several data sets.*imagenet, other"):
        import_labels(tmp_path / "save", tmp_path / "again", images=images, options=options)


def test_fkd_class_numbers_too_large_for_half_precision(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", 4)
    write_fkd(tmp_path / "labels", images, half=True)
    for file in (tmp_path / "labels").rglob("*.tar"):
        content = torch.load(file, weights_only=False)
        content[2][:, 0] = np.array([2050, 4000, 6000], np.float16)
        torch.save(content, file)
    with pytest.raises((LabelSourceError, ImageMismatchError), match="half precision"):
        import_labels(
            tmp_path / "labels", tmp_path / "pool", images=images, options=ImportOptions(classes=10450)
        )
