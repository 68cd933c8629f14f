"""The pool that the trainers' tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lpld_labels.loader.loader_pools import build, write_images


@pytest.fixture(scope="session")
def client_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("client_images"), 40)


@pytest.fixture(scope="session")
def client_pool(client_images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("client_pools") / "pool"
    build(path, client_images, epochs=4, batch_size=16)
    return path
