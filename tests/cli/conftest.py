"""Folders and pools that the tests of commands only read, made once."""

from dataclasses import replace
from pathlib import Path

import pytest

from lpld_core.relabel.build import build_pool
from lpld_core.settings import TeacherChoice
from tests.factories import make_batches, write_pool
from tests.lpld_core.image_folders import NETWORK, SIDE, SMALL_BUILD, write_images


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """27 images of three classes."""
    return write_images(tmp_path_factory.mktemp("images") / "folder")


@pytest.fixture(scope="session")
def built(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pool of these images by the teacher of build_runs.py: two epochs of three batches of nine."""
    out = tmp_path_factory.mktemp("built") / "pool"
    teacher = TeacherChoice(name=NETWORK, weights="random", input_size=(SIDE, SIDE))
    build_pool(images, out, replace(SMALL_BUILD, epochs=2, batch_size=9, threads=1, teachers=(teacher,)))
    return out


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pool of 20 batches of 8 rows and 200 classes."""
    path = tmp_path_factory.mktemp("pools") / "pool"
    write_pool(path, make_batches(epochs=5, per_epoch=4, classes=200)).close()
    return path
