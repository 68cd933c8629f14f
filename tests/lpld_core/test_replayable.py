"""Pools built for another trainer: replayed from their export as it does it, pixels are ours bit by bit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler

from lpld_labels import PoolReader
from lpld_labels.interop.layouts import TINY
from lpld_labels.render import ImageStore, apply_views
from lpld_labels.render.images import FolderImages
from tests.cli.build_runs import Cli, facts, one_line_error, passed
from tests.lpld_labels.interop.label_folders import IMAGES, write_images
from tests.lpld_labels.interop.restated import image_files, mixed, replayed

SIDE, BATCH, EPOCHS = 64, 8, 3
TEACHER = ("--teacher", "small-resnet10:width=8,stem_stride=2", "--teacher-weights", "random")
NORMALISATION = ("--mean", ",".join(map(str, TINY.mean)), "--std", ",".join(map(str, TINY.std)))
SETTINGS = (*TEACHER, *NORMALISATION, "--size", SIDE, "--batch-size", BATCH, "--epochs", EPOCHS)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    # Smaller than a view, as recovered images are: Pillow 13 resizes crops that shrink in another order.
    return write_images(tmp_path / "images", size=60, per_class=5)


def exported(cli: Cli, pool: Path, folder: Path, label_format: str) -> list[dict[str, Any]]:
    done = cli("export", pool, folder, "--format", label_format, "--json")
    claims: list[dict[str, Any]] = facts(done)["claims"]
    for claim in claims:
        assert f"{claim['program']}, {claim['option']}" in done.stderr
    return claims


def drawn_batches() -> Iterator[tuple[int, int, list[int]]]:
    """Yield (epoch, number, image ids) of the batches as a trainer's loader draws them."""
    generator = torch.Generator()
    generator.manual_seed(42)
    sampler = BatchSampler(RandomSampler(range(IMAGES), generator=generator), BATCH, drop_last=False)
    for epoch in range(EPOCHS):
        for number, ids in enumerate(sampler):
            yield epoch, number, ids


@pytest.mark.parametrize(
    ("program", "mix"), [("sre2l", "cutmix"), ("lpld", "cutmix"), ("lpld", "mixup"), ("lpld", "none")]
)
def test_replay_is_exact(cli: Cli, images: Path, tmp_path: Path, program: str, mix: str) -> None:
    pool = tmp_path / "pool"
    passed(cli("build", images, pool, *SETTINGS, "--replayable-by", program, "--mix", mix))
    by_epoch = exported(cli, pool, tmp_path / "labels", program)[-1]
    assert by_epoch["holds"] or program == "sre2l"
    files = image_files(images)
    with PoolReader(pool) as reader:
        store = ImageStore(FolderImages(images, reader.images))
        assert [images / path for path in reader.images.paths] == files
        assert len(reader) == 9
        for epoch, number, ids in drawn_batches():
            saved = torch.load(tmp_path / "labels" / f"epoch_{epoch}" / f"batch_{number}.tar")
            views = reader.read((epoch, number))
            theirs = replayed(saved, [files[i] for i in ids], SIDE)
            ours = apply_views(views, store, reader.header.augmentation)
            if mix == "mixup":
                torch.testing.assert_close(mixed(theirs.float(), saved), ours, atol=1e-4, rtol=0)
            else:
                assert torch.equal(mixed(theirs, saved).float(), ours)
            assert saved[5].numpy().tobytes() == views.labels.tobytes()


def test_a_plain_build_is_not_replayed_by_epoch_and_says_so(cli: Cli, images: Path, tmp_path: Path) -> None:
    passed(cli("build", images, tmp_path / "pool", *SETTINGS))
    claims = exported(cli, tmp_path / "pool", tmp_path / "labels", "lpld")
    assert not any(claim["holds"] for claim in claims)
    assert "--replayable-by lpld" in str(claims[-1]["why"])
    done = cli("export", tmp_path / "pool", tmp_path / "sre2l", "--format", "sre2l")
    one_line_error(done, "--replayable-by sre2l")


def test_pruned_builds_are_replayed_by_batch_and_grow_in_their_order(
    cli: Cli, images: Path, tmp_path: Path
) -> None:
    pool = tmp_path / "pool"
    words = ("build", images, pool, *SETTINGS, "--replayable-by", "lpld")
    passed(cli(*words, "--ratio", 2))
    batch, _, epoch = exported(cli, pool, tmp_path / "few", "lpld")
    assert (batch["holds"], epoch["holds"]) == (True, False)
    refused = cli("build", images, pool, *SETTINGS, "--resize", "pil")
    one_line_error(refused, "'replayable_by' differs (expected lpld, got None)")
    passed(cli(*words))
    assert all(claim["holds"] for claim in exported(cli, pool, tmp_path / "all", "lpld")[::2])
