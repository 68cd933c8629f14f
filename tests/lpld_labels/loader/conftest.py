from pathlib import Path

import pytest

from lpld_labels import PoolReader
from tests.lpld_labels.loader.loader_pools import KINDS, build, write_images

Pools = dict[str, PoolReader]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), 80)


@pytest.fixture(scope="session")
def pools(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Pools:
    """Pools of 4 epochs of 3 batches, the last of 16 rows instead of 32."""
    root = tmp_path_factory.mktemp("pools")
    return {kind: build(root / kind, folder, kind, epochs=4, batch_size=32) for kind in KINDS}
