"""The work directory of the accuracy benchmark: everything a student needs, made once and kept.

    teacher-smoothed.safetensors, .json    and teacher-plain.*
    statistics-TEACHER.safetensors         class-wise
    images/METHOD-ipcN-ITERATIONS-TEACHER/ images: recovered, stitched or, of method real, copied;
                                           beside recovered ones, in .seconds, their processor time
    pools/IMAGES-LABELS-EPOCHS-MIX/        all labels in f16
    cells/                                 students of single cells, while in training

Names contain the settings, so that one directory serves several scales; a teacher of another scale
is refused. Several processes may share the directory: one makes each part, the others wait for it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from filelock import FileLock

from benchmarks.accuracy.cells import SHIPPED, Cell, Scale
from benchmarks.accuracy.kept import SECONDS, take
from benchmarks.accuracy.shipped import shipped
from benchmarks.accuracy.stopwatch import Stopwatch
from benchmarks.common.harness import write_whole
from benchmarks.common.image_data import unpack_data
from lpld_core.images import RealFolder, shuffled_rows
from lpld_core.recover.run import recover_images
from lpld_core.recover.settings import (
    OptimisedMethod,
    RdedSettings,
    RecoverSettings,
    fitting_group,
)
from lpld_core.relabel.build import build_pool
from lpld_core.settings import BuildSettings
from lpld_core.squeeze.squeeze import squeeze_folder
from lpld_core.squeeze.statistics import ClassStatistics
from lpld_core.teachers.ensemble import Ensemble
from lpld_core.teachers.teacher import LoadedTeacher, load_teacher
from lpld_core.train.evaluate import ValidationSet
from lpld_core.train.train_teacher import TEACHER_RECIPE, TeacherJob, train_teacher
from lpld_labels.errors import InvalidArgumentError


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """Makes what cells need, in the directory `root`, from the image folders `train` and `validation`."""

    root: Path
    scale: Scale
    train: Path
    validation: Path

    @staticmethod
    def open(root: Path, scale: Scale, data: Path | None = None) -> Workshop:
        """Prepare the data set. data: a directory with train/ and val/ instead of the scale's own."""
        root.mkdir(parents=True, exist_ok=True)
        base = data or root / "data"
        with FileLock(root / "data.lock"):
            if not base.exists():
                _write_data(scale.dataset, base)
            take(root, scale)
        train = "teacher" if (base / "teacher").is_dir() else "train"
        validation = "validation" if (base / "validation").is_dir() else "val"
        return Workshop(root=root, scale=scale, train=base / train, validation=base / validation)

    def teacher(self, kind: str = "smoothed") -> LoadedTeacher:
        """Return a teacher, trained on first use: "smoothed" (with label smoothing) or "plain"."""
        network = self.scale.network
        weights, about = (self.root / f"teacher-{kind}{end}" for end in (".safetensors", ".json"))
        settings = {
            "network": network,
            "epochs": self.scale.teacher_epochs,
            "size": self.scale.size,
            "seed": 0,
            "label_smoothing": 0.0 if kind == "plain" else TEACHER_RECIPE.label_smoothing,
            "amp": self.scale.amp,
        }
        with self._made_once(about) as missing:
            if missing:
                watch = Stopwatch(about.with_suffix(".seconds"))
                top1 = self._train_teacher(weights, settings, watch)
                write_whole(about, {**settings, "top1": top1, "seconds": round(watch.stop(), 1)})
        found = json.loads(about.read_text())
        for field, value in settings.items():
            if found[field] != value:
                raise InvalidArgumentError(
                    f"the teacher here was trained with another '{field}'",
                    where=about,
                    expected=value,
                    got=found[field],
                    hint="choose another --work directory",
                )
        return load_teacher(network, weights=weights)

    def _train_teacher(self, weights: Path, settings: dict[str, Any], watch: Stopwatch) -> float:
        side = (self.scale.size, self.scale.size)
        job = TeacherJob(
            out=weights,
            network=settings["network"],
            size=side,
            recipe=replace(
                TEACHER_RECIPE,
                epochs=settings["epochs"],
                label_smoothing=settings["label_smoothing"],
                seed=settings["seed"],
                amp="bf16" if settings["amp"] else "off",
            ),
        )
        found = train_teacher(
            self.train,
            job,
            validation=ValidationSet(self.validation, size=side),
            progress=watch,
        )
        return 0.0 if found is None else found.top1

    def statistics(self, kind: str = "smoothed") -> ClassStatistics:
        """Return the class statistics of a teacher."""
        path = self.root / f"statistics-{kind}.safetensors"
        teacher = self.teacher(kind)
        with self._made_once(path) as missing:
            if missing:
                folder = RealFolder.open(self.train)
                squeeze_folder(teacher, folder).save(path)
        return ClassStatistics.load(path)

    def images(self, cell: Cell) -> Path:
        """Return the folder of a cell's images."""
        ipc, iterations = cell.ipc or self.scale.ipc, cell.iterations or self.scale.iterations
        if cell.method == "real":
            return self._real_images(ipc)
        folder = self.root / "images" / f"{cell.method}-ipc{ipc}-{iterations}-{cell.teacher}"
        teacher = self.teacher(cell.teacher)
        with self._made_once(folder / "contact_sheet.png") as missing:
            if missing and cell.method == "rded":
                settings = RdedSettings(ipc=ipc, size=(self.scale.size, self.scale.size), format="png")
                recover_images(teacher, folder, settings=settings, real=RealFolder.open(self.train))
            elif missing:
                statistics = self.statistics(cell.teacher)
                watch = Stopwatch(folder.with_suffix(SECONDS))
                # With global statistics, only the class names are used.
                recover_images(
                    teacher,
                    folder,
                    settings=self.recovery(cell.method, ipc=ipc, iterations=iterations),
                    statistics=statistics,
                    progress=watch,
                )
                watch.stop()
        return folder

    def recovery(self, method: str, *, ipc: int, iterations: int) -> RecoverSettings:
        """Return the settings of recovery for a method."""
        settings = RecoverSettings(
            method=cast("OptimisedMethod", "lpld" if method == "lpld-global" else method),
            ipc=ipc,
            iterations=iterations,
            learning_rate=self.scale.learning_rate,
            alpha=self.scale.alpha,
            roll=self.scale.roll,
            roll_direction="forward" if method == "cda" else "both",
            size=(self.scale.size, self.scale.size),
            statistics_kind="class" if method == "lpld" else "global",
            format="png",
        )
        # About a hundred images in a pass, so that a killed run loses only minutes.
        unit = ipc if settings.method == "lpld" else settings.batch_size
        return replace(settings, class_group=fitting_group(unit))

    def _real_images(self, ipc: int) -> Path:
        """Return a folder of random real images of every class."""
        folder = self.root / "images" / f"real-ipc{ipc}"
        with self._made_once(folder) as missing:
            if missing:
                real = RealFolder.open(self.train)
                unfinished = folder.with_name(f".{folder.name}")
                shutil.rmtree(unfinished, ignore_errors=True)
                taken = np.zeros(real.classes, int)
                for row in shuffled_rows(real, 0).tolist():
                    label = real.labels[row]
                    if taken[label] < ipc:
                        taken[label] += 1
                        target = unfinished / real.paths[row]
                        target.parent.mkdir(parents=True, exist_ok=True)
                        shutil.copyfile(real.root / real.paths[row], target)
                unfinished.rename(folder)
        return folder

    def labels(self, cell: Cell) -> Path:
        """Return the pool of all labels in f16 of a cell's images, by the teacher or by a shipped one."""
        images = self.images(cell)
        epochs, mix = cell.epochs or self.scale.epochs, cell.mix or self.scale.mix
        kind = f"-{cell.teacher}" if cell.method == "real" else ""
        labels = cell.codec if cell.codec in SHIPPED else cell.labels
        pool = self.root / "pools" / f"{images.name}{kind}-{labels}-{epochs}-{mix}"
        with self._made_once(pool / "pool.json") as missing:
            if missing:
                settings = BuildSettings(mix=mix, epochs=epochs, batch_size=self.scale.batch_size)
                teacher = self.teacher(cell.teacher)
                if cell.codec in SHIPPED:
                    teacher, _ = shipped(teacher, cell.codec)
                build_pool(images, pool, settings, ensemble=Ensemble([teacher]))
        return pool

    @contextmanager
    def _made_once(self, path: Path) -> Iterator[bool]:
        """Lock a part of the directory; yield whether it is missing."""
        locks = self.root / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        with FileLock(locks / f"{'-'.join(path.relative_to(self.root).parts)}.lock"):
            yield not path.exists()


def image_bytes(folder: Path) -> int:
    """Return the bytes of the images of a folder, without the files beside its class directories."""
    return sum(path.stat().st_size for path in folder.glob("*/**/*") if path.is_file())


def _write_data(dataset: str, folder: Path) -> None:
    """Write train and validation folders, completely or not at all."""
    unfinished = folder.with_name(f".{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    if dataset == "digits":
        from benchmarks.common.digits import write_digits

        write_digits(unfinished)
    else:
        unpack_data(dataset, unfinished)
    unfinished.rename(folder)
