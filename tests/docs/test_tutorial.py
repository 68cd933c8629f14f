"""The tutorial's commands lead from a folder of images to a student, in their order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result
from PIL import Image

from lpld_labels import PoolReader
from tests.docs.documents import PROJECT, blocks, commands

Cli = Callable[..., Result]
SMALLER = {
    "--size 64": "--size 32 --threads 1",
    "width=32": "width=8",
    "--train-teacher": "--train-teacher --epochs 2",
    "--ipc 10": "--ipc 4 --iterations 3 --threads 1",
    "--epochs 300": "--epochs 20",
    "--preset tiny": "--preset tiny --evaluate-every 5 --threads 1",
    "--batch-size 20": "--batch-size 4",
}
"""What the tutorial says, and what is run in its place so that a test can wait for it."""


def write_photos(folder: Path, *, per_class: int, seed: int) -> None:
    """Write noise around a colour of each class's own."""
    rng = np.random.default_rng(seed)
    for name, color in (("cats", (200, 60, 60)), ("dogs", (60, 60, 200)), ("owls", (60, 180, 60))):
        (folder / name).mkdir(parents=True)
        for number in range(per_class):
            pixels = np.clip(rng.normal(color, 40, (44, 36, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number:04d}.jpg")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    write_photos(tmp_path / "photos" / "train", per_class=12, seed=0)
    write_photos(tmp_path / "photos" / "val", per_class=4, seed=1)
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path
    torch.set_num_threads(threads)


def test_the_tutorial_ends_with_a_student(folder: Path, cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    text = (PROJECT / "docs" / "tutorial.md").read_text()
    unused = {shown for shown in SMALLER if shown not in text}
    assert not unused
    for shown, run in SMALLER.items():
        text = text.replace(shown, run)
    namespace: dict[str, object] = {}
    for block in blocks(text):
        if block.language == "sh":
            for program, *words in commands(block.code):
                assert program == "lpld-labels"
                done = cli(*words)
                assert done.exit_code == 0, (words, done.output)
        elif block.language == "python":
            exec(compile("\n" * block.line + block.code, "tutorial.md", "exec"), namespace)  # noqa: S102
    assert "torch.Size([12, 3, 32, 32])" in capsys.readouterr().out
    with PoolReader("pool") as whole, PoolReader("small10") as small:
        assert whole.manifest.counts.batches == 60
        assert small.manifest.counts.batches == 6
        assert [step.operation for step in small.header.lineage] == ["build", "prune", "encode"]
    log = [json.loads(line) for line in (folder / "student" / "log.jsonl").read_text().splitlines()]
    assert len(log) == 20
    assert log[-1]["loss"] < log[0]["loss"]
    assert 0 <= log[-1]["top1"] <= 1
    assert (folder / "student" / "student.safetensors").exists()
