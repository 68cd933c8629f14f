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
from typing import Any

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


@pytest.fixture
def in_memory(root: Path, table: ImageTable) -> OpenStore:
    def opened(images: ImageTable = table, **options: Any) -> ImageStore:
        return ImageStore(FolderImages(root, images), **options)

    return opened


@pytest.fixture
def in_file(in_memory: OpenStore, tmp_path: Path) -> OpenStore:
    def opened(*images: ImageTable) -> ImageStore:
        return in_memory(*images, cache_directory=tmp_path / "cache")

    return opened


@pytest.fixture(params=["in_memory", "in_file"])
def open_store(request: pytest.FixtureRequest) -> OpenStore:
    found: OpenStore = request.getfixturevalue(request.param)
    return found


def picture_of(store: ImageStore, index: int) -> np.ndarray:
    return np.asarray(Image.open(store.source.place(index)))


def assert_right(store: ImageStore) -> list[np.ndarray]:
    """Compare every image with its file and return all."""
    for index in range(len(store)):
        assert np.array_equal(store[index], picture_of(store, index))
    return [store[index].copy() for index in range(len(store))]


def assert_same(store: ImageStore, pictures: list[np.ndarray]) -> None:
    assert all(np.array_equal(store[index], picture) for index, picture in enumerate(pictures))


def pixel_file(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "cache").iterdir()
    return path


def remove_images(root: Path) -> None:
    for path in root.rglob("*.png"):
        path.unlink()


def test_each_image_is_read_once(open_store: OpenStore, root: Path) -> None:
    store = open_store()
    pictures = assert_right(store)
    assert store[1].dtype == np.uint8
    assert [picture.shape for picture in pictures[:3]] == [(40, 56, 3), (64, 64, 3), (33, 71, 3)]
    remove_images(root)
    assert_same(store, pictures)


def test_memory_is_bounded(in_memory: OpenStore, root: Path, table: ImageTable) -> None:
    limit = int((table.heights * table.widths * 3)[:4].sum()) + 1
    none, store = in_memory(memory_bytes=0), in_memory(memory_bytes=limit)
    assert_right(none)
    assert none._held == {}
    assert_right(store)
    assert sum(image.nbytes for image in store._held.values()) == limit - 1
    remove_images(root)
    assert store[3].shape == (40, 56, 3)
    with pytest.raises(ImageMismatchError, match=r"image 4 .* is missing"):
        store[4]
    with pytest.raises(InvalidArgumentError, match="memory_bytes is negative"):
        in_memory(memory_bytes=-1)


def test_changed_and_broken_images_are_named(open_store: OpenStore, root: Path, table: ImageTable) -> None:
    store = open_store()
    Image.new("RGB", (56, 40)).save(root / table.paths[4])
    assert store[3].shape == (40, 56, 3)
    with pytest.raises(
        ImageMismatchError, match=r"class1/image00.png: image 4 has changed since it was labelled"
    ):
        store[4]
    widths = table.widths.copy()
    widths[2] += 1
    with pytest.raises(ImageMismatchError, match=r"image 2 differs in size .*expected 72 x 33, got 71 x 33"):
        open_store(replace(table, widths=widths))[2]
    (root / table.paths[9]).write_bytes((root / table.paths[9]).read_bytes()[:300])
    with pytest.raises(ImageReadError, match=r"class2/image01.png: broken image"):
        open_store(replace(table, digests=[None] * len(table)))[9]


def test_pickled_memory_of_a_process_that_has_ended_is_not_used(in_memory: OpenStore) -> None:
    store = in_memory(workers=2)
    assert_right(store)
    data = pickle.dumps(store)
    assert pickle.loads(data)._file is not None
    del store
    gc.collect()
    assert pickle.loads(data)._file is None
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
    for index in range(filled):
        store[index]
    expected = [int(picture_of(store, index).sum()) for index in range(12)]
    assert sums_elsewhere(store, multiprocessing.get_context("fork"), 3) == [expected] * 3
    assert_right(store)


def test_spawned_worker(in_file: OpenStore, root: Path) -> None:
    store = in_file()
    expected = [int(picture_of(store, index).sum()) for index in range(12)]
    assert sums_elsewhere(store, multiprocessing.get_context("spawn"), 1) == [expected]
    remove_images(root)
    assert [int(store[index].sum()) for index in range(12)] == expected


def test_a_file_is_filled_by_one_store_and_used_by_others(in_file: OpenStore, root: Path) -> None:
    first, second = in_file(), in_file()
    pictures = assert_right(first)
    remove_images(root)
    assert_same(second, pictures)
    assert_same(in_file(), pictures)


def test_the_file_of_other_images_is_not_used(in_file: OpenStore, root: Path, table: ImageTable) -> None:
    assert_right(in_file())
    Image.new("RGB", (56, 40), "red").save(root / table.paths[0])
    changed = in_file(scan_image_folder(root))
    assert changed[0][0, 0].tolist() == [255, 0, 0]


def test_images_without_digests_are_not_cached(in_file: OpenStore, table: ImageTable, tmp_path: Path) -> None:
    assert_right(in_file(replace(table, digests=[None] * len(table))))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("damage", ["pixels", "seal", "no seal", "cut short", "foreign"])
def test_damaged_files_are_decoded_again(in_file: OpenStore, root: Path, tmp_path: Path, damage: str) -> None:
    pictures = assert_right(in_file())
    path = pixel_file(tmp_path)
    data = bytearray(path.read_bytes())
    if damage == "pixels":
        data[-100] ^= 1
    elif damage == "cut short":
        del data[-1]
    elif damage == "foreign":
        data = bytearray(b"something else")
    else:
        data[8 * 11 : 8 * 12] = (0 if damage == "no seal" else 1 << 32).to_bytes(8, "little")
    path.write_bytes(data)
    assert_right(in_file())
    assert pixel_file(tmp_path) == path
    remove_images(root)
    assert_same(in_file(), pictures)


def test_read_only_file_is_used(in_file: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_file()[0]
    before = pixel_file(tmp_path).read_bytes()
    # Permissions do not stop root.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    store = in_file()
    assert_right(store)
    store[0][:] = 0
    assert pixel_file(tmp_path).read_bytes() == before


def test_disk_space_is_reserved(
    in_memory: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
        with pytest.raises(PoolWriteError, match=r"not enough space for the decoded images .*100 free"):
            in_memory(cache_directory=cache)
    assert list(cache.iterdir()) == []
    in_memory(cache_directory=cache)
    file = pixel_file(tmp_path).stat()
    assert file.st_blocks * 512 >= file.st_size
    (tmp_path / "file").touch()
    with pytest.raises(PoolWriteError, match="file"):
        in_memory(cache_directory=tmp_path / "file")


def test_file_made_meanwhile_is_kept(in_file: OpenStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = assert_right(in_file())
    # As seen by a process that looked before the first one was done.
    looks = iter([False])
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: next(looks, None) is not False and exists(path))
    second = in_file()
    monkeypatch.undo()
    remove_images(root)
    assert_same(second, pictures)
