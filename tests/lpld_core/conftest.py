"""An image folder, a teacher and a pool that the method's tests share."""

from dataclasses import replace
from pathlib import Path

import pytest

from lpld_core.relabel.build import build_pool
from lpld_core.settings import TeacherChoice
from lpld_core.teachers.ensemble import Ensemble, load_ensemble
from lpld_labels.format.images import ImageTable
from lpld_labels.render.images import scan_image_folder
from tests.lpld_core.image_folders import NETWORK, SIDE, SMALL_BUILD, write_images


@pytest.fixture(autouse=True)
def _small(one_thread: None) -> None:
    del one_thread


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "folder")


@pytest.fixture(scope="session")
def table(images: Path) -> ImageTable:
    return scan_image_folder(images)


@pytest.fixture(scope="session")
def choice() -> TeacherChoice:
    return TeacherChoice(name=NETWORK, weights="random", input_size=(SIDE, SIDE))


@pytest.fixture(scope="session")
def ensemble(choice: TeacherChoice) -> Ensemble:
    return load_ensemble([choice], classes=3)


@pytest.fixture(scope="session")
def pool_path(
    images: Path, ensemble: Ensemble, table: ImageTable, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A pool of three epochs: five complete and one incomplete batch each."""
    path = tmp_path_factory.mktemp("pools") / "pool"
    build_pool(images, path, replace(SMALL_BUILD, epochs=3), ensemble=ensemble, table=table)
    return path
