from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.common.photos import photo_folder
from lpld_core.relabel.build import build_pool
from lpld_core.relabel.verify_teacher import verify_with_teacher
from lpld_core.settings import TeacherChoice
from lpld_core.teachers.ensemble import Ensemble, load_ensemble
from lpld_core.teachers.teacher import LoadedTeacher, load_teacher
from lpld_labels.errors import ImageMismatchError, InvalidArgumentError
from lpld_labels.format.records import BatchKey, LabelBatch
from lpld_labels.pool.reader import PoolReader
from tests.lpld_core.image_folders import NETWORK, SIDE, SMALL_BUILD, write_images

LITE0 = "tests.lpld_core.efficientnet_lite:lite0"


def choice(name: str = NETWORK) -> TeacherChoice:
    return TeacherChoice(name=name, weights="random", input_size=(SIDE, SIDE))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "folder", side=24)


@pytest.fixture(scope="module")
def ensemble() -> Ensemble:
    return load_ensemble([choice()], classes=3)


def built(images: Path, path: Path, ensemble: Ensemble, **settings: object) -> Path:
    changed = replace(SMALL_BUILD, **{"epochs": 2, **settings})  # type: ignore[arg-type]
    build_pool(images, path, changed, ensemble=ensemble)
    return path


@pytest.mark.parametrize("codec", ["f16", "f32", "int8"])
@pytest.mark.parametrize("mix", ["none", "cutmix", "mixup"])
def test_what_was_built_agrees(
    images: Path, ensemble: Ensemble, tmp_path: Path, codec: str, mix: str
) -> None:
    path = built(images, tmp_path / "pool", ensemble, codec=codec, mix=mix, cutout_fraction=0.3)
    with PoolReader(path) as pool:
        check = verify_with_teacher(pool, images, ensemble.teachers, batches=100)
    assert check.agrees
    assert (check.batches, check.rows, check.rows_above_tolerance) == (12, 54, 0)
    assert check.top1_agreement + check.near_ties / check.rows >= 1
    assert check.first_difference is None


def test_an_ensemble_agrees(images: Path, tmp_path: Path) -> None:
    pair = load_ensemble([choice(), choice("small-resnet10:width=12")], classes=3)
    path = built(images, tmp_path / "pool", pair)
    with PoolReader(path) as pool:
        assert verify_with_teacher(pool, images, pair.teachers).agrees
        swapped = verify_with_teacher(pool, images, pair.teachers[::-1])
        assert len(swapped.wrong_teachers) == 2
        alone = verify_with_teacher(pool, images, pair.teachers[0])
        assert alone.wrong_teachers == ("the pool has 2 teachers, 1 were given",)
        assert alone.rows_above_tolerance > 0


@pytest.mark.parametrize("tolerance", [float("nan"), float("inf"), -1.0])
def test_a_tolerance_that_nothing_is_above_is_refused(
    images: Path, ensemble: Ensemble, tmp_path: Path, tolerance: float
) -> None:
    path = built(images, tmp_path / "pool", ensemble)
    with PoolReader(path) as pool, pytest.raises(InvalidArgumentError, match="tolerance is wrong"):
        verify_with_teacher(pool, images, ensemble.teachers, tolerance=tolerance)


def test_a_wrong_teacher_is_named(images: Path, ensemble: Ensemble, tmp_path: Path) -> None:
    path = built(images, tmp_path / "pool", ensemble)
    other = load_teacher("small-resnet10:width=9", weights="random", classes=3)
    with PoolReader(path) as pool:
        check = verify_with_teacher(pool, images, other)
    assert not check.agrees
    assert check.rows_above_tolerance > 0
    assert "small-resnet10:width=9" in check.wrong_teachers[0]
    first = check.first_difference
    assert first is not None
    assert first.difference > 0
    assert (images / first.image).is_file()


