"""Folders labelled by real small teachers, as the programs do it: imported, their teachers confirm them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lpld_core.relabel.verify_teacher import TeacherCheck, verify_with_teacher
from lpld_core.teachers.teacher import LoadedTeacher, load_teacher
from lpld_labels import PoolReader
from lpld_labels.interop.importing import import_labels
from lpld_labels.interop.layouts import CIFAR
from lpld_labels.interop.settings import ImportOptions
from tests.factories import write_pool
from tests.lpld_labels.interop.conftest import authors_reference
from tests.lpld_labels.interop.label_folders import write_epochs, write_images
from tests.lpld_labels.interop.restated import (
    averaged,
    label_again,
    norm_scaled,
    small_teacher,
    write_fkd_labels,
)

SIDE = 32
RULES = {"average": averaged, "norm-scaled": norm_scaled}


@pytest.fixture(scope="module")
def teachers() -> list[LoadedTeacher]:
    return [small_teacher(100, mean=CIFAR.mean, std=CIFAR.std, side=SIDE, seed=seed) for seed in (1, 2)]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"))


def verified(pool: Path, images: Path, teachers: list[LoadedTeacher], **options: Any) -> TeacherCheck:
    with PoolReader(pool) as reader:
        return verify_with_teacher(reader, images, teachers, **{"batches": 9, **options})


@pytest.mark.parametrize("rule", RULES)
def test_gvbsm_teachers_agree(tmp_path: Path, images: Path, teachers: list[LoadedTeacher], rule: str) -> None:
    source = write_epochs(tmp_path / "labels", epochs=1, ids_in_batch=True, classes=100)
    label_again(source, images, teachers, combine=RULES[rule], side=SIDE)
    # CIFAR-100's branch averages: only the other rule has to be given.
    named = ImportOptions(teachers=("one", "two"))
    options = named if rule == "average" else ImportOptions(ensemble="norm-scaled")
    import_labels(source, tmp_path / "pool", images=images, options=options)
    found = verified(tmp_path / "pool", images, teachers)
    assert found.agrees
    assert (found.rows, found.wrong_teachers) == (20, ())
    alone = verified(tmp_path / "pool", images, teachers[:1])
    assert not alone.agrees
    assert ("2 teachers, 1 were given" in "".join(alone.wrong_teachers)) == (rule == "average")
    wrong = ImportOptions(ensemble="norm-scaled" if rule == "average" else "average")
    import_labels(source, tmp_path / "wrong", images=images, options=wrong)
    assert verified(tmp_path / "wrong", images, teachers).rows_above_tolerance > 0


@pytest.mark.parametrize(
    ("label_type", "half", "temperature"),
    [
        ("marginal_smoothing_k5", False, 1),
        ("marginal_smoothing_k5", True, 1),
        ("marginal_smoothing_k5", False, 2),
        ("smoothing", True, 1),
        ("hard", False, 1),
    ],
)
def test_fkd_is_confirmed_by_its_teacher(
    tmp_path: Path,
    images: Path,
    teachers: list[LoadedTeacher],
    label_type: str,
    half: bool,
    temperature: float,
) -> None:
    how: dict[str, Any] = {"label_type": label_type, "half": half, "temperature": temperature}
    write_fkd_labels(tmp_path / "labels", images, teachers[0], side=SIDE, **how)
    options = ImportOptions(
        classes=100, batch_size=8, temperature=temperature, mean=CIFAR.mean, std=CIFAR.std
    )
    report = import_labels(tmp_path / "labels", tmp_path / "pool", images=images, options=options)
    assert (report.format, report.rows) == ("fkd", 60)
    found = verified(tmp_path / "pool", images, teachers[:1])
    assert found.agrees
    assert found.top1_agreement * found.rows + found.near_ties == found.rows
    other = verified(tmp_path / "pool", images, teachers[1:])
    assert other.rows_above_tolerance > (0.3 if label_type == "hard" else 0.9) * other.rows
    if temperature > 1:
        options = replace(options, temperature=1.0)
        import_labels(tmp_path / "labels", tmp_path / "wrong", images=images, options=options)
        assert not verified(tmp_path / "wrong", images, teachers[:1]).agrees


@pytest.mark.parametrize("codec", ["f16", "int8"])
def test_probabilities_agree(tmp_path: Path, images: Path, teachers: list[LoadedTeacher], codec: str) -> None:
    source = write_epochs(tmp_path / "labels", epochs=1, ids_in_batch=True, classes=100)
    label_again(source, images, teachers[:1], side=SIDE)
    import_labels(source, tmp_path / "pool", images=images)
    with PoolReader(tmp_path / "pool") as pool:
        header = replace(pool.header, label_kind="probabilities", ensemble=None)
        soft = [
            replace(batch, labels=torch.from_numpy(batch.labels.astype(np.float32)).softmax(1).half().numpy())
            for batch in pool
        ]
        write_pool(tmp_path / "soft", soft, codec=codec, header=header, images=pool.images).close()
    # The logits were rounded to half precision before their softmax: allow for that.
    found = verified(tmp_path / "soft", images, teachers[:1], tolerance=5e-4)
    assert (found.agrees, found.rows) == (True, 20)
    assert not verified(tmp_path / "soft", images, teachers[1:], tolerance=5e-4).agrees


SEEDS = {"lpld_in1k": 3, "lpqld_in1k_k50": 0, "sre2l_mixup": 4}
"""Seeds that sample one of the small batches, not of epoch 0 (which is the same in both eras)."""


@pytest.mark.usefixtures("shared_data")
@pytest.mark.parametrize("name", SEEDS)
def test_the_authors_teacher_confirms_their_labels(tmp_path: Path, name: str) -> None:
    """EfficientNet-Lite0 labelled the ImageNet-1K folders."""
    source = authors_reference(name)
    import_labels(source.labels, tmp_path / "right", images=source.images)
    teacher = load_teacher("tests.lpld_core.networks:lite0", input_size=(224, 224))
    found = verified(tmp_path / "right", source.images, [teacher], batches=1, seed=SEEDS[name])
    assert found.agrees
    assert found.largest_difference <= 0.0079, "a float16 step of the largest logits, which are 8 to 16"
    assert found.top1_agreement * found.rows + found.near_ties == found.rows
    if name == "sre2l_mixup":
        options = ImportOptions(torch_era="old")
        report = import_labels(source.labels, tmp_path / "pool", images=source.images, options=options)
        assert any("do not support these image ids" in line for line in report.odd)
        found = verified(tmp_path / "pool", source.images, [teacher], batches=1, seed=SEEDS[name])
        assert found.first_difference is not None
        assert found.first_difference.key == (1, 2)
        assert found.rows_above_tolerance == found.rows
