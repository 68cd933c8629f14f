"""Phases of soft and hard labels: schedules, resuming in each phase, and what students gain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.common.digits import CLASSES, write_digits
from lpld_core.relabel.build import build_pool
from lpld_core.settings import BuildSettings, ViewSettings
from lpld_core.teachers.ensemble import Ensemble
from lpld_core.teachers.teacher import load_teacher
from lpld_core.train.evaluate import ValidationSet
from lpld_core.train.settings import TrainSettings
from lpld_core.train.student import train_student
from lpld_core.train.train_teacher import TeacherJob, train_teacher
from lpld_labels.pool.reader import PoolReader
from tests.lpld_core.image_folders import NETWORK

SEEDS = (0, 1, 2)


def test_phases_are_not_worse_than_soft_labels_alone_at_40x(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    folders, size = write_digits(tmp_path / "digits", validation=500), (16, 16)
    views = ViewSettings(flip=False, crop_scale=(0.3, 1.0))
    recipe = TrainSettings(epochs=12, learning_rate=0.01)
    job = TeacherJob(out=tmp_path / "teacher", network=NETWORK, size=size, views=views, recipe=recipe)
    train_teacher(folders.teacher, job)
    teacher = load_teacher(NETWORK, weights=job.out, classes=CLASSES)
    build = BuildSettings(**vars(views) | {"mix": "cutmix", "batch_size": 20}, epochs=40, ratio=40)
    build_pool(folders.distilled, tmp_path / "pool", build, ensemble=Ensemble([teacher]))
    soft = TrainSettings(student=NETWORK, epochs=40, learning_rate=0.01)
    phased = replace(soft, phases="soft:10,hard:20,soft:10")
    validation = ValidationSet(folders.validation, size=size)
    top1: dict[str | None, list[float]] = {}
    with PoolReader(tmp_path / "pool") as pool:
        assert len(pool) == 5  # of 200
        for settings in (soft, phased):
            for seed in SEEDS:
                out = tmp_path / f"{settings.phases}-{seed}".replace(":", "")
                result = train_student(
                    pool, folders.distilled, out, replace(settings, seed=seed), validation=validation
                )
                assert result.accuracy is not None
                top1.setdefault(settings.phases, []).append(result.accuracy.top1)
    print(top1)