def test_another_normalisation_is_named(images: Path, ensemble: Ensemble, tmp_path: Path) -> None:
    path = built(images, tmp_path / "pool", ensemble)
    other = load_teacher(NETWORK, weights="random", classes=3, mean=(0.5, 0.5, 0.5))
    with PoolReader(path) as pool:
        check = verify_with_teacher(pool, images, other)
    assert "mean" in check.wrong_teachers[0]
    assert check.rows_above_tolerance > 0


def test_another_resize_code_is_caught(images: Path, ensemble: Ensemble, tmp_path: Path) -> None:
    path = built(images, tmp_path / "pool", ensemble, resize="pil")
    manifest = json.loads((path / "pool.json").read_text())
    manifest["augmentation"]["resize"] = "torch"
    (path / "pool.json").write_text(json.dumps(manifest))
    with PoolReader(path) as pool:
        check = verify_with_teacher(pool, images, ensemble.teachers, batches=12)
    assert not check.agrees
    assert not check.wrong_teachers
    assert check.first_difference is not None


def test_a_changed_image_is_named(images: Path, ensemble: Ensemble, tmp_path: Path) -> None:
    folder = shutil.copytree(images, tmp_path / "images")
    path = built(folder, tmp_path / "pool", ensemble)
    changed = folder / "class1/004.png"
    with Image.open(changed) as image:
        pixels = np.array(image)
    pixels[0, 0] ^= 1
    Image.fromarray(pixels).save(changed)
    with PoolReader(path) as pool, pytest.raises(ImageMismatchError, match=r"class1/004\.png.*has changed"):
        verify_with_teacher(pool, folder, ensemble.teachers, batches=12)


def test_the_first_wrong_row_is_the_one_that_was_changed(
    images: Path, ensemble: Ensemble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = built(images, tmp_path / "pool", ensemble)
    real = PoolReader.read

    def wrong_row(self: PoolReader, key: tuple[int, int], **options: object) -> LabelBatch:
        batch = real(self, key, **options)  # type: ignore[arg-type]
        if key != (1, 2):
            return batch
        labels = batch.labels.copy()
        labels[3, 1] += 0.05
        return replace(batch, labels=labels)

    monkeypatch.setattr(PoolReader, "read", wrong_row)
    with PoolReader(path) as pool:
        check = verify_with_teacher(pool, images, ensemble.teachers, batches=12)
        first = check.first_difference
        assert first is not None
        assert (first.key, first.slot, check.rows_above_tolerance) == (BatchKey(1, 2), 3, 1)
        assert first.image == pool.images.paths[int(real(pool, (1, 2)).images[3])]
        assert first.difference == pytest.approx(0.05, abs=0.01)
        assert verify_with_teacher(pool, images, ensemble.teachers, batches=12, tolerance=0.2).agrees


def test_questions_without_an_answer_are_refused(images: Path, ensemble: Ensemble, tmp_path: Path) -> None:
    path = built(images, tmp_path / "pool", ensemble)
    with PoolReader(path) as pool:
        four = load_teacher(NETWORK, weights="random", classes=4)
        with pytest.raises(InvalidArgumentError, match="number of classes"):
            verify_with_teacher(pool, images, four)
        with pytest.raises(InvalidArgumentError, match="nothing to compare"):
            verify_with_teacher(pool, images, ensemble.teachers, batches=0)


def test_a_real_teacher_on_photos(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    photos = photo_folder(tmp_path / "photos", side=224, count=12)
    teacher: LoadedTeacher = load_teacher(LITE0)
    assert (teacher.classes, teacher.input_size) == (1000, (224, 224))
    settings = replace(SMALL_BUILD, epochs=1, batch_size=6)
    build_pool(photos, tmp_path / "pool", settings, ensemble=Ensemble([teacher]))
    with PoolReader(tmp_path / "pool") as pool:
        check = verify_with_teacher(pool, photos, teacher)
        assert check.agrees
        assert (check.rows, check.rows_above_tolerance) == (12, 0)
        assert check.largest_difference < 0.01
        pool.header = replace(pool.header, augmentation=replace(pool.header.augmentation, resize="pil"))
        assert verify_with_teacher(pool, photos, teacher).rows_above_tolerance > 0
