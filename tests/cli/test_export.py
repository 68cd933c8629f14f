"""``lpld-labels export`` from the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result

from lpld_labels import PoolReader
from tests.lpld_labels.interop.label_folders import write_epochs, write_images

Cli = Callable[..., Result]


@pytest.fixture
def pool(cli: Cli, tmp_path: Path) -> Path:
    write_images(tmp_path / "images")
    write_epochs(tmp_path / "labels")
    done = cli("import", tmp_path / "labels", tmp_path / "pool", "--images", tmp_path / "images")
    assert done.exit_code == 0, done.stderr
    return tmp_path / "pool"


@pytest.mark.parametrize("label_format", ["sre2l", "lpld", "lpqld"])
def test_out_and_in_again(cli: Cli, pool: Path, tmp_path: Path, label_format: str) -> None:
    done = cli("export", pool, tmp_path / "out", "--format", label_format, "--json")
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["format"], report["batches"], report["rows"]) == (label_format, 9, 60)
    again = cli("import", tmp_path / "out", tmp_path / "again", "--images", tmp_path / "images", "--json")
    assert again.exit_code == 0, again.stderr
    digests = [
        json.loads((path / "pool.json").read_text())["content_digest"] for path in (pool, tmp_path / "again")
    ]
    assert digests[0] == digests[1]


def test_top_k(cli: Cli, pool: Path, tmp_path: Path) -> None:
    done = cli("export", pool, tmp_path / "out", "--format", "lpqld", "--top-k", 5)
    assert done.exit_code == 0, done.stderr
    assert re.search(r"batches\W+9", done.stdout)
    assert re.search(r"rows\W+60", done.stdout)
    content = torch.load(tmp_path / "out" / "batch_0.tar")
    assert (content[5].shape, content[6].dtype) == ((8, 5), torch.int16)


def test_refusals_are_one_line(cli: Cli, pool: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "mine").mkdir(parents=True)
    for words, message in (
        (("export", pool, tmp_path / "out", "--format", "lpld"), "already here"),
        (("export", tmp_path / "nothing", tmp_path / "x", "--format", "lpld"), "not a label pool"),
        (("export", pool, tmp_path / "x", "--format", "lpqld", "--top-k", "21"), "--top-k"),
    ):
        done = cli(*words)
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert message in done.stderr
    assert cli("export", pool, tmp_path / "x").exit_code == 2
    assert not (tmp_path / "x").exists()


def test_a_pruned_pool_comes_back_under_new_numbers(cli: Cli, tmp_path: Path) -> None:
    """As the help says; and what is odd of many epochs is said once."""
    write_images(tmp_path / "images")
    images = ("--images", tmp_path / "images")
    write_epochs(tmp_path / "many", epochs=24, ids_file=True)
    assert cli("import", tmp_path / "many", tmp_path / "whole", *images).exit_code == 0
    assert cli("prune", tmp_path / "whole", tmp_path / "small", "--ratio", 2).exit_code == 0
    assert cli("export", tmp_path / "small", tmp_path / "out", "--format", "lpld").exit_code == 0
    again = cli("import", tmp_path / "out", tmp_path / "again", *images, "--json")
    assert again.exit_code == 0, again.stderr
    repeats = [line for line in json.loads(again.stdout)["odd"] if "more than once" in line]
    assert len(repeats) == 1
    assert "epochs, the first" in repeats[0]
    with PoolReader(tmp_path / "small") as small, PoolReader(tmp_path / "again") as other:
        assert list(small.keys) != list(other.keys)
        for ours, theirs in zip(small, other, strict=True):
            assert np.array_equal(ours.labels, theirs.labels)
            assert np.array_equal(ours.images, theirs.images)
    assert "comes back with new batch numbers" in " ".join(cli("export", "--help").stdout.split())
