from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, SpawnContext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from lpld_labels import ImageTable
from lpld_labels.errors import ImageMismatchError, ImageReadError, InvalidArgumentError, PoolWriteError
from lpld_labels.render import ImageStore
from lpld_labels.render.images import FolderImages, scan_image_folder
from tests.lpld_labels.render.pictures import make_folder

OpenStore = Callable[..., ImageStore]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "images")


@pytest.fixture
def table(root: Path) -> ImageTable:
    return scan_image_folder(root)


@pytest.fixture(params=["memory", "file"])
def open_store(request: pytest.FixtureRequest, root: Path, table: ImageTable, tmp_path: Path) -> OpenStore:
    """Open a store of either kind on the test's images."""

    def opened(images: ImageTable = table) -> ImageStore:
        return ImageStore(
            FolderImages(root, images),
            cache_directory=tmp_path / "cache" if request.param == "file" else None,
        )

    return opened


def picture_of(store: ImageStore, index: int) -> np.ndarray:
    return np.asarray(Image.open(store.source.place(index)))


def assert_right(store: ImageStore) -> None:
    for index in range(len(store)):
        assert np.array_equal(store[index], picture_of(store, index))


def fill(store: ImageStore, count: int = 12) -> ImageStore:
    for index in range(count):
        store[index]
    return store


def pixel_file(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "cache").iterdir()
    return path


def remove_images(root: Path) -> None:
    for path in root.rglob("*.png"):
        path.unlink()


def test_images_of_all_sizes(open_store: OpenStore) -> None:
    store = open_store()
    assert len(store) == 12
    for _ in range(3):
        assert_right(store)
    assert store[1].dtype == np.uint8
    assert store[0].shape == (40, 56, 3)
    assert store[2].shape == (33, 71, 3)


def test_each_image_is_read_once(open_store: OpenStore, root: Path, table: ImageTable) -> None:
    store = open_store()
    pictures = [store[index].copy() for index in range(12)]
    remove_images(root)
    assert all(np.array_equal(store[index], pictures[index]) for index in range(12))


def test_memory_is_bounded(root: Path, table: ImageTable) -> None:
    sizes = table.heights * table.widths * 3
    limit = int(sizes[:4].sum()) + 1
    store = ImageStore(FolderImages(root, table), memory_bytes=limit)
    assert_right(store)
    fill(store)
    assert sum(image.nbytes for image in store._held.values()) == limit - 1
    remove_images(root)
    assert store[3].shape == (40, 56, 3)
    with pytest.raises(ImageMismatchError, match=r"image 4 .* is missing"):
        store[4]


def test_no_memory_at_all(root: Path, table: ImageTable) -> None:
    store = ImageStore(FolderImages(root, table), memory_bytes=0)
    assert_right(store)
    assert store._held == {}
    with pytest.raises(InvalidArgumentError, match="memory_bytes is negative"):
        ImageStore(FolderImages(root, table), memory_bytes=-1)


def test_changed_image_is_named(open_store: OpenStore, root: Path, table: ImageTable) -> None:
    store = open_store()
    Image.new("RGB", (56, 40)).save(root / table.paths[4])
    assert store[3].shape == (40, 56, 3)
    with pytest.raises(
        ImageMismatchError, match=r"class1/image00.png: image 4 has changed since it was labelled"
    ):
        store[4]


def test_image_of_another_size_is_named(open_store: OpenStore, table: ImageTable) -> None:
    widths = table.widths.copy()
    widths[2] += 1
    store = open_store(replace(table, widths=widths))
    with pytest.raises(
        ImageMismatchError, match=r"image02.png: image 2 has another size .*expected 72 x 33, got 71 x 33"
    ):
        store[2]


def test_broken_image_is_named(open_store: OpenStore, root: Path, table: ImageTable) -> None:
    unknown = replace(table, digests=[None] * len(table))
    (root / table.paths[9]).write_bytes((root / table.paths[9]).read_bytes()[:300])
    store = open_store(unknown)
    with pytest.raises(ImageReadError, match=r"class2/image01.png: broken image"):
        store[9]
    with pytest.raises(ImageReadError, match=r"class2/image01.png: broken image"):
        fill(store)


def test_pickled_store(open_store: OpenStore) -> None:
    store = open_store()
    fill(store)
    data = pickle.dumps(store)
    assert len(data) < 5000
    assert_right(pickle.loads(data))


def sums(store: ImageStore, pipe: Connection) -> None:
    pipe.send([int(store[index].sum()) for index in range(len(store))])


def sums_elsewhere(store: ImageStore, context: ForkContext | SpawnContext, processes: int) -> list[list[int]]:
    pipes, workers = [], []
    for _ in range(processes):
        ours, theirs = context.Pipe()
        worker = context.Process(target=sums, args=(store, theirs))
        worker.start()
        theirs.close()
        pipes.append(ours)
        workers.append(worker)
    results = [pipe.recv() for pipe in pipes]
    for worker in workers:
        worker.join()
    return results


@pytest.mark.parametrize("filled", [0, 6, 12])
def test_forked_workers(open_store: OpenStore, filled: int) -> None:
    store = open_store()
    fill(store, filled)
    expected = [int(picture_of(store, index).sum()) for index in range(12)]
    assert sums_elsewhere(store, multiprocessing.get_context("fork"), 3) == [expected] * 3
    assert_right(store)


