"""Labelling speed: images per second of `build`, as a share of the bare teacher's.

    python -m benchmarks.speed.labelling --json benchmarks/results/relabel_speed.json

The baseline is the teacher's forward pass alone on batches that are ready: normalised, channels-last,
in memory. Ours is a whole build: decode, draw, apply, normalise, label, encode, write, publish. Both
use the same number of threads and take turns; the share is taken round by round. CPU time is
reported too, because it does not depend on what else the machine is doing.

A second part labels for many epochs and watches the memory in use.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common.harness import Timing, parsed, summarise, write_json
from benchmarks.common.photos import add_images_option, photo_folder
from benchmarks.speed.augmenting import PHOTOS, measure_apply_speed
from lpld_core.relabel.build import build_pool
from lpld_core.relabel.verify_teacher import verify_with_teacher
from lpld_core.settings import BuildSettings, TeacherChoice
from lpld_core.teachers.ensemble import Ensemble, load_ensemble
from lpld_core.train.settings import preset_named
from lpld_labels.format.images import ImageTable
from lpld_labels.pool.reader import PoolReader
from lpld_labels.render import ImageStore, apply_views, draw_views, normalise
from lpld_labels.render.images import FolderImages, scan_image_folder

MEMORY_TEACHER = "small-resnet10:width=8,stem_stride=2"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How much to measure. batch_size and epochs are those of one build."""

    teacher: str = "resnet18"
    size: int = 224
    batch_size: int = 32
    epochs: int = 4
    rounds: int = 7
    memory_epochs: int = 300
    apply_runs: int = 25


QUICK = Settings(
    teacher=MEMORY_TEACHER, size=64, batch_size=16, epochs=1, rounds=2, memory_epochs=8, apply_runs=2
)


@dataclass(frozen=True, kw_only=True)
class Labelling:
    """Seconds of wall clock and CPU for one build and for the teacher alone, round by round."""

    images: int
    teacher_wall: Timing
    build_wall: Timing
    share_wall: Timing
    share_cpu: Timing

    def as_json(self) -> dict[str, Any]:
        """Return the numbers for a results file."""
        return {
            "images_per_build": self.images,
            "teacher_images_per_second": round(self.images / self.teacher_wall.median, 2),
            "build_images_per_second": round(self.images / self.build_wall.median, 2),
            "share_of_teacher": _share(self.share_wall),
            "share_of_teacher_by_cpu_time": _share(self.share_cpu),
        }


def _share(share: Timing) -> dict[str, float]:
    return {
        "median": round(share.median, 3),
        "quartile_low": round(share.low, 3),
        "quartile_high": round(share.high, 3),
        "rounds": share.runs,
    }


def measure_labelling(folder: Path, settings: Settings) -> Labelling:
    """Let the bare teacher and whole builds take turns on the same batches."""
    table = scan_image_folder(folder)
    ensemble = _ensemble(settings.teacher, settings.size)
    ready = _ready_batches(folder, table, ensemble, settings)
    model = ensemble.teachers[0].model

    @torch.inference_mode()
    def teacher() -> None:
        for batch in ready:
            model(batch)

    with tempfile.TemporaryDirectory() as directory:
        numbers = iter(range(10**6))

        def build() -> None:
            pool = Path(directory) / f"pool{next(numbers)}"
            build_pool(folder, pool, _build_settings(settings), ensemble=ensemble, table=table)

        teacher()
        build()
        _check(Path(directory) / "pool0", folder, ensemble)
        rounds = [(_timed(teacher), _timed(build)) for _ in range(settings.rounds)]
    return Labelling(
        images=sum(len(batch) for batch in ready),
        teacher_wall=summarise([bare.wall for bare, _ in rounds]),
        build_wall=summarise([whole.wall for _, whole in rounds]),
        share_wall=summarise([bare.wall / whole.wall for bare, whole in rounds]),
        share_cpu=summarise([bare.cpu / whole.cpu for bare, whole in rounds]),
    )


@dataclass(frozen=True, kw_only=True)
class _Cost:
    """Seconds a call took by the clock and on all CPUs."""

    wall: float
    cpu: float


def _timed(call: Callable[[], None]) -> _Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return _Cost(wall=time.perf_counter() - wall, cpu=time.process_time() - cpu)


def _ensemble(name: str, size: int) -> Ensemble:
    choice = TeacherChoice(name=name, weights="random", input_size=(size, size))
    return load_ensemble([choice], classes=1000)


def _build_settings(settings: Settings) -> BuildSettings:
    return replace(preset_named("imagenet1k").label, epochs=settings.epochs, batch_size=settings.batch_size)


