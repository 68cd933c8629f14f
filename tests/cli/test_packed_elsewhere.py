"""Pools that carry their images, at an address: everything works there that works in a directory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result

from lpld_labels import PoolReader
from lpld_labels.errors import LabelPoolError
from lpld_labels.loader import pool_loader
from tests.cli.test_pack import TEACHER, run
from tests.cli.test_pack import build as build_pool
from tests.lpld_core.image_folders import write_images
from tests.servers.s3 import S3Server

Cli = Callable[..., Result]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "folder")


@pytest.fixture
def address(cli: Cli, images: Path, bucket: str, tmp_path: Path) -> str:
    """A pool that was packed straight to an address; what it was packed from is in `pool`."""
    build_pool(cli, images, tmp_path / "pool", "--mix", "cutmix")
    run(cli, "copy", tmp_path / "pool", f"{bucket}/packed", "--images", images)
    return f"{bucket}/packed"


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_from_the_folder(address: str, images: Path, tmp_path: Path, workers: int) -> None:
    ours = pool_loader(address, batch_size=4, num_workers=workers, cache_directory=tmp_path / "cache")
    theirs = pool_loader(tmp_path / "pool", images, batch_size=4)
    count = 0
    for mine, other in zip(ours, theirs, strict=True):
        for name in ("images", "labels", "targets", "keys"):
            assert torch.equal(getattr(mine, name), getattr(other, name)), name
        count += 1
    assert count == len(theirs)


def test_commands_take_the_address(cli: Cli, address: str, images: Path, tmp_path: Path) -> None:
    assert "true: 18 rows" in run(cli, "verify", address, *TEACHER, "--batches", 2).stdout
    run(cli, "copy", address, tmp_path / "again", "--unpack")
    for path in sorted(images.rglob("*.png")):
        assert (tmp_path / "again" / path.relative_to(images)).read_bytes() == path.read_bytes()
    told = json.loads(run(cli, "inspect", address, "--recipe", "--json").stdout)
    alone = run(cli, "inspect", f"{address}/pool.json", "--recipe", "--json")
    assert told["lines"] == json.loads(alone.stdout)["lines"]
    assert told["lines"][-1] == "lpld-labels copy POOL1 POOL --images IMAGES"
    assert "The images are inside." in run(cli, "inspect", address, "--card", "-").stdout
    assert f"{address}/README.md" in run(cli, "inspect", address, "--card").stdout
    with PoolReader(address) as pool:
        card = pool.files.card()
    assert card is not None
    assert b"The images are inside." in card


def test_a_changed_image_is_refused(address: str, s3: S3Server, tmp_path: Path) -> None:
    with PoolReader(address) as pool:
        entry = pool.manifest.files_of("packed")[0]
        data = bytearray(pool.files.whole(entry))
    data[len(data) // 2] ^= 1
    name, _, prefix = address.removeprefix("s3://").partition("/")
    s3.put(name, f"{prefix}/{entry.path}", bytes(data))
    with pytest.raises(LabelPoolError, match="packed"):
        list(pool_loader(address, batch_size=4, cache_directory=tmp_path / "cache"))
