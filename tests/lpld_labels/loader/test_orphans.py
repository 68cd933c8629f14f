"""Workers end with the training process, also when it is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path

import psutil
import pytest

from tests.lpld_labels.loader.loader_pools import build, write_images

MARK = "LPLD_TEST_RUN"
MOMENTS = int(os.environ.get("LPLD_KILL_MOMENTS", "4"))
"""`make kills` sets 20."""

TRAINER = """
    import sys, time
    from lpld_labels.loader import pool_loader

    pool, images = sys.argv[1:]
    loader = pool_loader(pool, images, batch_size=16, num_workers=2, batches_per_epoch=6)
    print("ready", flush=True)
    while True:
        for batch in loader:
            print("batch", flush=True)
            time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), 64)


@pytest.fixture(scope="module")
def pool(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A label batch is twice as large as what a pipe takes at once."""
    path = tmp_path_factory.mktemp("pools") / "pool"
    build(path, images, epochs=2, batch_size=64, classes=1000)
    return path


def processes_of(run: str) -> list[psutil.Process]:
    """Every process that has inherited the mark of a run."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == run and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def start(run: str, *arguments: object) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", textwrap.dedent(TRAINER), *map(str, arguments)]
    environment = {**os.environ, MARK: run, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)


def kill_at(trainer: subprocess.Popen[str], moment: int) -> None:
    """Kill it while workers start (moments 0, 4, ...) or after some batches, at once or a little later."""
    assert trainer.stdout is not None
    for _ in range(1 + (moment % 4) * (1 + moment // 4)):
        assert trainer.stdout.readline()
    time.sleep(0.013 * (moment // 4))
    trainer.kill()
    trainer.wait()
    # Read no further: workers that live on hold the other end.
    trainer.stdout.close()


def test_no_process_outlives_a_killed_trainer(pool: Path, images: Path) -> None:
    runs = {moment: uuid.uuid4().hex for moment in range(MOMENTS)}
    # Two at a time, for what takes long is starting them.
    for first in range(0, MOMENTS, 2):
        pair = [moment for moment in runs if first <= moment < first + 2]
        trainers = [start(runs[moment], pool, images) for moment in pair]
        for trainer, moment in zip(trainers, pair, strict=True):
            kill_at(trainer, moment)
    deadline = time.monotonic() + 10
    left = {moment: processes_of(run) for moment, run in runs.items()}
    while any(left.values()) and time.monotonic() < deadline:
        time.sleep(0.2)
        left = {moment: processes_of(run) for moment, run in runs.items()}
    alive = [process for processes in left.values() for process in processes]
    for process in alive:
        process.kill()
    assert not alive
