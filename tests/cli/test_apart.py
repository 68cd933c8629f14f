"""No command writes among what it reads, be it an output or a cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result

from lpld_core.relabel.build import build_pool
from lpld_core.settings import TeacherChoice
from lpld_labels import PoolReader
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.loader import pool_loader
from lpld_labels.render.images import find_images
from lpld_labels.transforms.copy import merge_pools
from tests.cli.build_runs import TEACHER, one_line_error
from tests.lpld_core.image_folders import NETWORK, SIDE, SMALL_BUILD, write_images

Cli = Callable[..., Result]


def test_nothing_is_written_into_an_image_folder(tmp_path: Path, cli: Cli) -> None:
    images = write_images(tmp_path / "images")
    assert cli("build", images, tmp_path / "pool", *TEACHER, "--epochs", 1, "-b", 9).exit_code == 0
    before = sorted(images.rglob("*"))
    cache = ("--image-cache", images / "cache")
    for words in (
        ("copy", tmp_path / "pool", images / "packed", "--images", images),
        ("build", images, tmp_path / "other", *TEACHER, "--epochs", 1, "-b", 9, *cache),
        ("build", images, tmp_path / "other", *TEACHER, "--image-cache", tmp_path / "other" / "cache"),
        ("train", tmp_path / "pool", "--images", images, "--out", tmp_path / "run", *cache),
        ("train", tmp_path / "pool", "--images", images, "--image-cache", tmp_path / "pool" / "cache"),
    ):
        one_line_error(cli(*words), "choose a path beside it")
    assert sorted(images.rglob("*")) == before
    assert not (tmp_path / "other").exists()
    assert not (tmp_path / "run").exists()


def test_the_library_keeps_to_it_too(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images")
    choice = TeacherChoice(name=NETWORK, weights="random", input_size=(SIDE, SIDE))
    settings = replace(SMALL_BUILD, epochs=1, teachers=(choice,))
    with pytest.raises(InvalidArgumentError, match="inside an input"):
        build_pool(images, tmp_path / "pool", replace(settings, image_cache=images / "cache"))
    build_pool(images, tmp_path / "pool", settings)
    with PoolReader(tmp_path / "pool") as pool:
        with pytest.raises(InvalidArgumentError, match="inside an input"):
            merge_pools([pool], images / "packed", images=find_images(pool, images))
        with pytest.raises(InvalidArgumentError, match="inside an input"):
            pool_loader(pool, images, cache_directory=images / "cache")
    assert not {"cache", "packed"} & {path.name for path in images.iterdir()}
