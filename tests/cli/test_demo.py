from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from PIL import Image

from lpld_labels.reader import PoolReader


def test_the_demo_goes_the_whole_way(tmp_path: Path, cli: Callable[..., Result]) -> None:
    pytest.importorskip("sklearn")
    stale = tmp_path / "out/pool_1x/pool.json"
    stale.parent.mkdir(parents=True)
    stale.write_text("left by an earlier demo")
    result = cli("demo", "--out", tmp_path / "out", "--epochs", 8, "--teacher-epochs", 1)
    assert result.exit_code == 0, result.output
    assert "Label bytes against accuracy" in result.stdout
    lines = json.loads((tmp_path / "out/table.json").read_text())["lines"]
    assert [line["name"] for line in lines] == ["teacher", "hard labels", "1x", "10x", "40x"]
    assert [line["batches"] for line in lines[2:]] == [40, 4, 1]
    assert lines[2]["label_bytes"] > lines[3]["label_bytes"] > lines[4]["label_bytes"]
    assert all(0 <= line["top1"] <= 1 for line in lines)
    with Image.open(tmp_path / "out/accuracy.png") as plot:
        assert plot.size == (720, 480)
    with PoolReader(tmp_path / "out/pool_40x") as small, PoolReader(tmp_path / "out/pool_1x") as full:
        assert len(full.images) == 100
        for key in small.keys:
            assert (small.read_labels(key) == full.read_labels(key)).all()
