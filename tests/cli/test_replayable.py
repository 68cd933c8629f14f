"""`build --replayable-by`, then `export`: replayed as other programs do, the pixels are ours bit by bit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from click.testing import Result
from torch.utils.data import BatchSampler, RandomSampler

from lpld_labels import PoolReader
from lpld_labels.interop.layouts import TINY
from lpld_labels.render import ImageStore, apply_views
from lpld_labels.render.images import FolderImages
from tests.lpld_labels.interop.label_folders import IMAGES, write_images
from tests.lpld_labels.interop.restated import image_files, mixed, replayed

Cli = Callable[..., Result]
SIDE, BATCH, EPOCHS = 64, 8, 3
TEACHER = ("--teacher", "small-resnet10:width=8,stem_stride=2", "--teacher-weights", "random")
NORMALISATION = ("--mean", ",".join(map(str, TINY.mean)), "--std", ",".join(map(str, TINY.std)))
SETTINGS = (*TEACHER, *NORMALISATION, "--size", SIDE, "--batch-size", BATCH, "--epochs", EPOCHS)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images", size=75, per_class=5)


def built(cli: Cli, images: Path, out: Path, *words: object) -> Path:
    done = cli("build", images, out, *SETTINGS, *words)
    assert done.exit_code == 0, done.stderr
    return out


def exported(cli: Cli, pool: Path, folder: Path, label_format: str) -> list[dict[str, object]]:
    done = cli("export", pool, folder, "--format", label_format, "--json")
    assert done.exit_code == 0, done.stderr
    claims: list[dict[str, object]] = json.loads(done.stdout)["claims"]
    for claim in claims:
        assert f"{claim['program']}, {claim['option']}" in done.stderr
    return claims


def drawn_batches() -> Iterator[tuple[int, list[int]]]:
    """Yield (epoch, image ids of a batch) as a trainer's loader draws them, epoch after epoch."""
    generator = torch.Generator()
    generator.manual_seed(42)
    sampler = BatchSampler(RandomSampler(range(IMAGES), generator=generator), BATCH, drop_last=False)
    for epoch in range(EPOCHS):
        for ids in sampler:
            yield epoch, ids


def places() -> dict[tuple[int, int], int]:
    """Return (epoch, first image) -> number of the file, which is how the trainers look a batch up."""
    found: dict[tuple[int, int], int] = {}
    counts = [0] * EPOCHS
    for epoch, ids in drawn_batches():
        found[epoch, ids[0]] = counts[epoch]
        counts[epoch] += 1
    return found


@pytest.mark.parametrize(
    ("program", "mix"), [("sre2l", "cutmix"), ("lpld", "cutmix"), ("lpld", "mixup"), ("lpld", "none")]
)
def test_replay_is_exact(cli: Cli, images: Path, tmp_path: Path, program: str, mix: str) -> None:
    pool = built(cli, images, tmp_path / "pool", "--replayable-by", program, "--mix", mix)
    claims = exported(cli, pool, tmp_path / "labels", program)
    by_epoch = claims[-1]
    if program == "lpld":
        assert by_epoch["holds"], by_epoch
    files, numbers = image_files(images), places()
    with PoolReader(pool) as reader:
        store = ImageStore(FolderImages(images, reader.images))
        assert [images / path for path in reader.images.paths] == files
        batches = 0
        for epoch, ids in drawn_batches():
            number = numbers[epoch, ids[0]]
            saved = torch.load(tmp_path / "labels" / f"epoch_{epoch}" / f"batch_{number}.tar")
            views = reader.read((epoch, number))
            theirs = replayed(saved, [files[i] for i in ids], SIDE)
            ours = apply_views(views, store, reader.header.augmentation)
            if mix == "mixup":
                torch.testing.assert_close(mixed(theirs.float(), saved), ours, atol=1e-4, rtol=0)
            else:
                assert torch.equal(mixed(theirs, saved).float(), ours)
            assert saved[5].numpy().tobytes() == views.labels.tobytes()
            batches += 1
        assert batches == len(reader) == 9


def test_a_plain_build_is_not_replayed_by_epoch_and_says_so(cli: Cli, images: Path, tmp_path: Path) -> None:
    pool = built(cli, images, tmp_path / "pool")
    claims = exported(cli, pool, tmp_path / "labels", "lpld")
    assert not any(claim["holds"] for claim in claims)
    assert "--replayable-by lpld" in str(claims[-1]["why"])
    with PoolReader(pool) as reader:
        assert reader.read((0, 0)).images.tolist() != next(drawn_batches())[1]
    done = cli("export", pool, tmp_path / "sre2l", "--format", "sre2l")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "--replayable-by sre2l" in done.stderr


def test_pruned_builds_are_replayed_by_batch(cli: Cli, images: Path, tmp_path: Path) -> None:
    pool = built(cli, images, tmp_path / "pool", "--replayable-by", "lpld", "--ratio", 2)
    batch, _, epoch = exported(cli, pool, tmp_path / "labels", "lpld")
    assert (batch["holds"], epoch["holds"]) == (True, False)
    whole = built(cli, images, tmp_path / "whole", "--replayable-by", "lpld")
    with PoolReader(pool) as few, PoolReader(whole) as all_:
        for key in few.keys:
            assert few.read(key).images.tolist() == all_.read(key).images.tolist()
            assert few.read(key).labels.tobytes() == all_.read(key).labels.tobytes()


def test_a_build_grows_in_its_own_order_alone(cli: Cli, images: Path, tmp_path: Path) -> None:
    pool = built(cli, images, tmp_path / "pool", "--replayable-by", "lpld", "--ratio", 2)
    done = cli("build", images, pool, *SETTINGS, "--resize", "pil")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "'replayable_by' differs (expected lpld, got None)" in done.stderr
    built(cli, images, pool, "--replayable-by", "lpld")
    assert all(claim["holds"] for claim in exported(cli, pool, tmp_path / "labels", "lpld")[::2])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--replayable-by", "lpld", "--resize", "torch"), "resize by torch"),
        (("--replayable-by", "lpld", "--patches", 2), "shuffled patches"),
        (("--replayable-by", "sre2l", "--ratio", 2), "pruned pool"),
        (("--replayable-by", "sre2l", "--cutout", 0.5, "--no-flip"), "cut-outs"),
        (("--replayable-by", "lpld", "--cutout", 0.5, "--no-flip"), "paints otherwise"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    cli: Cli, images: Path, tmp_path: Path, words: tuple[object, ...], message: str
) -> None:
    done = cli("build", images, tmp_path / "pool", *SETTINGS, *words)
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1), done.stderr
    assert message in done.stderr
    assert not (tmp_path / "pool").exists()
