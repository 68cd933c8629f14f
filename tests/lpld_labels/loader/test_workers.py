"""Loading processes: kills, dead workers, memory. tests/clients has those of distributed training."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path
from typing import Any

import psutil
import pytest

from lpld_labels import PoolReader
from lpld_labels.errors import WorkerDiedError
from lpld_labels.format import digests
from lpld_labels.loader import pool_loader
from tests.lpld_labels.loader.conftest import Pools
from tests.lpld_labels.loader.loader_pools import build

MARK = "LPLD_TEST_RUN"
MOMENTS = int(os.environ.get("LPLD_KILL_MOMENTS", "2"))
"""`make kills` sets 20."""


@pytest.fixture(scope="module")
def pool(pools: Pools) -> PoolReader:
    return pools["cutmix"]


def run_python(program: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})


def children() -> list[psutil.Process]:
    """Processes of this one that are loaders' workers, dead ones that nobody has waited for aside."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie is one of these
            if "resource_tracker" not in " ".join(child.cmdline()):
                found.append(child)
    return found


def shared_images() -> set[tuple[int, str]]:
    found = set()
    for process in (psutil.Process(), *psutil.Process().children()):
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{process.pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if "lpld-images" in (name := str(link.readlink())):
                        found.add((process.pid, name))
    return found


def test_a_dead_worker_is_an_error_and_not_a_hang(pool: PoolReader, folder: Path) -> None:
    before = {child.pid for child in children()}
    loader = pool_loader(pool, folder, batch_size=4, num_workers=2, batches_per_epoch=50)
    batches = iter(loader)
    next(batches)
    for child in children():
        if child.pid not in before:
            os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match=r"a loading process died.*try fewer workers"):
        list(batches)
    # The loader itself is still good: new workers are started.
    assert len(next(iter(loader)).images) == 4


def test_workers_and_their_memory_go_with_the_loader(pool: PoolReader, folder: Path) -> None:
    gc.collect()
    images = {name for _, name in shared_images()}
    before = {child.pid for child in children()}
    loader = pool_loader(pool, folder, num_workers=2)
    next(iter(loader))
    assert len({child.pid for child in children()} - before) == 2
    new = [name for _, name in shared_images() if name not in images]
    assert (len(new), len(set(new))) == (3, 1), "three processes share one memory"
    del loader
    gc.collect()
    assert {child.pid for child in children()} - before == set()
    assert {name for _, name in shared_images()} <= images


def test_first_batch_reads_little(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = build(tmp_path / "pool", folder, epochs=5, batch_size=1)
    assert len(pool) == 400
    digested: list[Any] = []
    original = digests._view_parts

    def counted(*arguments: Any, **options: Any) -> Any:
        digested.append(arguments)
        return original(*arguments, **options)

    monkeypatch.setattr(digests, "_view_parts", counted)
    assert len(next(iter(pool_loader(pool.location, folder, batch_size=8))).images) == 8
    assert 8 <= len(digested) < 20


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


def processes_of(run: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == run and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


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


def test_no_process_outlives_a_killed_trainer(folder: Path, tmp_path: Path) -> None:
    """A label batch is twice as large as what a pipe takes at once."""
    build(tmp_path / "pool", folder, epochs=2, batch_size=64, classes=1000)
    runs = [uuid.uuid4().hex for _ in range(MOMENTS)]
    # Two at a time, for what takes long is starting them.
    for first in range(0, MOMENTS, 2):
        pair = range(first, min(first + 2, MOMENTS))
        trainers = [
            run_python(TRAINER, tmp_path / "pool", folder, **{MARK: runs[moment], "OMP_NUM_THREADS": "1"})
            for moment in pair
        ]
        for trainer, moment in zip(trainers, pair, strict=True):
            kill_at(trainer, moment)
    deadline = time.monotonic() + 10
    while (alive := [p for run in runs for p in processes_of(run)]) and time.monotonic() < deadline:
        time.sleep(0.2)
    for process in alive:
        process.kill()
    assert not alive
