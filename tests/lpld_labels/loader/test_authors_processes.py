"""The loaders for the authors' scripts among processes: errors, kills, passes left early, spawned workers."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from lpld_labels import PoolReader
from lpld_labels.errors import LabelPoolError
from lpld_labels.loader import gvbsm_loader, lpld_loader, sre2l_loader
from tests.lpld_labels.loader.loader_pools import build, write_images


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), 40)


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> PoolReader:
    """Four epochs of batches of 16, 16 and 8 rows."""
    return build(tmp_path_factory.mktemp("pools") / "whole", folder, batch_size=16)


def test_an_error_in_a_worker_arrives_as_it_was(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", 8)
    pool = build(tmp_path / "pool", folder, batch_size=8)
    loader = sre2l_loader(pool, folder, batch_size=8, mix_type="cutmix", num_workers=1)
    next(folder.rglob("*.png")).write_bytes(b"no image")
    with pytest.raises(LabelPoolError):
        list(loader)


TRAINER = """
import os, signal, sys
from lpld_labels.errors import WorkerDiedError
from lpld_labels.loader import sre2l_loader

loader = sre2l_loader(sys.argv[1], sys.argv[2], batch_size=16, mix_type="cutmix", num_workers=2)
batches = iter(loader)
next(batches)
workers = [worker.pid for worker in loader._iterator._workers]
print(*workers, flush=True)
if sys.argv[3] == "trainer":
    os.kill(os.getpid(), signal.SIGKILL)
try:
    os.kill(workers[0], signal.SIGKILL)
    for _ in range(100):
        list(loader)
except WorkerDiedError as error:
    print(error)
"""


@pytest.mark.parametrize("killed", ["worker", "trainer"])
def test_killed_processes_leave_no_others_and_no_silence(
    folder: Path, whole: PoolReader, killed: str
) -> None:
    command = [sys.executable, "-c", TRAINER, whole.location, str(folder), killed]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    pids, _, said = done.stdout.partition("\n")
    if killed == "worker":
        assert "num_workers=0" in said, done.stderr
    else:
        assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while any(_runs(int(pid)) for pid in pids.split()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in pids.split() if _runs(int(pid))]


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_leaving_a_pass_early_does_not_disturb_the_next(folder: Path, whole: PoolReader) -> None:
    loader = lpld_loader(whole, folder, batch_size=16, mix_type="cutmix", num_workers=2)
    for epoch in (1, 3):
        loader.dataset.set_epoch(epoch)
        for batch in loader:
            assert np.array_equal(batch[0][4].numpy(), whole.read_views((epoch, 0)).images)
            break
    loader.dataset.set_epoch(2)
    labels = [batch[4] for batch in loader]
    for number, label in enumerate(labels):
        assert np.array_equal(label.numpy(), whole.read_labels((2, number)))


def test_spawned_workers_play_the_same(folder: Path, whole: PoolReader) -> None:
    options: dict[str, Any] = {"batch_size": 16, "mix_type": "cutmix"}
    spawned = gvbsm_loader(whole, folder, num_workers=1, multiprocessing_context="spawn", **options)
    for ours, expected in zip(spawned, gvbsm_loader(whole, folder, **options), strict=True):
        assert torch.equal(ours[0], expected[0])
        assert torch.equal(ours[7], expected[7])
