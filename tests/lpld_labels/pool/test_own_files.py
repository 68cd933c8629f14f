"""Files of others stay: behind links, and under the names of a pool's own directories."""

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
from lpld_labels.transforms.copy import copy_pool
from lpld_labels.transforms.settings import PruneSettings
from tests.factories import grow_pool, interrupt_at, make_batches, prune_pool, tree, write_pool
from tests.lpld_labels.pool.test_writer import open_writer

Cli = Callable[..., Result]


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    write_pool(tmp_path / "pool", make_batches(2, 4)).close()
    return tmp_path / "pool"


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


THEIRS = (
    "staging/old",  # a pool
    "staging/checkpoint/model.pt",
    "labels/a.txt",
    "labels/train.parquet",
    "views/index.html",
    "codec/opus.c",
    "packed/boxes.parquet",
    "data/batches-1.parquet",
)


@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)])
@pytest.mark.parametrize(
    ("command", "theirs"),
    [
        *(("prune", theirs) for theirs in THEIRS),
        ("encode", THEIRS[3]),
        ("copy", THEIRS[3]),
        ("merge", THEIRS[3]),
    ],
)
def test_files_of_others_are_not_replaced(
    cli: Cli, pool: Path, tmp_path: Path, theirs: str, overwrite: tuple[str, ...], command: str
) -> None:
    out = tmp_path / "out"
    (out / theirs).parent.mkdir(parents=True)
    if theirs == THEIRS[0]:
        shutil.copytree(pool, out / theirs)
    else:
        (out / theirs).write_text("mine")
    before = tree(out)
    words = {"prune": ("--ratio", 2), "encode": ("--codec", "int8")}.get(command, ())
    done = cli(command, pool, out, *words, *overwrite)
    assert done.exit_code != 0
    assert "Traceback" not in done.stderr
    assert tree(out) == before


@pytest.mark.parametrize("theirs", ["notes.txt", "plan.json", "pool/labels/a.parquet"])
@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)])
def test_a_directory_of_others_is_no_unfinished_work(
    cli: Cli, pool: Path, tmp_path: Path, theirs: str, overwrite: tuple[str, ...]
) -> None:
    file = tmp_path / "out.partial" / theirs
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    done = cli("prune", pool, tmp_path / "out", "--ratio", 2, *overwrite)
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
        with pytest.raises(PoolConflictError, match="not a label pool"):
            writer.commit()
    assert tree(out) == {"notes.txt": b"mine"}


@pytest.mark.parametrize("ours", ["finished", "unfinished", "of a damaged manifest"])
def test_our_own_files_are_replaced_when_asked(cli: Cli, pool: Path, tmp_path: Path, ours: str) -> None:
    out = tmp_path / "out"
    if ours == "unfinished":
        with (
            mock.patch("lpld_labels.pool.plan.SHARD_BATCHES", 1),
            PoolReader(pool) as reader,
            pytest.raises(KeyboardInterrupt),
        ):
            prune_pool(reader, out, PruneSettings(ratio=4), progress=interrupt_at(2))
    else:
        shutil.copytree(pool, out)
    if ours == "of a damaged manifest":
        (out / "pool.json").write_text("{")
    assert cli("prune", pool, out, "--ratio", 2).exit_code != 0
    assert cli("prune", pool, out, "--ratio", 2, "--overwrite").exit_code == 0
    with PoolReader(out) as found:
        assert len(found) == 4


def test_a_read_only_pool_is_not_replaced(pool: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_pool(out, make_batches(1, 4)).close()
    out.chmod(0o555)
    before = tree(out)
    with PoolReader(pool) as reader, pytest.raises(PoolConflictError, match=r"read-only.*chmod -R u\+w"):
        prune_pool(reader, out, PruneSettings(ratio=2), overwrite=True)
    with pytest.raises(PoolConflictError, match="read-only"):
        copy_pool([pool], out, overwrite=True)
    assert tree(out) == before
    out.chmod(0o755)


def test_paths_at_an_address() -> None:
    ours = ["views/00000-00000-0123abcd.parquet", "codec/basis.pco", "batches-0123abcd.parquet"]
    assert own_paths([*ours, "labels/train.parquet", "notes.txt"]) == set(ours)
    known = ["pool.json", "labels/train.parquet"]
    assert own_paths([*known, "labels/a.txt"]) == set(known)


@pytest.mark.parametrize("name", POOL_DIRECTORIES)
def test_nothing_behind_a_link_is_touched(pool: Path, elsewhere: Path, name: str) -> None:
    shutil.rmtree(pool / name, ignore_errors=True)
    (pool / name).symlink_to(elsewhere)
    before = tree(elsewhere)
    with pytest.raises(PoolConflictError, match="link"):
        require_own_files(pool)
    with pytest.raises(LabelPoolError):
        grow_pool(pool, make_batches(2, 5))
    assert tree(elsewhere) == before


@pytest.mark.parametrize("name", [".", "pool", "records", "pool/views", "pool/labels", "plan.json", ".tmp-1"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_links_in_unfinished_work(tmp_path: Path, elsewhere: Path, name: str, overwrite: bool) -> None:
    out, work = tmp_path / "out", tmp_path / "out.partial"
    with open_writer(out) as writer:
        writer.extend(make_batches(1, 4))
    place = work if name == "." else work / name
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.symlink_to(elsewhere)
    before = tree(elsewhere)
    with pytest.raises(PoolConflictError), unfinished(out) as found:
        found.begin({}, overwrite=overwrite)
    assert tree(elsewhere) == before


@pytest.mark.timeout(20)
def test_a_lock_that_is_a_dangling_link_is_no_endless_wait(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "nowhere" / "lock")
    with pytest.raises(OSError, match="symbolic links"), locked(tmp_path / "lock"):
        pass
    assert not (tmp_path / "nowhere").exists()


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PoolWriteError, match="not a regular file"):
        write_atomically(tmp_path / "pipe", b"page")
    assert stat.S_ISFIFO((tmp_path / "pipe").lstat().st_mode)
    assert list(tree(tmp_path)) == ["pipe"]
