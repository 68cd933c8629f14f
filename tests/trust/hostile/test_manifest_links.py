"""A manifest that is a link out of its pool is refused before it is read."""

import os
import shutil
from pathlib import Path

import pytest

from lpld_labels import LabelPoolError, PoolReader
from tests.trust.children import watched
from tests.trust.damage.campaign import GOLDEN


def test_a_manifest_that_is_a_link_out_is_not_read(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    shutil.copytree(GOLDEN / "int8", pool)
    secret = tmp_path / "secret.json"
    secret.write_text('{"password": "hunter2"}')
    (pool / "pool.json").unlink()
    (pool / "pool.json").symlink_to(secret)
    os.utime(secret, (0, 0))
    with pytest.raises(LabelPoolError, match="symlink leads outside the pool") as caught:
        PoolReader(pool)
    assert "hunter2" not in str(caught.value)
    assert secret.stat().st_atime == 0


def test_a_manifest_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    shutil.copytree(GOLDEN / "int8", pool)
    (pool / "pool.json").unlink()
    os.mkfifo(pool / "pool.json")
    assert watched(lambda: PoolReader(pool) and None, megabytes=200, seconds=10.0).kind == "refused"
