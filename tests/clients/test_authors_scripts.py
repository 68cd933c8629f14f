"""The authors' scripts in our words (examples/), fed by the very lines that the examples tell to put in.

Nothing of theirs is needed. Each loop unpacks, calls, mixes and accumulates as the script does, so what the
script would choke on fails here.
"""

from __future__ import annotations

import ast
import importlib
import textwrap
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lpld_labels import PoolReader
from lpld_labels.loader import pool_loader
from lpld_labels.render import normalise
from lpld_labels.transforms.codec_request import CodecRequest
from lpld_labels.transforms.encode import encode_pool
from tests.lpld_labels.loader.loader_pools import CLASSES, MEAN, STD, build, write_images

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
BATCH = 16


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), 40)


@pytest.fixture(scope="module")
def pools(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, PoolReader]:
    """Four epochs of batches of 16, 16 and 8 rows for every way to mix."""
    root = tmp_path_factory.mktemp("pools")
    kinds = ("none", "cutmix", "mixup", "cutout")
    return {kind: build(root / kind, images, kind, batch_size=BATCH) for kind in kinds}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


class Student(torch.nn.Module):
    """A small network that keeps what it was shown, and refuses empty batches as a real one does."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, 2), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten()
        )
        # Images of 16 x 16 pixels leave the first layer with 7 x 7.
        self.head = torch.nn.Linear(8 * 7 * 7, CLASSES)
        self.seen: list[torch.Tensor] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen.append(images.detach().clone())
        output: torch.Tensor = self.head(self.layers(images))
        return output


def script(name: str, pool: Any, images: Path, **arguments: Any) -> tuple[Any, dict[str, Any]]:
    """Return an example's module and the names that its block of lines defines in a script."""
    module = importlib.import_module(f"examples.{name}_script")
    doc = ast.get_docstring(ast.parse((EXAMPLES / f"{name}_script.py").read_text()))
    assert doc is not None
    block = textwrap.dedent("\n".join(line for line in doc.split("\n") if line.startswith("    ")))
    told = {"fkd_path": pool.location, "softlabel_path": pool.location, "train_dir": images, "workers": 0}
    args = Namespace(**{**told, "batch_size": BATCH, "gradient_accumulation_steps": 1, **arguments})
    names: dict[str, Any] = {"args": args, "traindir": images}
    exec(block, names)  # noqa: S102  # the lines a reader is told to copy
    return module, names


def as_the_teacher_saw(pool: PoolReader, images: Path) -> dict[tuple[int, int], torch.Tensor]:
    """Return the mixed and normalised images of every label batch."""
    loader = pool_loader(pool, images, policy="stored")
    shown = {}
    for _ in range(4):
        for batch in loader:
            shown[tuple(batch.keys[0, :2].tolist())] = batch.images
    return shown


def rows_seen(student: Student) -> list[int]:
    return [len(part) for part in student.seen]


