from __future__ import annotations

import re
from pathlib import Path

import torch

from lpld_labels.pool.pool_files import manifest_of
from tests.cli.build_runs import Cli, facts, passed
from tests.lpld_labels.interop.label_folders import write_epochs, write_images


def test_out_and_in_again(cli: Cli, tmp_path: Path) -> None:
    images = ("--images", write_images(tmp_path / "images"))
    write_epochs(tmp_path / "labels")
    pool = tmp_path / "pool"
    passed(cli("import", tmp_path / "labels", pool, *images))
    for name in ("sre2l", "lpld", "lpqld"):
        report = facts(cli("export", pool, tmp_path / name, "--format", name, "--json"))
        assert (report["format"], report["batches"], report["rows"]) == (name, 9, 60)
        passed(cli("import", tmp_path / name, tmp_path / f"from_{name}", *images))
        assert manifest_of(tmp_path / f"from_{name}").content_digest == manifest_of(pool).content_digest
    shown = passed(cli("export", pool, tmp_path / "top", "--format", "lpqld", "--top-k", 5)).stdout
    assert re.search(r"batches\W+9", shown)
    content = torch.load(tmp_path / "top" / "batch_0.tar")
    assert (content[5].shape, content[6].dtype) == ((8, 5), torch.int16)


def test_a_pruned_pool_comes_back_under_new_numbers(cli: Cli, tmp_path: Path) -> None:
    """As the help says; and what is odd of many epochs is said once."""
    images = ("--images", write_images(tmp_path / "images"))
    write_epochs(tmp_path / "many", epochs=24, ids_file=True)
    passed(cli("import", tmp_path / "many", tmp_path / "whole", *images))
    passed(cli("prune", tmp_path / "whole", tmp_path / "small", "--ratio", 2))
    passed(cli("export", tmp_path / "small", tmp_path / "out", "--format", "lpld"))
    again = facts(cli("import", tmp_path / "out", tmp_path / "again", *images, "--json"))
    (repeats,) = [line for line in again["odd"] if "more than once" in line]
    assert "epochs, the first" in repeats
    assert "comes back with new batch numbers" in " ".join(cli("export", "--help").stdout.split())
