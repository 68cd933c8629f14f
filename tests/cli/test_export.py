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
