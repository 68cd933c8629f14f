"""What is not ours stays: names that happen to be those of a pool's directories are no leave to delete."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from click.testing import Result

from lpld_labels import PoolReader
from lpld_labels.errors import LabelPoolError, PoolConflictError, PoolWriteError
from lpld_labels.format.schema import POOL_DIRECTORIES
from lpld_labels.io.locks import locked
from lpld_labels.io.storage import write_atomically
from lpld_labels.pool.own_files import own_paths, require_own_files
from lpld_labels.pool.unfinished import unfinished
from lpld_labels.transforms.prune import prune_pool
from lpld_labels.transforms.settings import PruneSettings
from tests.factories import grow_pool, make_batches, write_pool
from tests.lpld_labels.pool.test_writer import open_writer

Cli = Callable[..., Result]


def _tree(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    write_pool(tmp_path / "pool", make_batches(2, 4)).close()
    return tmp_path / "pool"


def _a_pool_of_theirs(out: Path, pool: Path) -> None:
    shutil.copytree(pool, out / "staging" / "old")


def _a_file(name: str) -> Callable[[Path, Path], None]:
    def put(out: Path, pool: Path) -> None:
        (out / name).parent.mkdir(parents=True)
        (out / name).write_text("mine")

    return put


THEIRS = {
    "a pool below staging": _a_pool_of_theirs,
    "a file below staging": _a_file("staging/notes.txt"),
    "a checkpoint of another program": _a_file("staging/checkpoint/model.pt"),
    "labels": _a_file("labels/a.txt"),
    "labels in Parquet": _a_file("labels/train.parquet"),
    "views": _a_file("views/index.html"),
    "a codec": _a_file("codec/opus.c"),
    "packed": _a_file("packed/boxes.parquet"),
    "an index": _a_file("data/batches-1.parquet"),
}


@pytest.mark.parametrize("theirs", THEIRS)
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("command", ["prune", "encode", "copy", "merge"])
def test_nothing_of_theirs_is_replaced(
    cli: Cli, pool: Path, tmp_path: Path, theirs: str, overwrite: bool, command: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    THEIRS[theirs](out, pool)
    before = _tree(out)
    words: dict[str, list[object]] = {
        "prune": [pool, out, "--ratio", 2],
        "encode": [pool, out, "--codec", "int8"],
        "copy": [pool, out],
        "merge": [pool, out],
    }
    done = cli(command, *words[command], *(["--overwrite"] if overwrite else []))
    assert done.exit_code != 0
    assert "Traceback" not in done.stderr
    assert _tree(out) == before


@pytest.mark.parametrize("theirs", ["notes.txt", "plan.json", "pool/labels/a.parquet"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_directory_of_theirs_is_no_unfinished_work(
    cli: Cli, pool: Path, tmp_path: Path, theirs: str, overwrite: bool
) -> None:
    file = tmp_path / "out.partial" / theirs
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    done = cli("prune", pool, tmp_path / "out", "--ratio", 2, *(["--overwrite"] if overwrite else []))
    assert done.exit_code != 0
    assert "not part of an unfinished pool" in done.stderr
    assert file.read_text() == "{}"
    assert not (tmp_path / "out").exists()


def test_publishing_into_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "pool"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    with open_writer(out) as writer:
        writer.extend(make_batches(1, 4))
        with pytest.raises(PoolConflictError, match="no label pool"):
            writer.commit()
    assert _tree(out) == {"notes.txt": b"mine"}


def _unfinished(out: Path, pool: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == total:
            raise KeyboardInterrupt

    with (
        mock.patch("lpld_labels.pool.plan.SHARD_BATCHES", 1),
        PoolReader(pool) as reader,
        pytest.raises(KeyboardInterrupt),
    ):
        prune_pool(reader, out, PruneSettings(ratio=4), progress=stop)


def _damaged(out: Path, pool: Path) -> None:
    shutil.copytree(pool, out)
    (out / "pool.json").write_text("{")


OURS: dict[str, Callable[[Path, Path], object]] = {
    "finished": lambda out, pool: shutil.copytree(pool, out),
    "unfinished": _unfinished,
    "of a damaged manifest": _damaged,
}


@pytest.mark.parametrize("ours", OURS)
def test_what_is_ours_is_replaced(cli: Cli, pool: Path, tmp_path: Path, ours: str) -> None:
    out = tmp_path / "out"
    OURS[ours](out, pool)
    assert cli("prune", pool, out, "--ratio", 2).exit_code != 0
    assert cli("prune", pool, out, "--ratio", 2, "--overwrite").exit_code == 0
    with PoolReader(out) as found:
        assert len(found) == 4


def test_paths_at_an_address() -> None:
    ours = ["views/00000-00000-0123abcd.parquet", "codec/basis.pco", "batches-0123abcd.parquet"]
    assert own_paths([*ours, "labels/train.parquet", "notes.txt"]) == set(ours)
    assert own_paths(["pool.json", "labels/train.parquet", "labels/a.txt"]) == {
        "pool.json",
        "labels/train.parquet",
    }


Tree = dict[str, bytes | None]


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
def test_nothing_behind_a_link_in_unfinished_work_is_touched(
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
