"""Unfinished work on a disk that fails: what is said is what went wrong first."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lpld_core.recover.folder import RecoveredFolder
from lpld_core.recover.settings import RdedSettings
from lpld_core.unfinished import SUFFIX, workplace
from lpld_labels.errors import PoolConflictError, PoolWriteError
from lpld_labels.interop.exporting import export_pool
from lpld_labels.io.storage import write_atomically
from tests.factories import make_batches, write_pool


def failing(code: int) -> Callable[..., None]:
    def fail(*_words: object, **_more: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_a_disk_that_becomes_read_only_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(place: Path) -> None:
        with workplace(place):
            monkeypatch.setattr(os, "replace", failing(errno.EROFS))
            monkeypatch.setattr(os, "unlink", failing(errno.EROFS))
            write_atomically(tmp_path / "file", b"bytes", within=place)

    with pytest.raises(PoolWriteError, match="no permission to write"):
        work(tmp_path / "file.unfinished")
    monkeypatch.undo()
    with workplace(tmp_path / "file.unfinished") as place:
        # What could not be deleted then is gone now.
        assert [path.name for path in place.iterdir()] == ["lock"]


def test_a_full_disk_is_said_to_be_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC))
    monkeypatch.setattr(os, "unlink", failing(errno.EIO))
    with pytest.raises(PoolWriteError, match="disk is full"):
        write_atomically(tmp_path / "file", b"bytes")


def test_nothing_behind_a_link_is_swept_away(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "thesis").mkdir(parents=True)
    (elsewhere / "thesis" / "text").write_text("years of work")
    before = sorted(elsewhere.rglob("*"))
    (tmp_path / "file.unfinished").symlink_to(elsewhere)
    with pytest.raises(PoolConflictError, match="link"), workplace(tmp_path / "file.unfinished"):
        pass
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / SUFFIX).symlink_to(elsewhere)
    with pytest.raises(PoolConflictError, match="link"):
        RecoveredFolder(tmp_path / "images", ["a"], RdedSettings(ipc=1, size=(2, 2)))
    (tmp_path / ".labels.unfinished").symlink_to(elsewhere)
    with (
        write_pool(tmp_path / "pool", make_batches(1, 2)) as pool,
        pytest.raises(PoolConflictError, match="link"),
    ):
        export_pool(pool, tmp_path / "labels", label_format="lpld")
    assert sorted(elsewhere.rglob("*")) == before
