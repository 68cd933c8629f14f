"""Links where a pool has its own directories: nothing behind them is written, moved or deleted."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from lpld_labels.errors import LabelPoolError, PoolConflictError, PoolWriteError
from lpld_labels.format.schema import POOL_DIRECTORIES
from lpld_labels.io.locks import locked
from lpld_labels.io.storage import write_atomically
from lpld_labels.pool.own_files import require_own_files
from lpld_labels.pool.unfinished import unfinished
from tests.factories import grow_pool, make_batches
from tests.lpld_labels.pool.test_writer import open_writer

Tree = dict[str, bytes | None]


def _tree(folder: Path) -> Tree:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Somebody else's directory, with names that writers know and names that they do not."""
    folder = tmp_path / "elsewhere"
    for name in ("checkpoint", "codec", ".tmp-1", "precious"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_text(name)
    for name in ("plan.json", "lock", "commit.lock", "basis.npy", "precious.txt", "batches-1.parquet"):
        (folder / name).write_text(name)
    return folder


def _finished(pool: Path) -> None:
    with open_writer(pool) as writer:
        writer.extend(make_batches(1, 4))
        writer.commit()


@pytest.mark.parametrize("name", POOL_DIRECTORIES)
def test_nothing_behind_a_link_is_touched(tmp_path: Path, elsewhere: Path, name: str) -> None:
    pool = tmp_path / "pool"
    _finished(pool)
    shutil.rmtree(pool / name, ignore_errors=True)
    (pool / name).symlink_to(elsewhere)
    before = _tree(elsewhere)
    with pytest.raises(PoolConflictError, match="link"):
        require_own_files(pool)
    with pytest.raises(LabelPoolError):
        grow_pool(pool, make_batches(2, 4))
    assert _tree(elsewhere) == before


@pytest.mark.parametrize("name", [".", "pool", "records", "pool/views", "pool/labels", "plan.json", ".tmp-1"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_nor_behind_one_in_unfinished_work(
    tmp_path: Path, elsewhere: Path, name: str, overwrite: bool
) -> None:
    out, work = tmp_path / "out", tmp_path / "out.partial"
    with open_writer(out) as writer:
        writer.extend(make_batches(1, 4))
    place = work / name
    if name == ".":
        shutil.rmtree(work)
        place = work
    elif place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.symlink_to(elsewhere)
    before = _tree(elsewhere)
    with pytest.raises(PoolConflictError), unfinished(out) as found:
        found.begin({}, overwrite=overwrite)
    assert _tree(elsewhere) == before


@pytest.mark.parametrize("name", ["records", "packed"])
def test_commands_refuse_in_one_line(
    tmp_path: Path, elsewhere: Path, cli: Callable[..., Result], name: str
) -> None:
    pool, out = tmp_path / "pool", tmp_path / "out"
    _finished(pool)
    shutil.copytree(pool, out)
    (out / name).symlink_to(elsewhere)
    before = _tree(elsewhere)
    for words in (("prune", pool, out, "--ratio", "2"), ("copy", pool, out), ("copy", out, pool)):
        for more in ((), ("--overwrite",)):
            done = cli(*words, *more)
            assert "Traceback" not in done.stderr
            assert _tree(elsewhere) == before, words


@pytest.mark.timeout(20)
def test_a_lock_that_is_a_dangling_link_is_no_endless_wait(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "nowhere" / "lock")
    with pytest.raises(OSError, match="symbolic links"), locked(tmp_path / "lock"):
        pass
    assert not (tmp_path / "nowhere").exists()


def test_a_file_takes_no_devices_place(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PoolWriteError, match="not a regular file"):
        write_atomically(tmp_path / "pipe", b"page")
    assert stat.S_ISFIFO((tmp_path / "pipe").lstat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    assert issubclass(PoolWriteError, LabelPoolError)
