"""What loaders refuse: images that were not labelled, arguments that cannot work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lpld_labels.errors import ImageMismatchError, ImageReadError, InvalidArgumentError
from lpld_labels.loader import pool_loader
from lpld_labels.render.images import check_images, find_images
from tests.lpld_labels.loader.loader_pools import build, write_images


@pytest.mark.parametrize("num_workers", [0, 2])
def test_other_images_than_the_labelled_are_named(tmp_path: Path, num_workers: int) -> None:
    folder = write_images(tmp_path / "images", 8)
    pool = build(tmp_path / "pool", folder, batch_size=8)
    victim = folder / pool.images.paths[3]
    victim.write_bytes((folder / pool.images.paths[4]).read_bytes())
    digest = pool.images.digests[3]
    assert digest is not None
    with pytest.raises(ImageMismatchError, match=f"{victim.name}.*expected digest {digest.hex()}"):
        list(pool_loader(pool, folder, num_workers=num_workers))
    with pytest.raises(ImageMismatchError, match="has changed"):
        check_images(find_images(pool, folder))
    victim.unlink()
    with pytest.raises(ImageMismatchError, match="missing"):
        list(pool_loader(pool, folder, num_workers=num_workers))
    with pytest.raises(ImageReadError, match="does not exist"):
        pool_loader(pool, tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch size is out of range"),
        ({"temperature": 0.0}, "temperature is out of range"),
        ({"num_workers": -1}, "number of workers"),
        ({"batches_per_epoch": 0}, "number of batches in an epoch is out of range"),
        ({"batches_per_epoch": 10**12}, "number of batches in an epoch is out of range"),
        ({"sampling": "luck"}, "unknown sampling"),
        ({"rank": 0}, "give rank and world_size together"),
        ({"rank": 2, "world_size": 2}, "rank is out of range"),
        ({"world_size": 10_000, "rank": 0}, "too few rows for so many processes"),
    ],
)
def test_bad_arguments_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    folder = write_images(tmp_path / "images", 8)
    pool = build(tmp_path / "pool", folder, batch_size=8)
    with pytest.raises(InvalidArgumentError, match=message):
        list(pool_loader(pool, folder, **{"batches_per_epoch": 8, **options}))


@pytest.mark.parametrize("field", ["epoch", "done", "steps"])
@pytest.mark.parametrize("value", [-1, 10**30, 1.5, True, None, "3"])
def test_positions_that_cannot_be_are_refused(tmp_path: Path, field: str, value: Any) -> None:
    folder = write_images(tmp_path / "images", 8)
    loader = pool_loader(build(tmp_path / "pool", folder, batch_size=8), folder)
    with pytest.raises(InvalidArgumentError, match=f"field '{field}' of the state is wrong"):
        loader.load_state_dict({**loader.state_dict(), field: value})
    with pytest.raises(InvalidArgumentError, match="steps count from 0"):
        loader.skip_to(0, -1)
    loader.set_epoch(10**30)
    with pytest.raises(InvalidArgumentError, match="epoch is out of range"):
        next(iter(loader))