def test_spawned_worker(root: Path, table: ImageTable, tmp_path: Path) -> None:
    store = ImageStore(FolderImages(root, table), cache_directory=tmp_path / "cache")
    expected = [int(picture_of(store, index).sum()) for index in range(12)]
    assert sums_elsewhere(store, multiprocessing.get_context("spawn"), 1) == [expected]
    remove_images(root)
    assert [int(store[index].sum()) for index in range(12)] == expected


# The memory-mapped file


def test_file_is_filled_by_one_and_used_by_another(root: Path, table: ImageTable, tmp_path: Path) -> None:
    first = ImageStore(FolderImages(root, table), cache_directory=tmp_path / "cache")
    second = ImageStore(FolderImages(root, table), cache_directory=tmp_path / "cache")
    pictures = [first[index].copy() for index in range(12)]
    remove_images(root)
    assert all(np.array_equal(second[index], pictures[index]) for index in range(12))
    third = ImageStore(FolderImages(root, table), cache_directory=tmp_path / "cache")
    assert all(np.array_equal(third[index], pictures[index]) for index in range(12))


def test_file_of_other_images_is_not_used(root: Path, table: ImageTable, tmp_path: Path) -> None:
    fill(ImageStore(FolderImages(root, table), cache_directory=tmp_path / "cache"))
    Image.new("RGB", (56, 40), "red").save(root / table.paths[0])
    changed = ImageStore(FolderImages(root, scan_image_folder(root)), cache_directory=tmp_path / "cache")
    assert changed[0][0, 0].tolist() == [255, 0, 0]
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_images_without_digests_are_not_kept_in_files(root: Path, table: ImageTable, tmp_path: Path) -> None:
    unknown = replace(table, digests=[None] * len(table))
    assert_right(ImageStore(FolderImages(root, unknown), cache_directory=tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("damage", ["pixels", "seal", "no seal"])
def test_damaged_entry_is_decoded_again(root: Path, table: ImageTable, tmp_path: Path, damage: str) -> None:
    fill(ImageStore(FolderImages(root, table), cache_directory=tmp_path / "cache"))
    path = pixel_file(tmp_path)
    data = bytearray(path.read_bytes())
    if damage == "pixels":
        data[-100] ^= 1
    else:
        data[8 * 11 : 8 * 12] = (0 if damage == "no seal" else 1 << 32).to_bytes(8, "little")
    path.write_bytes(bytes(data))
    store = ImageStore(FolderImages(root, table), cache_directory=tmp_path / "cache")
    assert_right(store)
    assert_right(store)
    remove_images(root)
    assert ImageStore(FolderImages(root, table), cache_directory=tmp_path / "cache")[11].shape == (40, 56, 3)


@pytest.mark.parametrize("damage", ["cut short", "foreign"])
def test_damaged_file_is_replaced(root: Path, table: ImageTable, tmp_path: Path, damage: str) -> None:
    fill(ImageStore(FolderImages(root, table), cache_directory=tmp_path / "cache"))
    path = pixel_file(tmp_path)
    path.write_bytes(path.read_bytes()[:-1] if damage == "cut short" else b"something else")
    assert_right(ImageStore(FolderImages(root, table), cache_directory=tmp_path / "cache"))
    assert pixel_file(tmp_path) == path


def test_file_that_may_not_be_written(
    root: Path, table: ImageTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ImageStore(FolderImages(root, table), cache_directory=tmp_path / "cache")[0]
    before = pixel_file(tmp_path).read_bytes()
    # Tests often run as root, whom no permission stops; so the question is answered for it.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    store = ImageStore(FolderImages(root, table), cache_directory=tmp_path / "cache")
    assert_right(store)
    store[0][:] = 0
    assert pixel_file(tmp_path).read_bytes() == before


def test_disk_without_space(
    root: Path, table: ImageTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    with pytest.raises(
        PoolWriteError, match=r"cache: not enough space for the decoded images .*got 100 free"
    ):
        ImageStore(FolderImages(root, table), cache_directory=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_cache_directory_that_is_a_file(root: Path, table: ImageTable, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PoolWriteError, match="file"):
        ImageStore(FolderImages(root, table), cache_directory=tmp_path / "file")


def test_a_file_that_another_process_makes_meanwhile_keeps_its_images(
    root: Path, table: ImageTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = FolderImages(root, table)
    first = ImageStore(images, cache_directory=tmp_path / "cache")
    assert_right(first)
    # As seen by a process that looked before the first one was done.
    looks = iter([False])
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: next(looks, None) is not False and exists(path))
    second = ImageStore(images, cache_directory=tmp_path / "cache")
    monkeypatch.undo()
    remove_images(root)
    assert all(np.array_equal(second[index], first[index]) for index in range(12))


def test_pickled_memory_of_a_process_that_has_ended_is_not_used(root: Path, table: ImageTable) -> None:
    store = ImageStore(FolderImages(root, table), workers=2)
    assert_right(store)
    data = pickle.dumps(store)
    assert pickle.loads(data)._file is not None
    del store
    gc.collect()
    assert pickle.loads(data)._file is None
    assert_right(pickle.loads(data))


def test_room_for_decoded_images_is_taken_at_once(root: Path, table: ImageTable, tmp_path: Path) -> None:
    ImageStore(FolderImages(root, table), cache_directory=tmp_path / "cache")
    file = pixel_file(tmp_path).stat()
    assert file.st_blocks * 512 >= file.st_size
