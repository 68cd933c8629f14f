from collections.abc import Iterator
from pathlib import Path

import pytest

from lpld_labels import PoolReader
from lpld_labels.pool import packing
from lpld_labels.render.images import find_images
from lpld_labels.transforms.copy import merge_pools
from tests.lpld_labels.loader.loader_pools import build, write_images


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images")


@pytest.fixture
def plain(folder: Path, tmp_path: Path) -> Iterator[PoolReader]:
    with build(tmp_path / "plain", folder) as pool:
        yield pool


@pytest.fixture
def packed(
    plain: PoolReader, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PoolReader]:
    """A pool with several packed files of several row groups of thirty small images."""
    monkeypatch.setattr(packing, "GROUP_BYTES", 4_000)
    monkeypatch.setattr(packing, "FILE_BYTES", 15_000)
    merge_pools([plain], tmp_path / "packed", images=find_images(plain, folder))
    with PoolReader(tmp_path / "packed") as pool:
        yield pool