def _ready_batches(
    folder: Path, table: ImageTable, ensemble: Ensemble, settings: Settings
) -> list[torch.Tensor]:
    """Return every batch of a build as the teacher takes it: float32 [B, 3, H, W], normalised."""
    store = ImageStore(FolderImages(folder, table))
    asked = _build_settings(settings)
    augmentation = asked.augmentation(ensemble.input_size)
    teacher = ensemble.teachers[0]
    batches = []
    for epoch in range(asked.epochs):
        for batch in range(-(-len(table) // asked.batch_size)):
            views = draw_views(
                augmentation, table, seed=0, epoch=epoch, batch=batch, batch_size=asked.batch_size
            )
            pixels = apply_views(views, store, augmentation)
            batches.append(normalise(pixels, teacher.mean, teacher.std))
    return batches


def _check(pool: Path, folder: Path, ensemble: Ensemble) -> None:
    """Refuse to time builds whose labels are not the teacher's."""
    with PoolReader(pool) as reader:
        found = verify_with_teacher(reader, folder, ensemble.teachers, batches=2)
    if not found.agrees:
        raise RuntimeError(f"the build's labels are not the teacher's: {found}")


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Resident memory in MB at the end of each epoch of one long build."""

    megabytes: list[float]

    @property
    def growth(self) -> float:
        """MB by which the last quarter of the epochs is above the second, by their medians."""
        quarter = max(1, len(self.megabytes) // 4)
        second, last = self.megabytes[quarter : 2 * quarter], self.megabytes[-quarter:]
        return summarise(last).median - summarise(second).median

    def as_json(self) -> dict[str, Any]:
        """Return some of the curve and its growth."""
        step = max(1, len(self.megabytes) // 12)
        return {
            "epochs": len(self.megabytes),
            "growth_mb": round(self.growth, 2),
            "megabytes": [round(value, 1) for value in self.megabytes[::step]],
        }


def measure_memory(folder: Path, settings: Settings) -> MemoryUse:
    """Label for many epochs with a cheap teacher of 1000 classes and watch this process."""
    table = scan_image_folder(folder)
    process = psutil.Process()
    per_epoch = -(-len(table) // settings.batch_size)
    use: list[float] = []

    def watch(done: int, total: int) -> None:
        del total
        if done % per_epoch == 0:
            use.append(process.memory_info().rss / 1e6)

    small = Settings(teacher=MEMORY_TEACHER, size=64, batch_size=settings.batch_size)
    ensemble = _ensemble(small.teacher, small.size)
    with tempfile.TemporaryDirectory() as directory:
        long = replace(_build_settings(small), epochs=settings.memory_epochs)
        build_pool(folder, Path(directory) / "pool", long, ensemble=ensemble, table=table, progress=watch)
    return MemoryUse(megabytes=use)


def main() -> None:
    """Measure, show and write."""
    parser = argparse.ArgumentParser(description="Labelling speed as a share of the bare teacher's.")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument(
        "--quick", action="store_true", help="a tiny teacher and few rounds; figures are rough"
    )
    parser.add_argument("--threads", type=int, help="torch threads [default: all cores]")
    parser.add_argument("--rounds", type=int, help="turns each side takes")
    add_images_option(parser)
    arguments = parsed(parser)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    settings = QUICK if arguments.quick else Settings()
    if arguments.rounds:
        settings = replace(settings, rounds=arguments.rounds)
    with tempfile.TemporaryDirectory() as name:
        folder = photo_folder(Path(name), side=224, count=PHOTOS, images=arguments.images)
        labelling = measure_labelling(folder, settings)
        memory = measure_memory(folder, settings)
        applied = measure_apply_speed(folder, size=224, runs=settings.apply_runs)
    _show(settings, labelling, memory, applied.speed_up)
    if arguments.json:
        results = {
            "teacher": settings.teacher,
            "size": settings.size,
            "threads": torch.get_num_threads(),
            "labelling": labelling.as_json(),
            "memory": memory.as_json(),
            "apply": applied.as_json(),
        }
        given = [word for word in sys.argv[1:] if word not in {"--json", str(arguments.json)}]
        command = " ".join(
            ["python -m benchmarks.speed.labelling", *given, "--json benchmarks/results/relabel_speed.json"]
        )
        write_json(arguments.json, benchmark="relabel_speed", command=command, results=results)


def _show(settings: Settings, labelling: Labelling, memory: MemoryUse, speed_up: float) -> None:
    table = Table("measured", "median", "quartiles")
    for name, share in (("wall clock", labelling.share_wall), ("CPU time", labelling.share_cpu)):
        table.add_row(
            f"build as a share of the bare {settings.teacher}, {name}",
            f"{share.median:.3f}",
            f"{share.low:.3f} to {share.high:.3f}",
        )
    table.add_row("labelled images/s", f"{labelling.images / labelling.build_wall.median:.1f}", "")
    table.add_row(f"memory growth over {len(memory.megabytes)} epochs, MB", f"{memory.growth:+.1f}", "")
    table.add_row("apply, times PIL per image and thread", f"{speed_up:.1f}", "")
    Console().print(table)


if __name__ == "__main__":
    main()
