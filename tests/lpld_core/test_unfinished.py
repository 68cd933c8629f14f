"""Unfinished work on a disk that fails: what is said is what went wrong first."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from lpld_core.unfinished import workplace
from lpld_labels.errors import PoolWriteError
from lpld_labels.files.storage import write_atomically


def test_a_disk_that_becomes_read_only_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_words: object, **_more: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def work(place: Path) -> None:
        with workplace(place):
            monkeypatch.setattr(os, "replace", refuse)
            monkeypatch.setattr(os, "unlink", refuse)
            write_atomically(tmp_path / "file", b"bytes", within=place)

    with pytest.raises(PoolWriteError, match="no permission to write"):
        work(tmp_path / "file.unfinished")
    monkeypatch.undo()
    with workplace(tmp_path / "file.unfinished") as place:
        # What could not be deleted then is gone now.
        assert [path.name for path in place.iterdir()] == ["lock"]


def test_a_full_disk_is_said_to_be_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_words: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def refuse(*_words: object, **_more: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(PoolWriteError, match="disk is full"):
        write_atomically(tmp_path / "file", b"bytes")
