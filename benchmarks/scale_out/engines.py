"""One build by `--jobs` and by Ray, at equal threads: how long a batch takes, and what the driver holds."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.common.harness import PROJECT, peak_memory_mb, summarise
from lpld_core.relabel.build import Build, run_build
from lpld_core.settings import BuildSettings, Part, TeacherChoice
from lpld_labels.exec.job import Executor, TaskCounts
from lpld_labels.exec.local import LocalExecutor
from lpld_labels.exec.ray import RayExecutor, RaySettings

NETWORK, SIDE = "small-resnet10:width=8,stem_stride=2", 16
"""So small that a batch is about as much work as what surrounds it: the hardest case for an engine."""
WORKERS = 2
ENGINES = ("local", "ray")


class Clock:
    """Progress that times batches from the moment on at which all workers are at work: they have started."""

    def __init__(self) -> None:
        self._done = self._most_running = 0
        self._first: tuple[float, int] | None = None
        self.seconds_per_batch = 0.0

    def __call__(self, done: int, total: int) -> None:
        self._done = done
        if self._first is not None and done == total:
            seconds, before = self._first
            self.seconds_per_batch = (time.perf_counter() - seconds) / (done - before)

    def tasks(self, counts: TaskCounts) -> None:
        """Some task began or ended."""
        if counts.running > self._most_running:
            self._most_running = counts.running
            self._first = time.perf_counter(), self._done


def image_folder(root: Path, *, classes: int = 4, per_class: int = 8) -> Path:
    """Write small noisy images."""
    rng = np.random.default_rng(0)
    for label in range(classes):
        (root / f"class{label}").mkdir(parents=True)
        for number in range(per_class):
            pixels = rng.integers(0, 255, (SIDE, SIDE, 3), np.uint8)
            Image.fromarray(pixels).save(root / f"class{label}" / f"{number:03d}.png")
    return root


def settings(batches: int, *, batch_size: int) -> BuildSettings:
    """Return a build of so many batches of a folder of 32 images."""
    return BuildSettings(
        epochs=-(-batches * batch_size // 32),
        batch_size=batch_size,
        threads=1,
        teachers=(TeacherChoice(name=NETWORK, weights="random", input_size=(SIDE, SIDE)),),
    )


def local() -> Executor:
    """Return the processes of this machine."""
    return LocalExecutor(WORKERS)


def ray() -> RayExecutor:
    """Return as many workers of a Ray that is started here."""
    return RayExecutor(RaySettings(workers=WORKERS))


def one_build(images: Path, out: Path, batches: int, engine: Executor) -> tuple[float, str]:
    """Return the seconds a batch took, start-up excluded, and the pool's content."""
    clock = Clock()
    build = Build.prepare(images, out, settings(batches, batch_size=8))
    manifest = run_build(build, engine, progress=clock).manifest
    if manifest is None:
        raise RuntimeError("a whole build is published")
    return clock.seconds_per_batch, manifest.content_digest


def efficiency(work: Path, batches: int, *, rounds: int) -> dict[str, Any]:
    """Build with both engines, round after round, each the first of every other; pools must be equal."""
    images = image_folder(work / "images")
    seconds: dict[str, list[float]] = {"local": [], "ray": []}
    contents = set()
    with ray() as cluster:
        engines: list[tuple[str, Executor]] = [("local", local()), ("ray", cluster)]
        # The first round starts Ray and fills caches.
        for number in range(rounds + 1):
            for name, engine in engines:
                found, content = one_build(images, work / f"{name}{number}", batches, engine)
                shutil.rmtree(work / f"{name}{number}")
                contents.add(content)
                if number > 0:
                    seconds[name].append(found)
            engines.reverse()
    if len(contents) != 1:
        raise RuntimeError("the engines gave different pools")
    ratios = [ours / theirs for ours, theirs in zip(seconds["ray"], seconds["local"], strict=True)]
    medians = {name: summarise(values).median for name, values in seconds.items()}
    return {
        "batches": batches,
        "workers": WORKERS,
        "rounds": rounds,
        "milliseconds_per_batch": {
            name: {
                "median": round(1000 * medians[name], 3),
                "all": [round(1000 * value, 3) for value in values],
            }
            for name, values in seconds.items()
        },
        "ray_over_local": [round(ratio, 3) for ratio in ratios],
        "median_ray_over_local": round(summarise(ratios).median, 3),
        "ray_over_local_of_medians": round(medians["ray"] / medians["local"], 3),
    }


def driver_memory(work: Path, batches: int) -> dict[str, Any]:
    """Return the driver's peak memory for a build and for one ten times as large, each in its own process.

    By engine; by the end of labelling, and by the end of the commit.
    """
    image_folder(work / "few")
    return {name: _growth(work, name, batches) for name in ENGINES}


def _growth(work: Path, engine: str, batches: int) -> dict[str, Any]:
    peaks: dict[int, dict[str, float]] = {}
    for count in (batches, 10 * batches):
        asked = ["--driver", engine, "--batches", str(count), "--work", str(work)]
        command = [sys.executable, "-m", "benchmarks.scale_out", *asked]
        run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PROJECT)
        peaks[count] = json.loads(run.stdout)
    growth = {name: peaks[10 * batches][name] - peaks[batches][name] for name in peaks[batches]}
    return {
        "peak_mb": {str(count): peak for count, peak in peaks.items()},
        "growth_mb": {name: round(value, 1) for name, value in growth.items()},
        "bytes_per_batch": round(growth["commit"] * 1e6 / (9 * batches)),
    }


def drive(work: Path, engine: str, batches: int) -> dict[str, float]:
    """Be the driver of one build; return its peak memory by the end of labelling and of the commit."""
    asked = settings(batches, batch_size=2)
    # A part is not published.
    out = work / f"{engine}{batches}"
    build = Build.prepare(work / "few", out, replace(asked, part=Part()))
    if engine == "local":
        run_build(build, local())
    else:
        with ray() as cluster:
            run_build(build, cluster)
    labelled = peak_memory_mb()
    run_build(replace(build, settings=asked))
    shutil.rmtree(out)
    return {"labelling": round(labelled, 1), "commit": round(peak_memory_mb(), 1)}
