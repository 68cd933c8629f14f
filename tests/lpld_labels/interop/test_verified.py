"""Folders labelled by real small teachers, as the programs do it: imported, their teachers confirm them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lpld_core.relabel.verify_teacher import TeacherCheck, verify_with_teacher
from lpld_core.teachers.teacher import LoadedTeacher
from lpld_labels import PoolReader, PoolWriter
from lpld_labels.codecs import codec_named
from lpld_labels.interop.importing import import_labels
from lpld_labels.interop.layouts import CIFAR
from lpld_labels.interop.settings import ImportOptions
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


def verified(pool: Path, images: Path, teachers: list[LoadedTeacher]) -> TeacherCheck:
    with PoolReader(pool) as reader:
        return verify_with_teacher(reader, images, teachers, batches=9)


@pytest.mark.parametrize("rule", RULES)
def test_gvbsm_is_confirmed_by_its_teachers(tmp_path: Path, teachers: list[LoadedTeacher], rule: str) -> None:
    images = write_images(tmp_path / "images")
    source = write_epochs(tmp_path / "labels", epochs=1, ids_in_batch=True, classes=100)
    label_again(source, images, teachers, combine=RULES[rule], side=SIDE)
    # CIFAR-100's branch averages: only the other rule has to be told.
    options = ImportOptions() if rule == "average" else ImportOptions(ensemble="norm-scaled")
    import_labels(source, tmp_path / "pool", images=images, options=options)
    found = verified(tmp_path / "pool", images, teachers)
    assert found.agrees
    assert (found.rows, found.wrong_teachers) == (20, ())
    assert not verified(tmp_path / "pool", images, teachers[:1]).agrees
    wrong = ImportOptions(ensemble="norm-scaled" if rule == "average" else "average")
    import_labels(source, tmp_path / "wrong", images=images, options=wrong)
    assert verified(tmp_path / "wrong", images, teachers).rows_above_tolerance > 0


def test_named_teachers_must_all_be_given(tmp_path: Path, teachers: list[LoadedTeacher]) -> None:
    images = write_images(tmp_path / "images")
    source = write_epochs(tmp_path / "labels", epochs=1, ids_in_batch=True, classes=100)
    label_again(source, images, teachers, side=SIDE)
    options = ImportOptions(teachers=("one", "two"))
    import_labels(source, tmp_path / "pool", images=images, options=options)
    assert verified(tmp_path / "pool", images, teachers).agrees
    assert "2 teachers, 1 were given" in verified(tmp_path / "pool", images, teachers[:1]).wrong_teachers[0]


@pytest.mark.parametrize("label_type", ["marginal_smoothing_k5", "smoothing", "hard"])
@pytest.mark.parametrize("half", [False, True])
def test_fkd_is_confirmed_by_its_teacher(
    tmp_path: Path, teachers: list[LoadedTeacher], label_type: str, half: bool
) -> None:
    images = write_images(tmp_path / "images")
    write_fkd_labels(tmp_path / "labels", images, teachers[0], label_type=label_type, side=SIDE, half=half)
    options = ImportOptions(classes=100, batch_size=8, mean=CIFAR.mean, std=CIFAR.std)
    report = import_labels(tmp_path / "labels", tmp_path / "pool", images=images, options=options)
    assert (report.format, report.rows) == ("fkd", 60)
    found = verified(tmp_path / "pool", images, teachers[:1])
    assert found.agrees
    assert found.top1_agreement * found.rows + found.near_ties == found.rows
    other = verified(tmp_path / "pool", images, teachers[1:])
    assert other.rows_above_tolerance > (0.3 if label_type == "hard" else 0.9) * other.rows


def test_fkd_knows_its_temperature(tmp_path: Path, teachers: list[LoadedTeacher]) -> None:
    images = write_images(tmp_path / "images")
    write_fkd_labels(
        tmp_path / "labels", images, teachers[0], label_type="marginal_smoothing_k5", side=SIDE, temperature=2
    )
    for temperature, agrees in ((2.0, True), (1.0, False)):
        pool = tmp_path / f"pool{temperature}"
        options = ImportOptions(classes=100, temperature=temperature, mean=CIFAR.mean, std=CIFAR.std)
        import_labels(tmp_path / "labels", pool, images=images, options=options)
        assert verified(pool, images, teachers[:1]).agrees is agrees


@pytest.mark.parametrize("codec", ["f16", "int8"])
def test_probabilities_of_all_classes(tmp_path: Path, teachers: list[LoadedTeacher], codec: str) -> None:
    """A pool of whole rows of probabilities, as anyone may write one."""
    images = write_images(tmp_path / "images")
    source = write_epochs(tmp_path / "labels", epochs=1, ids_in_batch=True, classes=100)
    label_again(source, images, teachers[:1], side=SIDE)
    import_labels(source, tmp_path / "pool", images=images)
    with PoolReader(tmp_path / "pool") as pool:
        header = replace(pool.header, label_kind="probabilities", ensemble=None)
        with PoolWriter(
            tmp_path / "soft", header=header, images=pool.images, codec=codec_named(codec)
        ) as writer:
            for batch in pool:
                soft = torch.from_numpy(batch.labels.astype(np.float32)).softmax(1).half().numpy()
                writer.append(replace(batch, labels=soft))
            writer.commit()
    # The logits were rounded to half precision before their softmax: allow for that.
    with PoolReader(tmp_path / "soft") as pool:
        found = verify_with_teacher(pool, images, teachers[0], batches=9, tolerance=5e-4)
        assert found.agrees
        assert found.rows == 20
        assert not verify_with_teacher(pool, images, teachers[1], batches=9, tolerance=5e-4).agrees
