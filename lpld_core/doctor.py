"""Examine a machine: versions, devices, differences from a CPU, and what limits training."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from itertools import islice, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image

from lpld_core.networks.models import network_source
from lpld_core.networks.weights import first_line
from lpld_core.relabel.build import build_pool
from lpld_core.relabel.verify_teacher import SUM_NOISE, verify_with_teacher
from lpld_core.settings import RANDOM_WEIGHTS, BuildSettings, TeacherChoice
from lpld_core.teachers.ensemble import load_ensemble
from lpld_core.train.settings import TrainSettings
from lpld_core.train.student import StudentLoss, resolved
from lpld_core.train.trainer import Trainer, TrainingBatch
from lpld_labels.errors import ComputationError, LabelPoolError
from lpld_labels.exec.job import Progress
from lpld_labels.io.addresses import Location
from lpld_labels.loader import PoolBatch, pool_loader
from lpld_labels.pool.reader import PoolReader
from lpld_labels.render.device import images_fit
from lpld_labels.results import Result

SECONDS = 5.0  # of each measurement
PACKAGES = ("lpld-labels", "torch", "torchvision", "pyarrow", "zstandard", "numpy", "pillow")
SMALL = TeacherChoice(name="small-resnet10:width=16", weights=RANDOM_WEIGHTS, input_size=(32, 32))


@dataclass(frozen=True, kw_only=True, repr=False)
class Diagnosis(Result):
    """Result of `doctor`. checks: finding of each check. failed: the check that failed; none ran after it."""

    versions: dict[str, str | None]
    devices: dict[str, Any]
    settings: dict[str, Any]
    checks: dict[str, str]
    failed: str | None
    images_per_second: dict[str, float]


@dataclass(kw_only=True)
class Patient:
    """Runs the checks. A check returns its finding, or raises an error. pool: None for a small new pool."""

    pool: Location | None
    images: Location | None
    teachers: Sequence[TeacherChoice]
    settings: TrainSettings
    _speeds: dict[str, float] = field(default_factory=dict)

    def examine(self, progress: Progress) -> Diagnosis:
        """Run the checks until one fails. The last check measures the speed."""
        steps = (self.read, self.replay, self.labels, self.teacher, self.speed)
        checks: dict[str, str] = {}
        failed = None
        with ExitStack() as self._stack:
            for done, step in enumerate(steps, 1):
                try:
                    checks[step.__name__] = step()
                except (LabelPoolError, RuntimeError, OSError) as error:  # CUDA raises RuntimeError
                    failed = step.__name__
                    checks[failed] = first_line(error)
                    break
                progress(done, len(steps))
        names = ("device", "student", "batch_size", "replay", "workers", "amp")
        return Diagnosis(
            **_machine(),
            settings={name: getattr(self.settings, name) for name in names},
            checks=checks,
            failed=failed,
            images_per_second=self._speeds,
        )

    def read(self) -> str:
        if self.pool is None:
            folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="lpld-doctor-")))
            self.pool, self.teachers = _small_pool(folder, self.settings), [SMALL]
            self.settings = replace(self.settings, student=self.settings.student or SMALL.name)
        self._reader = self._stack.enter_context(PoolReader(self.pool))
        self._loader = partial(pool_loader, self._reader, self.images, normalise=False)
        self._on_cpu = list(islice(self._loader(), 4))
        return f"{len(self._on_cpu)} label batches were read"

    def replay(self) -> str:
        fit = images_fit(self._reader.images, torch.device(self.settings.device), None)
        loader = self._loader(device=self.settings.device, replay="device" if fit else "cpu")
        self._pairs = [(theirs, ours.to("cpu")) for theirs, ours in zip(self._on_cpu, loader, strict=False)]
        if not all(torch.equal(theirs.images, ours.images) for theirs, ours in self._pairs):
            raise ComputationError("views rendered on the device differ from those of the CPU")
        same = "views rendered on the device equal those of the CPU bit for bit"
        return same if fit else "skipped: the images do not fit on the device"

    def labels(self) -> str:
        errors = [float((b.labels - a.labels).abs().max() / a.labels.abs().max()) for a, b in self._pairs]
        text = f"decoded labels differ from those of the CPU by {max(errors):.2g} of the largest"
        if not all(error <= SUM_NOISE for error in errors):
            raise ComputationError(text)
        return text

    def teacher(self) -> str:
        if not self.teachers:
            return "skipped: no --teacher is given"
        amp, device = self.settings.amp, self.settings.device
        ensemble = load_ensemble(self.teachers, classes=self._reader.classes, device=device, amp=amp)
        found = verify_with_teacher(self._reader, self.images, ensemble.teachers, batches=1, amp=amp)
        text = f"{found.rows} rows labelled again differ by at most {found.largest_difference:.3g}"
        if not found.agrees:
            raise ComputationError("; ".join((*found.wrong_teachers, text)))
        return text

    def speed(self) -> str:
        settings = self.settings = resolved(self.settings, self._reader)
        trainer = Trainer(network_source(settings.student or "").build(self._reader.classes).module, settings)
        loss = StudentLoss(settings, label_kind=self._reader.header.label_kind)
        options: dict[str, Any] = {"batch_size": settings.batch_size, "num_workers": settings.workers}
        loader = self._loader(device=settings.device, replay=settings.replay, **options)
        stream: Iterator[PoolBatch] = (batch for epoch in repeat(loader) for batch in epoch)

        def train(batch: PoolBatch) -> None:
            step = TrainingBatch(batch.images, loss.of(batch.labels, batch.targets))
            trainer.run_epoch(0, [step], steps=2)  # not the last step, which would wait for a GPU

        first = next(stream)  # starts the workers
        self._speeds["loader"] = self._rate(lambda _: None, stream)
        self._speeds["network"] = self._rate(train, repeat(first))
        self._speeds["both"] = self._rate(train, stream)
        slow, fast = sorted(("loader", "network"), key=lambda name: self._speeds[name])
        alone = f"{self._speeds[slow]:,} images/s alone, the {fast} {self._speeds[fast]:,}"
        return f"the {slow} is the bottleneck: {alone}, and both together {self._speeds['both']:,}"

    def _rate(self, use: Callable[[PoolBatch], None], batches: Iterator[PoolBatch]) -> float:
        """Return images per second."""
        wait = torch.zeros((), device=self.settings.device).item
        for batch in islice(batches, 0 if self.settings.device == "cpu" else 5):
            use(batch)  # GPU kernels are loaded and chosen in the first steps
        wait()
        rows, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < SECONDS:
            batch = next(batches)
            use(batch)
            rows += len(batch.images)
        wait()
        rate = rows / (time.perf_counter() - begin)
        return round(rate, 1) if rate < 1000 else round(rate)


def _small_pool(folder: Path, settings: TrainSettings) -> Path:
    """Make a pool of labelled random images that contains its images."""
    draws = np.random.default_rng(0)
    for number in range(64):
        path = folder / f"images/class{number % 4}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draws.integers(0, 256, (40 + number % 3, 40, 3), np.uint8)).save(path)
    how = BuildSettings(epochs=4, batch_size=16, mix="cutmix", pack=True, teachers=(SMALL,))
    how = replace(how, device=settings.device, amp=settings.amp)
    build_pool(folder / "images", folder / "pool", how)
    return folder / "pool"


def _machine() -> dict[str, Any]:
    versions: dict[str, str | None] = {"python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in PACKAGES}
    files = [Path("/proc/cpuinfo"), Path("/proc/driver/nvidia/version")]
    text = "".join(file.read_text(encoding="utf-8") for file in files if file.is_file())
    cpu, driver = re.search(r"model name\s*: (.*)", text), re.search(r"NVRM.*?\s(\d+\.\S+)", text)
    gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    devices = {
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": [{"name": gpu.name, "memory_bytes": gpu.total_memory} for gpu in gpus],
    }
    versions |= {"torch": torch.__version__, "cuda": torch.version.cuda, "driver": driver and driver[1]}
    return {"versions": versions, "devices": devices}