@pytest.mark.parametrize("mix_type", [None, "cutmix", "mixup"])
@pytest.mark.parametrize("parts", [1, 4])
def test_sre2l(pools: dict[str, PoolReader], images: Path, mix_type: str | None, parts: int) -> None:
    pool = pools[mix_type or "none"]
    module, names = script("sre2l", pool, images, mix_type=mix_type, gradient_accumulation_steps=parts)
    names["args"].epochs, names["args"].temperature = 2, 20.0
    student = Student()
    losses = module.train(names["train_loader"], student, names["args"])
    assert len(losses) == 6
    # The last batch has 8 rows: half as many parts, none of them empty.
    small = BATCH // parts
    assert rows_seen(student) == [min(small, 16)] * 2 * parts + [min(small, 8)] * (8 // min(small, 8)) + [
        min(small, 16)
    ] * 2 * parts + [min(small, 8)] * (8 // min(small, 8))
    shown = as_the_teacher_saw(pool, images)
    expected = torch.cat([shown[epoch, batch] for epoch in range(2) for batch in range(3)])
    torch.testing.assert_close(torch.cat(student.seen), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("granularity", ["epoch", "batch", "batch_to_epoch"])
@pytest.mark.parametrize("dataset", ["imagenet1k", "imagenet21k", "tiny"])
def test_lpld(pools: dict[str, PoolReader], images: Path, dataset: str, granularity: str, parts: int) -> None:
    kind = {"imagenet1k": "cutmix", "imagenet21k": "cutout", "tiny": "none"}[dataset]
    pool = pools[kind]
    mix_type = "cutmix" if kind in ("cutmix", "cutout") else None
    module, names = script("lpld", pool, images, mix_type=mix_type, gradient_accumulation_steps=parts)
    args = names["args"]
    args.epochs, args.temperature, args.dataset = 3, 20.0, dataset
    args.granularity, args.prune_ratio = granularity, 0.0
    assert names["train_dataset"] is names["train_loader"].dataset
    student = Student()
    losses = module.train(names["train_loader"], student, args)
    assert len(losses) == 9
    assert all(rows > 0 for rows in rows_seen(student))
    if granularity == "batch_to_epoch":
        assert rows_seen(student) == [BATCH // parts] * 9 * parts
    shown = torch.cat(list(as_the_teacher_saw(pool, images).values())).flatten(1)
    for image in torch.cat(student.seen).flatten(1):
        assert (shown - image).abs().amax(dim=1).min() < 1e-5


def test_lpld_draws_from_a_pruned_pool_no_more_than_it_has(
    pools: dict[str, PoolReader], images: Path
) -> None:
    module, names = script("lpld", pools["cutmix"], images, mix_type="cutmix")
    args = names["args"]
    args.epochs, args.temperature, args.dataset, args.granularity = 40, 20.0, "imagenet1k", "batch"
    args.prune_ratio = 0.9
    assert len(module.train(names["train_loader"], Student(), args)) == 120
    args.prune_ratio = 0.0
    with pytest.raises(Exception, match="--prune_ratio"):
        module.train(names["train_loader"], Student(), args)


@pytest.mark.parametrize("label_quantization", [None, "MR-3"])
@pytest.mark.parametrize("stored", ["f16", "topk:4"])
def test_lpqld(
    images: Path, tmp_path: Path, pools: dict[str, PoolReader], label_quantization: str | None, stored: str
) -> None:
    pool = (
        pools["cutmix"]
        if stored == "f16"
        else build(tmp_path / "pool", images, batch_size=BATCH, codec=stored)
    )
    module, names = script("lpqld", pool, images, mix_type="cutmix", label_quantization=label_quantization)
    args = names["args"]
    assert args.total_num_batches == names["train_dataset"].total_num_batches == 8
    args.epochs, args.temperature = 2, 20.0
    student = Student()
    losses = module.train(names["train_loader"], student, args)
    assert len(losses) == 4
    assert rows_seen(student) == [BATCH] * 4


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("loss_type", ["kl", "mse_gt"])
@pytest.mark.parametrize("mix_type", [None, "cutmix"])
def test_gvbsm(
    pools: dict[str, PoolReader], images: Path, mix_type: str | None, loss_type: str, parts: int
) -> None:
    pool = pools[mix_type or "none"]
    module, names = script("gvbsm", pool, images, mix_type=mix_type, gradient_accumulation_steps=parts)
    args = names["args"]
    args.epochs, args.temperature, args.loss_type, args.ce_weight = 2, 20.0, loss_type, 0.1
    student = Student()
    assert len(module.train(names["train_loader"], student, args)) == 6
    shown = as_the_teacher_saw(pool, images)
    expected = torch.cat([shown[epoch, batch] for epoch in range(2) for batch in range(3)])
    torch.testing.assert_close(torch.cat(student.seen), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("soft_label_type", ["marginal_smoothing", "ori"])
def test_fkd(images: Path, tmp_path: Path, soft_label_type: str) -> None:
    pool = build(tmp_path / "full", images, "none", batch_size=BATCH, label_kind="probabilities")
    if soft_label_type != "ori":
        encode_pool(pool, tmp_path / "pool", CodecRequest(name="topk:3"))
        pool = PoolReader(tmp_path / "pool")
    module, names = script("fkd", pool, images, num_crops=2)
    args = SimpleNamespace(soft_label_type=soft_label_type, temp=1.0)
    student = Student()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    names["train_sampler"].set_epoch(1)
    losses = module.train(names["train_loader"], student, optimizer, args)
    assert len(losses) == len(names["train_loader"]) == 3
    assert rows_seen(student) == [32, 32, 16]
    losses += module.train(names["train_loader_single_crop"], student, optimizer, args)
    assert rows_seen(student)[3:] == [32, 8]
    assert sum(len(part) for part in student.seen[:3]) == 2 * len(pool.images)


@pytest.mark.parametrize("name", ["sre2l", "lpld", "lpqld", "gvbsm", "fkd"])
def test_examples_name_the_script_and_its_lines(name: str) -> None:
    doc = ast.get_docstring(ast.parse((EXAMPLES / f"{name}_script.py").read_text()))
    assert doc is not None
    assert "lines" in doc
    assert ".py" in doc
    assert f"from lpld_labels.loader import {name}_loader" in doc


def test_the_stand_in_for_a_script_divides_by_zero_where_the_script_does() -> None:
    """A short batch that is not the last is what the loaders must not give."""
    parts = importlib.import_module("examples.script_parts")
    student = Student()
    pixels = normalise(torch.zeros(8, 3, 16, 16), MEAN, STD)
    batch = (pixels, torch.zeros(8, CLASSES), torch.zeros(8, dtype=torch.int64))
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    with pytest.raises((ZeroDivisionError, ValueError)):
        parts.accumulated_step(
            student, optimizer, parts.softened_loss(20.0), batch, batch_size=16, parts=4, last=False
        )
