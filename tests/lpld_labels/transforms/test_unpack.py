"""Images taken out of a pool: interrupted, put over others, and kept inside their folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lpld_labels import PoolReader
from lpld_labels.errors import (
    PoolConflictError,
)
from lpld_labels.pool.packed_images import packed_images
from lpld_labels.render.images import find_images
from lpld_labels.transforms.pack import pack_pool
from lpld_labels.transforms.unpack import LIST_FILE, unpack_images
from tests.lpld_labels.loader.loader_pools import build, write_images
from tests.lpld_labels.transforms.unpacked_files import files_below


def test_interrupted_unpacking_goes_on(packed: PoolReader, folder: Path, tmp_path: Path) -> None:
    images = packed_images(packed)
    assert images is not None
    out = tmp_path / "again"
    unpack_images(images, out)
    (out / packed.images.paths[3]).unlink()
    (out / packed.images.paths[5]).write_bytes(b"half")
    (out / ".tmp-left").write_bytes(b"half")
    assert unpack_images(images, out) == 2
    assert files_below(out) == files_below(folder)


def test_a_kill_before_the_first_file_is_in_place(packed: PoolReader, folder: Path, tmp_path: Path) -> None:
    images = packed_images(packed)
    assert images is not None
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / ".tmp-0123").write_bytes(b"{")
    unpack_images(images, tmp_path / "again")
    assert files_below(tmp_path / "again") == files_below(folder)


def test_unpacking_replaces_only_what_was_unpacked(packed: PoolReader, folder: Path, tmp_path: Path) -> None:
    images = packed_images(packed)
    assert images is not None
    with pytest.raises(PoolConflictError, match="something is already here"):
        unpack_images(images, folder, overwrite=True)
    others = write_images(tmp_path / "others", 12)
    with build(tmp_path / "small", others) as small:
        pack_pool(small, tmp_path / "small_packed", find_images(small, others))
    out = tmp_path / "again"
    unpack_images(images, out)
    with PoolReader(tmp_path / "small_packed") as small:
        theirs = packed_images(small)
        assert theirs is not None
        with pytest.raises(PoolConflictError, match="images of another pool"):
            unpack_images(theirs, out)
        (out / "class0" / "notes.txt").write_text("mine")
        with pytest.raises(PoolConflictError, match=r"class0/notes\.txt"):
            unpack_images(theirs, out, overwrite=True)
        (out / "class0" / "notes.txt").unlink()
        unpack_images(theirs, out, overwrite=True)
    assert files_below(out) == files_below(others)


def test_unpacking_keeps_images_that_were_put_beside_or_changed(
    packed: PoolReader, folder: Path, tmp_path: Path
) -> None:
    images = packed_images(packed)
    assert images is not None
    others = write_images(tmp_path / "others", 12)
    with build(tmp_path / "small", others) as small:
        pack_pool(small, tmp_path / "small_packed", find_images(small, others))
    out = tmp_path / "again"
    unpack_images(images, out)
    first = out / packed.images.paths[0]
    with PoolReader(tmp_path / "small_packed") as small:
        theirs = packed_images(small)
        assert theirs is not None
        (out / "mine").mkdir()
        shutil.copyfile(first, out / "mine" / "holiday.png")
        with pytest.raises(PoolConflictError, match=r"mine/holiday\.png"):
            unpack_images(theirs, out, overwrite=True)
        shutil.rmtree(out / "mine")
        before = first.read_bytes()
        first.write_bytes(b"retouched")
        with pytest.raises(PoolConflictError, match="was changed after it was unpacked"):
            unpack_images(theirs, out, overwrite=True)
        first.write_bytes(before)
        assert files_below(out) == files_below(folder)
        (out / LIST_FILE).write_text("")
        with pytest.raises(PoolConflictError, match="nobody knows which images"):
            unpack_images(theirs, out, overwrite=True)
        assert files_below(out) == files_below(folder)


def test_unpacking_never_follows_links_out(packed: PoolReader, tmp_path: Path) -> None:
    images = packed_images(packed)
    assert images is not None
    out, elsewhere = tmp_path / "again", tmp_path / "elsewhere"
    unpack_images(images, out)
    elsewhere.mkdir()
    for file in sorted((out / "class0").iterdir()):
        file.unlink()
    (out / "class0").rmdir()
    (out / "class0").symlink_to(elsewhere)
    for overwrite in (False, True):
        with pytest.raises(PoolConflictError, match="class0"):
            unpack_images(images, out, overwrite=overwrite)
    assert not any(elsewhere.iterdir())
