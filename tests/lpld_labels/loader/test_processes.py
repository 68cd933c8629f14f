"""Loaders among processes: distributed training, kills, dead workers, memory."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from lpld_labels import PoolReader
from lpld_labels.errors import WorkerDiedError
from lpld_labels.loader import pool_loader
from tests.lpld_labels.loader.loader_pools import build, write_images


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), 40)


@pytest.fixture(scope="module")
def pool(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> PoolReader:
    return build(tmp_path_factory.mktemp("pools") / "pool", folder, epochs=5, batch_size=16)


def run_python(program: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a Python process on a program text."""
    words = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


DISTRIBUTED = """
    import json, sys
    import torch.distributed as dist
    from lpld_labels.loader import pool_loader

    pool, images, rank, meeting = sys.argv[1:]
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=2)
    loader = pool_loader(pool, images, batch_size=9, num_workers=1, sampling="shuffled", batches_per_epoch=4)
    epochs = [[batch.keys.tolist() for batch in loader] for _ in range(2)]
    counts = [None, None]
    dist.all_gather_object(counts, [len(epoch) for epoch in epochs])
    assert counts[0] == counts[1]
    dist.barrier()
    del loader  # torch 2.1 cannot end a group that forked workers hold open
    dist.destroy_process_group()
    print(json.dumps(epochs))
"""


def test_two_distributed_processes_share_each_epoch(pool: PoolReader, folder: Path, tmp_path: Path) -> None:
    ranks = [run_python(DISTRIBUTED, pool.location, folder, rank, tmp_path / "meeting") for rank in (0, 1)]
    outputs = [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    alone = pool_loader(pool, folder, batch_size=18, sampling="shuffled", batches_per_epoch=4)
    for epoch in range(2):
        steps = zip(outputs[0][epoch], outputs[1][epoch], strict=True)
        assert [first + second for first, second in steps] == [batch.keys.tolist() for batch in alone]


KILLED = """
    import json, os, signal, sys
    from lpld_labels.loader import pool_loader

    pool, images, saved = sys.argv[1:]
    loader = pool_loader(pool, images, batch_size=7, num_workers=2)
    for epoch in range(2):
        for number, batch in enumerate(loader):
            print(json.dumps(batch.keys.tolist()), flush=True)
            with open(saved, "w") as stream:
                json.dump(loader.state_dict(), stream)
            if (epoch, number) == (1, 3):
                os.kill(os.getpid(), signal.SIGKILL)
"""


def shared_images() -> set[tuple[int, str]]:
    """Memory of decoded images that this process and its workers have open."""
    found = set()
    for process in (psutil.Process(), *psutil.Process().children()):
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{process.pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if "lpld-images" in (name := str(link.readlink())):
                        found.add((process.pid, name))
    return found


def test_a_killed_run_goes_on_with_the_same_sequence(pool: PoolReader, folder: Path, tmp_path: Path) -> None:
    killed = run_python(KILLED, pool.location, folder, tmp_path / "state.json")
    lines = killed.communicate(timeout=120)[0].splitlines()
    assert killed.returncode == -signal.SIGKILL
    resumed = pool_loader(pool, folder, batch_size=7)
    resumed.load_state_dict(json.loads((tmp_path / "state.json").read_text()))
    rest = [batch.keys.tolist() for _ in range(2) for batch in resumed]
    uninterrupted = pool_loader(pool, folder, batch_size=7)
    whole = [batch.keys.tolist() for _ in range(3) for batch in uninterrupted]
    assert [json.loads(line) for line in lines] + rest == whole


def children() -> list[psutil.Process]:
    """Processes of this one that are loaders' workers, dead ones that nobody has waited for aside."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie is one of these
            if "resource_tracker" not in " ".join(child.cmdline()):
                found.append(child)
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
    # Three processes share one memory.
    new = [name for _, name in shared_images() if name not in images]
    assert len(new) == 3
    assert len(set(new)) == 1
    del loader
    gc.collect()
    assert {child.pid for child in children()} - before == set()
    assert {name for _, name in shared_images()} <= images


@pytest.mark.timing
def test_memory_stays_flat_over_epochs(pool: PoolReader, folder: Path) -> None:
    before = {child.pid for child in children()}
    loader = pool_loader(pool, folder, num_workers=1, batches_per_epoch=100)

    def used() -> list[int]:
        own = [child for child in children() if child.pid not in before]
        return [process.memory_info().rss for process in (psutil.Process(), *own)]

    def play(epochs: int) -> None:
        for _ in range(epochs):
            for _batch in loader:
                pass

    play(1)
    early = used()
    play(6)
    assert all(late - first < 6e6 for first, late in zip(early, used(), strict=True))


@pytest.mark.timing
def test_the_first_batch_of_a_long_pool_comes_within_a_second(folder: Path, tmp_path: Path) -> None:
    """Opening must not read every batch, nor every shard, of 20,000."""
    pool = build(tmp_path / "pool", folder, epochs=500, batch_size=1)
    assert len(pool) == 20_000
    for workers in (0, 1):
        start = time.monotonic()
        loader = pool_loader(pool.location, folder, batch_size=8, num_workers=workers)
        assert len(next(iter(loader)).images) == 8
        assert time.monotonic() - start < 1
