import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks.common.photos import photo_folder
from lpld_core.relabel.build import build_pool
from lpld_core.relabel.verify_teacher import TeacherCheck, verify_with_teacher
from lpld_core.settings import TeacherChoice
from lpld_core.teachers.ensemble import Ensemble, load_ensemble
from lpld_core.teachers.teacher import LoadedTeacher, load_teacher
from lpld_labels.errors import ImageMismatchError, InvalidArgumentError
from lpld_labels.format.records import BatchKey, LabelBatch
from lpld_labels.pool.reader import PoolReader
from tests.lpld_core.image_folders import NETWORK, SMALL_BUILD

Verify = Callable[..., TeacherCheck]


@pytest.fixture
def verify(images: Path, ensemble: Ensemble, pool_path: Path) -> Verify:
    def verified(
        teachers: Any = ensemble.teachers, pool: Path = pool_path, images: Path = images, **options: Any
    ) -> TeacherCheck:
        with PoolReader(pool) as reader:
            return verify_with_teacher(reader, images, teachers, **{"batches": 100, **options})

    return verified


@pytest.mark.parametrize(
    ("codec", "mix"),
    [("f16", "none"), ("f16", "cutmix"), ("f16", "mixup"), ("f32", "mixup"), ("int8", "none")],
)
def test_what_was_built_agrees(
    verify: Verify, images: Path, ensemble: Ensemble, tmp_path: Path, codec: str, mix: Any
) -> None:
    settings = replace(SMALL_BUILD, epochs=2, codec=codec, mix=mix, cutout_fraction=0.3)
    build_pool(images, tmp_path / "pool", settings, ensemble=ensemble)
    check = verify(pool=tmp_path / "pool")
    assert check.agrees
    assert (check.batches, check.rows, check.rows_above_tolerance) == (12, 54, 0)
    assert check.top1_agreement + check.near_ties / check.rows >= 1
    assert check.first_difference is None


def test_an_ensemble_agrees(verify: Verify, choice: TeacherChoice, images: Path, tmp_path: Path) -> None:
    pair = load_ensemble([choice, replace(choice, name="small-resnet10:width=12")], classes=3)
    build_pool(images, tmp_path / "pool", replace(SMALL_BUILD, epochs=1), ensemble=pair)
    assert verify(pair.teachers, tmp_path / "pool").agrees
    assert len(verify(pair.teachers[::-1], tmp_path / "pool").wrong_teachers) == 2
    alone = verify(pair.teachers[0], tmp_path / "pool")
    assert alone.wrong_teachers == ("the pool has 2 teachers, 1 were given",)
    assert alone.rows_above_tolerance > 0


@pytest.mark.parametrize(
    ("teacher", "classes", "options", "message"),
    [
        (None, 3, {"tolerance": float("nan")}, "tolerance is wrong"),
        (None, 3, {"tolerance": float("inf")}, "tolerance is wrong"),
        (None, 3, {"tolerance": -1.0}, "tolerance is wrong"),
        (NETWORK, 4, {}, "number of classes"),
        (None, 3, {"batches": 0}, "no batches to compare"),
    ],
)
def test_questions_without_an_answer_are_refused(
    verify: Verify, teacher: str | None, classes: int, options: dict[str, Any], message: str
) -> None:
    given: dict[str, Any] = {}
    if teacher is not None:
        given["teachers"] = load_teacher(teacher, weights="random", classes=classes)
    with pytest.raises(InvalidArgumentError, match=message):
        verify(**given, **options)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [("small-resnet10:width=9", {}, "small-resnet10:width=9"), (NETWORK, {"mean": (0.5,) * 3}, "mean")],
)
def test_a_wrong_teacher_or_normalisation_is_named(
    verify: Verify, images: Path, name: str, options: dict[str, Any], said: str
) -> None:
    check = verify(load_teacher(name, weights="random", classes=3, **options))
    assert not check.agrees
    assert check.rows_above_tolerance > 0
    assert said in check.wrong_teachers[0]
    assert check.first_difference is not None
    assert check.first_difference.difference > 0
    assert (images / check.first_difference.image).is_file()


def test_another_resize_code_is_caught(
    verify: Verify, images: Path, ensemble: Ensemble, tmp_path: Path
) -> None:
    build_pool(images, tmp_path / "pool", replace(SMALL_BUILD, epochs=2, resize="pil"), ensemble=ensemble)
    manifest = json.loads((tmp_path / "pool/pool.json").read_text())
    manifest["augmentation"]["resize"] = "torch"
    (tmp_path / "pool/pool.json").write_text(json.dumps(manifest))
    check = verify(pool=tmp_path / "pool")
    assert not check.agrees
    assert not check.wrong_teachers
    assert check.first_difference is not None


def test_a_changed_image_is_named(verify: Verify, images: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(images, tmp_path / "images")
    changed = folder / "class1/004.png"
    with Image.open(changed) as image:
        pixels = np.array(image)
    pixels[0, 0] ^= 1
    Image.fromarray(pixels).save(changed)
    with pytest.raises(ImageMismatchError, match=r"class1/004\.png.*has changed"):
        verify(images=folder)


def test_the_first_wrong_row_is_the_one_that_was_changed(
    verify: Verify, pool_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = PoolReader.read

    def wrong_row(self: PoolReader, key: tuple[int, int], **options: Any) -> LabelBatch:
        batch = real(self, key, **options)
        if key != (1, 2):
            return batch
        labels = batch.labels.copy()
        labels[3, 1] += 0.05
        return replace(batch, labels=labels)

    monkeypatch.setattr(PoolReader, "read", wrong_row)
    check = verify()
    first = check.first_difference
    assert first is not None
    assert (first.key, first.slot, check.rows_above_tolerance) == (BatchKey(1, 2), 3, 1)
    with PoolReader(pool_path) as pool:
        assert first.image == pool.images.paths[int(real(pool, (1, 2)).images[3])]
    assert first.difference == pytest.approx(0.05, abs=0.01)
    assert verify(tolerance=0.2).agrees


def test_a_real_teacher_on_photos(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    photos = photo_folder(tmp_path / "photos", side=224, count=6)
    teacher: LoadedTeacher = load_teacher("tests.lpld_core.networks:lite0")
    assert (teacher.classes, teacher.input_size) == (1000, (224, 224))
    settings = replace(SMALL_BUILD, epochs=1, batch_size=6)
    build_pool(photos, tmp_path / "pool", settings, ensemble=Ensemble([teacher]))
    with PoolReader(tmp_path / "pool") as pool:
        check = verify_with_teacher(pool, photos, teacher)
        assert check.agrees
        assert (check.rows, check.rows_above_tolerance) == (6, 0)
        assert check.largest_difference < 0.01
        pool.header = replace(pool.header, augmentation=replace(pool.header.augmentation, resize="pil"))
        assert verify_with_teacher(pool, photos, teacher).rows_above_tolerance > 0
