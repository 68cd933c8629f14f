"""The five commands that hand tasks to an engine, each on a small input, with what must come out the same."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch

from lpld_core.images import RealFolder
from lpld_core.recover.run import recover_images
from lpld_core.recover.settings import RecoverSettings
from lpld_core.relabel.build import Build, run_build
from lpld_core.settings import BuildSettings, SqueezeSettings, TeacherChoice
from lpld_core.squeeze.squeeze import squeeze_folder
from lpld_core.squeeze.statistics import ClassStatistics
from lpld_core.teachers.teacher import Machine
from lpld_labels.exec.job import Executor
from lpld_labels.exec.local import ONE_PROCESS
from lpld_labels.interop.importing import import_labels
from lpld_labels.pool.reader import PoolReader
from lpld_labels.transforms.encode import encode_pool
from lpld_labels.transforms.settings import EncodeSettings
from tests.factories import make_batches, write_pool
from tests.lpld_core.image_folders import NETWORK, SIDE, write_images
from tests.lpld_core.networks import noisy_folder, tiny_teacher
from tests.lpld_labels.interop import label_folders

ONE_THREAD = Machine(threads=1)
SMALL_SHARDS = patch("lpld_labels.pool.plan.SHARD_BATCHES", 4)
"""Several shards, so that there are several tasks."""
BUILD = BuildSettings(
    epochs=20,
    batch_size=9,
    seed=3,
    threads=1,
    teachers=(TeacherChoice(name=NETWORK, weights="random", input_size=(SIDE, SIDE)),),
)


@dataclass(frozen=True, kw_only=True)
class Command:
    """make: writes the input. run: does the work; returns what must be the same whoever did it."""

    make: Callable[[Path], None]
    run: Callable[[Path, Path, Executor], str]


def _write_photos(source: Path) -> None:
    write_images(source / "images")


def _build(source: Path, out: Path, engine: Executor) -> str:
    build = Build.prepare(source / "images", out, BUILD)
    manifest = run_build(build, engine).manifest
    assert manifest is not None
    return manifest.content_digest


def _make_pool(source: Path) -> None:
    write_pool(source / "pool", make_batches(10, 6)).close()


def _encode(source: Path, out: Path, engine: Executor) -> str:
    with SMALL_SHARDS, PoolReader(source / "pool") as pool:
        result = encode_pool(pool, out, EncodeSettings(codec="klt", fidelity=0.9), executor=engine)
    return result.manifest.content_digest


def _make_labels(source: Path) -> None:
    label_folders.write_images(source / "images")
    label_folders.write_epochs(source / "labels", epochs=20, ids_file=True)


def _import(source: Path, out: Path, engine: Executor) -> str:
    with SMALL_SHARDS:
        manifest = import_labels(source / "labels", out, images=source / "images", executor=engine)
    return manifest.content_digest


def _make_classes(source: Path) -> None:
    noisy_folder(source / "images", classes=8, images=40)


def _squeeze(source: Path, out: Path, engine: Executor) -> str:
    """Return the digest of the whole file."""
    torch.set_num_threads(1)
    out.mkdir(exist_ok=True)
    # Small batches, so that there are several groups: one of 64 views is worth a task.
    folder, settings = RealFolder.open(source / "images"), SqueezeSettings(batch_size=4)
    teacher = tiny_teacher(classes=8)
    statistics = squeeze_folder(teacher, folder, settings, place=out, executor=engine, machine=ONE_THREAD)
    statistics.save(out / "statistics.safetensors")
    return hashlib.sha256((out / "statistics.safetensors").read_bytes()).hexdigest()


def _make_statistics(source: Path) -> None:
    _make_classes(source)
    _squeeze(source, source / "squeezed", ONE_PROCESS)


def _recover(source: Path, out: Path, engine: Executor) -> str:
    """Return one digest over all image files."""
    torch.set_num_threads(1)
    settings = RecoverSettings(
        method="lpld",
        ipc=2,
        size=(8, 8),
        iterations=15,
        learning_rate=0.05,
        alpha=0.1,
        roll=2,
        class_group=1,
        format="png",
    )
    statistics = ClassStatistics.load(source / "squeezed" / "statistics.safetensors")
    teacher = tiny_teacher(classes=8)
    recover_images(
        teacher, out, settings=settings, statistics=statistics, executor=engine, machine=ONE_THREAD
    )
    state = hashlib.sha256()
    for path in sorted(out.rglob("*.png")):
        if path.parent != out:
            state.update(f"{path.relative_to(out)}\n".encode() + path.read_bytes())
    assert not (out / ".unfinished").exists()
    return state.hexdigest()


COMMANDS = {
    "build": Command(make=_write_photos, run=_build),
    "encode": Command(make=_make_pool, run=_encode),
    "import": Command(make=_make_labels, run=_import),
    "squeeze": Command(make=_make_classes, run=_squeeze),
    "recover": Command(make=_make_statistics, run=_recover),
}
