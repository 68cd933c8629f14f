"""Writing where the machine sets limits: full disks, forbidden directories, little memory."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from lpld_labels.errors import (
    PoolWriteError,
)
from tests.factories import make_batches
from tests.lpld_labels.pool.test_writer import digest_of, open_writer


def test_a_full_disk_loses_nothing_that_was_sealed(tmp_path: Path, project: Path) -> None:
    """A file-size limit makes the kernel refuse writes as a full disk does."""
    path = tmp_path / "pool"
    script = textwrap.dedent("""
        import resource, sys
        from pathlib import Path
        from lpld_labels.errors import PoolWriteError
        from tests.factories import make_batches
        from tests.lpld_labels.pool.test_writer import open_writer
        writer = open_writer(Path(sys.argv[1]), shard_batches=4)
        batches = make_batches(3, 4)
        writer.extend(batches[:4])
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        try:
            with writer:
                writer.extend(batches[4:])
                writer.commit()
        except PoolWriteError as error:
            print(error)
            sys.exit(7)
    """)
    ended = subprocess.run(
        [sys.executable, "-c", script, str(path)], cwd=project, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 7, ended.stderr
    assert "disk is full" in ended.stdout
    assert not (path / "pool.json").exists()
    assert not list((tmp_path / "pool.partial").glob(".tmp-*"))
    with open_writer(path) as writer:
        assert [batch.key in writer for batch in make_batches(3, 4)] == [True] * 4 + [False] * 8
        writer.extend(make_batches(3, 4))
        assert writer.commit().content_digest == digest_of(make_batches(3, 4), tmp_path / "whole")


def test_a_read_only_directory_is_named(tmp_path: Path, project: Path) -> None:
    """Run without root's privileges, which ignore permissions."""
    if os.geteuid() != 0:
        tmp_path.chmod(0o555)
        with pytest.raises(PoolWriteError, match="no permission"):
            open_writer(tmp_path / "pool")
        return
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o755)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            # Already inside the directory: its private parents need not be crossed again.
            os.chdir(folder)
            os.setuid(65534)
            open_writer(Path("pool"))
        except PoolWriteError as error:
            status = 0 if "no permission to write" in str(error) else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.timing
def test_memory_stays_flat_while_the_pool_grows(tmp_path: Path, project: Path) -> None:
    script = textwrap.dedent("""
        import sys
        from pathlib import Path
        from benchmarks.common.harness import peak_memory_mb
        from tests.factories import make_batch, make_header, make_images
        from lpld_labels import PoolWriter
        images = make_images(classes=500)
        header = make_header(500, 64)
        with PoolWriter(Path(sys.argv[1]), header=header, images=images, shard_bytes=1 << 20) as w:
            for number in range(int(sys.argv[2])):
                w.append(make_batch(0, number, rows=64, classes=500, images=images))
            w.commit()
        print(peak_memory_mb())
    """)
    peaks = []
    for number in (60, 600):
        command = [sys.executable, "-c", script, str(tmp_path / str(number)), str(number)]
        ended = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True)
        peaks.append(float(ended.stdout))
    # Ten times the batches are 35 MB more labels; what may grow is a few bytes of index per batch.
    assert peaks[1] - peaks[0] < 12, peaks
