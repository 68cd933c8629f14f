"""The pool that the trainers' tests share, and what is left of it when they are stopped."""

from pathlib import Path

import pytest

from tests.clients.rows import STOP, Rows, epoch_alone
from tests.lpld_labels.loader.loader_pools import build, write_images


@pytest.fixture(scope="session")
def client_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("client_images"), 40)


@pytest.fixture(scope="session")
def client_pool(client_images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("client_pools") / "pool"
    build(path, client_images, epochs=4, batch_size=16).close()
    return path


@pytest.fixture(scope="session")
def rest(client_pool: Path, client_images: Path) -> Rows:
    """The rows of the second epoch that two ranks have left when they are stopped."""
    return [row for step in epoch_alone(client_pool, client_images, 1, 2)[STOP:] for row in step]
