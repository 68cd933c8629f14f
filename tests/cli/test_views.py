"""`lpld-labels encode --views`: views left out and put back from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from click.testing import Result

from lpld_labels import LabelBatch
from lpld_labels.format.drawing import draw_views
from tests.factories import make_batches, make_header, make_images, write_pool
from tests.label_factory import make_logits

Cli = Callable[..., Result]


def test_views_are_left_out_and_put_back(tmp_path: Path, cli: Cli) -> None:
    header, images = make_header(10, 10), make_images(40, classes=10)
    batches = []
    for number in range(8):
        views = draw_views(
            header.augmentation, images, seed=0, epoch=number // 4, batch=number % 4, batch_size=10
        )
        batches.append(LabelBatch(**vars(views), labels=make_logits(10, 10, seed=number).astype(np.float16)))
    write_pool(tmp_path / "pool", batches, header=header, images=images).close()
    drawn = cli("encode", tmp_path / "pool", tmp_path / "drawn", "--views", "drawn", "--json")
    assert drawn.exit_code == 0, drawn.stderr
    facts = json.loads(drawn.stdout)
    assert facts["bytes"]["smaller"] > 1
    assert cli("verify", tmp_path / "drawn").exit_code == 0
    assert json.loads(cli("inspect", tmp_path / "drawn", "--json").stdout)["views"] == "drawn"
    again = cli("encode", tmp_path / "drawn", tmp_path / "again", "--codec", "int8", "--views", "stored")
    assert again.exit_code == 0, again.stderr
    assert json.loads(cli("inspect", tmp_path / "again", "--json").stdout)["views"] == "stored"
    back = cli("encode", tmp_path / "drawn", tmp_path / "back", "--views", "stored", "--json")
    assert json.loads(back.stdout)["content_digest"] == facts["content_digest"]


def test_what_cannot_be_drawn_and_what_is_missing(tmp_path: Path, cli: Cli) -> None:
    write_pool(tmp_path / "pool", make_batches(1, 2)).close()
    refused = cli("encode", tmp_path / "pool", tmp_path / "out", "--views", "drawn")
    assert refused.exit_code == 1
    assert "--views stored" in refused.stderr
    assert not (tmp_path / "out").exists()
    assert "give --codec" in cli("encode", tmp_path / "pool", tmp_path / "out").stderr
