"""Interrupted imports resume, alone or in several processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from lpld_labels import PoolReader
from lpld_labels.errors import LabelFileError, PoolConflictError, StagingMismatchError
from lpld_labels.exec.local import LocalExecutor
from lpld_labels.interop.importing import import_labels
from lpld_labels.interop.settings import ImportOptions
from tests.lpld_labels.interop.label_folders import CLASSES, write_epochs, write_images


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    write_images(root / "images")
    write_epochs(root / "labels", epochs=8, ids_file=True)
    return root


@pytest.fixture(scope="module")
def digest(made: Path) -> str:
    """Return the content digest of an import that nothing disturbed."""
    return import_labels(made / "labels", made / "whole", images=made / "images").content_digest


class StopHereError(Exception):
    """Stands for anything that ends a process."""


@pytest.mark.usefixtures("one_batch_shards")
@pytest.mark.parametrize("after", [1, 5, 23])
def test_interrupted_and_resumed(made: Path, digest: str, tmp_path: Path, after: int) -> None:
    told = []

    def stop(done: int, total: int) -> None:
        assert total == 24
        if done == after:
            raise StopHereError

    with pytest.raises(StopHereError):
        import_labels(made / "labels", tmp_path / "pool", images=made / "images", progress=stop)
    assert not (tmp_path / "pool").exists()
    report = import_labels(
        made / "labels",
        tmp_path / "pool",
        images=made / "images",
        progress=lambda done, total: told.append(done),
    )
    assert min(told) >= after
    assert report.content_digest == digest
    assert [path.name for path in tmp_path.iterdir()] == ["pool"]


@pytest.mark.usefixtures("one_batch_shards")
def test_an_error_in_one_process_keeps_the_work_of_all(made: Path, digest: str, tmp_path: Path) -> None:
    victim = made / "labels" / "epoch_5" / "batch_0.tar"
    whole = victim.read_bytes()
    os.truncate(victim, 50)
    try:
        with pytest.raises(LabelFileError, match=r"epoch_5/batch_0\.tar"):
            import_labels(
                made / "labels", tmp_path / "pool", images=made / "images", executor=LocalExecutor(2)
            )
    finally:
        victim.write_bytes(whole)
    assert list((tmp_path / "pool.partial" / "records").iterdir())
    report = import_labels(
        made / "labels", tmp_path / "pool", images=made / "images", executor=LocalExecutor(2)
    )
    assert report.content_digest == digest


def test_a_worker_that_is_killed(made: Path, digest: str, tmp_path: Path) -> None:
    code = f"""
import os, signal, sys, threading, time
from lpld_labels.errors import WorkerDiedError
from lpld_labels.interop.importing import import_labels
from lpld_labels.exec.local import LocalExecutor
def kill():
    import multiprocessing
    while not multiprocessing.active_children():
        time.sleep(0.01)
    os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
if __name__ == "__main__":
    threading.Thread(target=kill).start()
    try:
        made = {str(made)!r}
        out = {str(tmp_path / "pool")!r}
        import_labels(made + "/labels", out, images=made + "/images", executor=LocalExecutor(2))
    except WorkerDiedError as error:
        sys.exit(0 if "run the same command again" in str(error) else str(error))
    sys.exit("no error")
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = import_labels(made / "labels", tmp_path / "pool", images=made / "images")
    assert report.content_digest == digest


def test_killed_and_resumed(made: Path, digest: str, tmp_path: Path) -> None:
    """SIGKILL in the middle of a batch: finished shards stay, the rest is done again."""
    code = f"""
import time
import lpld_labels.interop.import_batches as import_batches
from lpld_labels.interop.importing import import_labels
import_batches.raw_batches_per_shard = lambda header: 1
def stop(done, total):
    print(done, flush=True)
    if done == 7:
        time.sleep(600)  # until it is killed, however late that is
made = {str(made)!r}
import_labels(made + "/labels", {str(tmp_path / "pool")!r}, images=made + "/images", progress=stop)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "7" in (line.strip() for line in process.stdout)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    report = import_labels(made / "labels", tmp_path / "pool", images=made / "images")
    assert report.content_digest == digest


@pytest.mark.usefixtures("one_batch_shards")
def test_other_settings_do_not_resume(made: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 3:
            raise StopHereError

    with pytest.raises(StopHereError):
        import_labels(made / "labels", tmp_path / "pool", images=made / "images", progress=stop)
    with pytest.raises(StagingMismatchError, match="output_"):
        import_labels(
            made / "labels", tmp_path / "pool", images=made / "images", options=ImportOptions(output_size=64)
        )


def test_once_more_when_all_is_done(made: Path, digest: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in (made / "whole").rglob("*")}
    report = import_labels(made / "labels", made / "whole", images=made / "images")
    assert report.content_digest == digest
    assert {path: path.stat().st_mtime_ns for path in (made / "whole").rglob("*")} == before


def test_a_pool_in_the_way(made: Path, digest: str, tmp_path: Path) -> None:
    write_epochs(tmp_path / "labels", epochs=7, ids_file=True)
    with pytest.raises(PoolConflictError, match="already here"):
        import_labels(tmp_path / "labels", made / "whole", images=made / "images")
    with PoolReader(made / "whole") as pool:
        assert pool.manifest.content_digest == digest


@pytest.mark.parametrize("ids", [{"ids_file": True}, {"ids_in_batch": True}, {}])
def test_an_import_that_replaces_another_is_whole(made: Path, tmp_path: Path, ids: dict[str, Any]) -> None:
    """Comparing the labels with the pool that is there does not use them up."""
    options = ImportOptions(
        torch_era="new", ensemble="average" if "ids_in_batch" in ids else None, classes=CLASSES
    )
    folder = write_epochs(tmp_path / "labels", epochs=4, **ids)
    import_labels(folder, tmp_path / "pool", images=made / "images", options=options)
    content = torch.load(folder / "epoch_2" / "batch_1.tar", weights_only=False)
    content[5] = -content[5]
    torch.save(content, folder / "epoch_2" / "batch_1.tar")
    report = import_labels(folder, tmp_path / "pool", images=made / "images", options=options, overwrite=True)
    assert report.batches == 12
    with PoolReader(tmp_path / "pool") as pool:
        assert pool.read_labels((2, 1)).tobytes() == content[5].numpy().tobytes()


def test_disk_full_in_the_middle(made: Path, digest: str, tmp_path: Path) -> None:
    """A limit on file size stands for a full disk; the next run, with room, finishes the work."""
    code = f"""
import resource, sys
from lpld_labels.errors import PoolWriteError
from lpld_labels.interop.importing import import_labels
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    import_labels({str(made / "labels")!r}, {str(tmp_path / "pool")!r}, images={str(made / "images")!r})
except PoolWriteError as error:
    sys.exit(0 if "disk is full" in str(error) else f"other message: {{error}}")
sys.exit("no error")
"""
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - start < 60
    assert not (tmp_path / "pool" / "pool.json").exists()
    report = import_labels(made / "labels", tmp_path / "pool", images=made / "images")
    assert report.content_digest == digest
