"""A short run of the demo."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from PIL import Image

from lpld_labels.pool.reader import PoolReader


def test_the_demo_goes_the_whole_way(tmp_path: Path, cli: Callable[..., Result]) -> None:
    pytest.importorskip("sklearn")
    out = tmp_path / "out"
    stale = out / "pool_lpld_1x/pool.json"
    stale.parent.mkdir(parents=True)
    stale.write_text("left by an earlier demo")
    result = cli("demo", "--out", out, "--epochs", 8, "--teacher-epochs", 1, "--iterations", 3)
    assert result.exit_code == 0, result.output
    assert "Label bytes against accuracy" in result.stdout
    assert "similarity" in result.stdout
    lines = {line["name"]: line for line in json.loads((out / "table.json").read_text())["lines"]}
    pools = [f"{source}, {ratio}x" for source in ("lpld", "sre2l") for ratio in (1, 10, 40)]
    assert list(lines) == ["teacher", "real images, true classes", "real, 1x", *pools]
    assert [lines[name]["batches"] for name in pools] == [40, 4, 1] * 2
    assert all(0 <= line["top1"] <= 1 for line in lines.values())
    for name in ("accuracy.png", "diversity.png", "lpld/contact_sheet.png", "sre2l/contact_sheet.png"):
        with Image.open(out / name) as picture:
            assert picture.width > 100
    with PoolReader(out / "pool_lpld_40x") as small, PoolReader(out / "pool_lpld_1x") as full:
        assert len(full.images) == 100
        for key in small.keys:
            assert (small.read_labels(key) == full.read_labels(key)).all()
