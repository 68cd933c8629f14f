"""The work directory of the accuracy benchmark: everything a student needs, made once and kept.

    teacher.safetensors, teacher.json     and second_teacher.*
    statistics.safetensors                class-wise, of the first teacher
    images/METHOD-ipcN-ITERATIONS/        recovered images
    pools/METHOD-ipcN-ITERATIONS-LABELS-EPOCHS/  all labels in f16; with -CODEC, in another codec
    cells/                                students of single cells, while in training

Names say what --ipc, --iterations and --epochs decide, so that one directory serves several scales; a
teacher of another scale is refused. Several processes may work here: whoever comes first makes a thing,
the others wait for it.
"""

from __future__ import annotations

import json
import shutil
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from filelock import FileLock

from benchmarks.accuracy_plan import Cell, Scale
from benchmarks.harness import SHARED_DATA
from lpld_core.class_statistics.statistics import ClassStatistics, collect_statistics
from lpld_core.images.real_images import RealFolder, centre_batches, shuffled_rows
from lpld_core.recover.run import recover_images, stitch_images
from lpld_core.recover.settings import ImageFiles, OptimisedMethod, RdedSettings, RecoverSettings
from lpld_core.relabel.build import LabelJob, build_pool
from lpld_core.teachers.ensemble import Ensemble
from lpld_core.teachers.teacher import LoadedTeacher, load_teacher
from lpld_core.training.evaluate import ValidationSet
from lpld_core.training.presets import LabelRecipe
from lpld_core.training.train_teacher import TEACHER_RECIPE, TeacherJob, train_teacher
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.pool.reader import PoolReader
from lpld_labels.replay.image_folder import scan_image_folder
from lpld_labels.rewriting.codec_request import CodecRequest
from lpld_labels.rewriting.encode import encode_pool

