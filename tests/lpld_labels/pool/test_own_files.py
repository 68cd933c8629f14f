"""What is not ours stays: names that happen to be those of a pool's directories are no leave to delete."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from click.testing import Result

from lpld_labels import PoolReader
from lpld_labels.errors import PoolConflictError
from lpld_labels.pool.own_files import own_paths
from lpld_labels.transforms.copy import copy_pool
from lpld_labels.transforms.prune import prune_pool
from lpld_labels.transforms.settings import PruneSettings
from tests.factories import make_batches, write_pool
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


def test_a_read_only_pool_is_not_replaced(pool: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_pool(out, make_batches(1, 4)).close()
    out.chmod(0o555)
    before = _tree(out)
    with PoolReader(pool) as reader, pytest.raises(PoolConflictError, match=r"read-only.*chmod -R u\+w"):
        prune_pool(reader, out, PruneSettings(ratio=2), overwrite=True)
    with pytest.raises(PoolConflictError, match="read-only"):
        copy_pool([pool], out, overwrite=True)
    assert _tree(out) == before
    out.chmod(0o755)
