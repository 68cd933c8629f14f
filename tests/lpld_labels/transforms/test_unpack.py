"""Images taken out of a pool: interrupted, refused where something is, and kept inside their folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from lpld_labels import PoolReader
from lpld_labels.errors import PoolConflictError
from lpld_labels.pool.packing import PackedImages, packed_images
from lpld_labels.transforms.copy import unpack_images
from tests.lpld_labels.transforms.conftest import files_below


@pytest.fixture
def images(packed: PoolReader) -> PackedImages:
    found = packed_images(packed)
    assert found is not None
    return found


def test_an_interrupted_unpack_resumes(
    images: PackedImages, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(done: int, total: int) -> None:
        if done == total // 2:
            raise KeyboardInterrupt

    out, work = tmp_path / "again", tmp_path / "again.partial"
    with pytest.raises(KeyboardInterrupt):
        unpack_images(images, out, progress=stop)
    assert not out.exists()
    half = files_below(work / "pool")
    victim = work / "pool" / min(half)
    victim.write_bytes(b"half")
    written = unpack_images(images, out)
    assert written <= len(images.table) - len(half) + 1
    assert files_below(out) == files_below(folder)
    assert not work.exists()


def test_what_is_there_is_never_replaced(images: PackedImages, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "again"
    assert unpack_images(images, out) == len(images.table)
    assert unpack_images(images, out) == 0, "the same images"
    (out / "class0" / "notes.txt").write_text("mine")
    before = files_below(out)
    with pytest.raises(PoolConflictError, match="something is already here"):
        unpack_images(images, out)
    assert files_below(out) == before
    (out / "class0" / "notes.txt").unlink()
    first = out / images.table.paths[0]
    first.write_bytes(b"retouched")
    with pytest.raises(PoolConflictError, match="something is already here"):
        unpack_images(images, out)
    assert first.read_bytes() == b"retouched"


def test_unpacking_never_follows_links_out(images: PackedImages, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    out, elsewhere = tmp_path / "again", tmp_path / "elsewhere"
    elsewhere.mkdir()
    with pytest.raises(KeyboardInterrupt):
        unpack_images(images, out, progress=stop)
    place = tmp_path / "again.partial" / "pool" / "class2"
    for path in sorted(place.glob("*")):
        path.unlink()
    if place.exists():
        place.rmdir()
    place.symlink_to(elsewhere)
    with pytest.raises(PoolConflictError, match="link"):
        unpack_images(images, out)
    assert not any(elsewhere.iterdir())