FILES = ImageFiles(format="png")
"""At 32 px JPEG would change what was recovered and save nothing."""


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """Makes what cells need, in the directory `root`, from the image folders `train` and `validation`."""

    root: Path
    scale: Scale
    train: Path
    validation: Path

    @staticmethod
    def open(root: Path, scale: Scale, data: Path | None = None) -> Workshop:
        """Prepare the data set.

        data: a directory with train/ and val/; None unpacks or writes the one the scale names.
        """
        root.mkdir(parents=True, exist_ok=True)
        base = data or root / "data"
        with FileLock(root / "data.lock"):
            if not base.exists():
                _write_data(scale.dataset, base)
        train = "teacher" if (base / "teacher").is_dir() else "train"
        validation = "validation" if (base / "validation").is_dir() else "val"
        return Workshop(root=root, scale=scale, train=base / train, validation=base / validation)

    def teacher(self, *, second: bool = False) -> LoadedTeacher:
        """Return a teacher, trained on first use."""
        name = "second_teacher" if second else "teacher"
        network = self.scale.second_network if second else self.scale.network
        weights, about = self.root / f"{name}.safetensors", self.root / f"{name}.json"
        settings = {
            "network": network,
            "epochs": self.scale.teacher_epochs,
            "size": self.scale.size,
            "seed": int(second),
        }
        with self._made_once(about) as missing:
            if missing:
                start = time.perf_counter()
                top1 = self._train_teacher(weights, settings)
                facts = {**settings, "top1": top1, "seconds": round(time.perf_counter() - start, 1)}
                about.write_text(json.dumps(facts, indent=2) + "\n")
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

    def teacher_facts(self) -> dict[str, Any]:
        """Return how the first teacher was trained and how good it is."""
        facts: dict[str, Any] = json.loads((self.root / "teacher.json").read_text())
        return facts

    def _train_teacher(self, weights: Path, settings: dict[str, Any]) -> float:
        side = (self.scale.size, self.scale.size)
        job = TeacherJob(
            out=weights,
            network=settings["network"],
            size=side,
            recipe=replace(TEACHER_RECIPE, epochs=settings["epochs"]),
            seed=settings["seed"],
        )
        found = train_teacher(self.train, job, validation=ValidationSet(self.validation, size=side))
        return 0.0 if found is None else found.top1

    def statistics(self) -> ClassStatistics:
        """Return the class statistics of the first teacher."""
        path = self.root / "statistics.safetensors"
        teacher = self.teacher()
        with self._made_once(path) as missing:
            if missing:
                folder = RealFolder.open(self.train)
                batches = centre_batches(
                    folder,
                    shuffled_rows(folder, 0),
                    size=teacher.input_size,
                    mean=teacher.mean,
                    std=teacher.std,
                    batch_size=100,
                    threads=1,
                )
                collect_statistics(teacher, batches, class_names=folder.class_names).save(path)
        return ClassStatistics.load(path)

    def images(self, method: str, ipc: int | None = None) -> Path:
        """Return the folder of recovered images."""
        ipc = ipc or self.scale.ipc
        folder = self.root / "images" / f"{method}-ipc{ipc}-{self.scale.iterations}"
        teacher, size = self.teacher(), (self.scale.size, self.scale.size)
        with self._made_once(folder / "contact_sheet.png") as missing:
            if missing and method == "rded":
                stitch_images(
                    teacher,
                    folder,
                    settings=RdedSettings(ipc=ipc, size=size),
                    real=RealFolder.open(self.train),
                )
            elif missing:
                settings = RecoverSettings(
                    method=cast("OptimisedMethod", "lpld" if method == "lpld-global" else method),
                    ipc=ipc,
                    iterations=self.scale.iterations,
                    learning_rate=self.scale.learning_rate,
                    alpha=self.scale.alpha,
                    roll=self.scale.roll,
                    size=size,
                    statistics_kind="class" if method == "lpld" else "global",
                    files=FILES,
                )
                # Only the class names are taken where statistics are global.
                recover_images(teacher, folder, settings=settings, statistics=self.statistics())
        return folder

    def labels(self, cell: Cell) -> Path:
        """Return the pool of all labels that a cell's pool is pruned from."""
        images = self.images(cell.method, cell.ipc)
        pool = self.root / "pools" / f"{images.name}-{cell.labels}-{self.scale.epochs}"
        with self._made_once(pool / "pool.json") as missing:
            if missing:
                size = (self.scale.size, self.scale.size)
                teachers = [self.teacher()]
                teachers += [self.teacher(second=True)] if cell.labels == "ensemble" else []
                job = LabelJob(
                    images=images,
                    pool=pool,
                    augmentation=LabelRecipe(mix="cutmix").augmentation(size),
                    epochs=self.scale.epochs,
                    batch_size=self.scale.batch_size,
                )
                build_pool(job, Ensemble(teachers), scan_image_folder(images))
        return pool

    def encoded(self, cell: Cell) -> Path:
        """Return the pool of all labels in the cell's codec."""
        plain = self.labels(cell)
        if cell.codec == "f16":
            return plain
        pool = plain.with_name(f"{plain.name}-{cell.codec.replace(':', '')}")
        with self._made_once(pool / "pool.json") as missing:
            if missing:
                with PoolReader(plain) as source:
                    encode_pool(source, pool, CodecRequest(name=cell.codec))
        return pool

    @contextmanager
    def _made_once(self, path: Path) -> Iterator[bool]:
        """Hold the lock of a thing; the value says whether it is still to be made."""
        locks = self.root / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        with FileLock(locks / f"{'-'.join(path.relative_to(self.root).parts)}.lock"):
            yield not path.exists()


def _write_data(dataset: str, folder: Path) -> None:
    """Write train and validation folders, the whole or nothing."""
    unfinished = folder.with_name(f".{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    if dataset == "digits":
        from lpld_core.images.digits import write_digits

        write_digits(unfinished)
    else:
        with tarfile.open(SHARED_DATA / f"{dataset}.tar.gz") as archive:
            archive.extractall(unfinished, filter="data")
    unfinished.rename(folder)
