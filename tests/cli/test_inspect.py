"""`lpld-labels inspect`."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result

from lpld_labels.format import schema
from lpld_labels.format.manifest import LineageStep
from lpld_labels.inspect.summary import pickle_layout
from tests.factories import make_batch, make_batches, make_header, make_images, write_pool

Cli = Callable[..., Result]
KEYS = {
    "format_version",
    "classes",
    "images",
    "epochs",
    "batches",
    "rows",
    "batch_size",
    "codec",
    "bytes",
    "ratio",
    "content_digest",
    "lineage",
}
COMPONENTS = list(schema.COMPONENTS)


@pytest.mark.parametrize("codec", ["f16", "f16:plain", "int8"])
def test_every_byte_is_accounted_for(tmp_path: Path, cli: Cli, codec: str) -> None:
    path = tmp_path / "pool"
    batches = make_batches(3, 4, cutout=True, patches=2)
    write_pool(path, batches, codec=codec).close()
    result = cli("inspect", path, "--json")
    assert result.exit_code == 0
    summary = json.loads(result.stdout)
    assert set(summary) >= KEYS
    assert list(summary["bytes"]["components"]) == COMPONENTS
    on_disk = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    assert sum(summary["bytes"]["components"].values()) == summary["bytes"]["total"] == on_disk
    assert summary["bytes"]["logical_fp16"] == 12 * 8 * 10 * 2
    assert summary["ratio"] == pytest.approx(summary["bytes"]["logical_fp16"] / on_disk, abs=1e-3)
    assert summary["bytes"]["components"]["labels"] >= 12 * 8 * 10 * (1 if codec == "int8" else 1.5)


def test_counts_and_coverage(tmp_path: Path, cli: Cli) -> None:
    images = make_images(20, classes=10)
    batches = [make_batch(0, b, images=images, rows=8 if b < 2 else 3) for b in range(3)]
    lineage = (LineageStep(operation="build", parameters={"ratio": 4}),)
    write_pool(tmp_path / "pool", batches, header=make_header(lineage=lineage), images=images).close()
    summary = json.loads(cli("inspect", tmp_path / "pool", "--json").stdout)
    seen = np.concatenate([batch.images for batch in batches])
    views = np.bincount(seen, minlength=20)
    assert summary["views_per_image"] == {
        "minimum": views.min(),
        "median": float(np.median(views)),
        "maximum": views.max(),
    }
    assert summary["images_covered"] == len(np.unique(seen))
    assert summary["classes_covered"] == len(np.unique(images.classes[seen]))
    assert (summary["batches"], summary["incomplete_batches"], summary["rows"]) == (3, 1, 19)
    assert summary["lineage"] == [{"operation": "build", "parent_digest": None, "parameters": {"ratio": 4}}]
    text = cli("inspect", tmp_path / "pool").stdout
    assert "build (ratio 4)" in text
    assert "(1 incomplete)" in text


@pytest.mark.parametrize(
    ("rows", "classes", "mixed"), [(128, 1000, True), (64, 200, False), (1024, 1000, True)]
)
def test_the_pickle_layout_is_estimated_within_one_percent(rows: int, classes: int, mixed: bool) -> None:
    sink = io.BytesIO()
    batch = [
        torch.zeros(rows, 4),
        torch.zeros(rows, dtype=torch.bool),
        torch.zeros(rows, dtype=torch.int64) if mixed else None,
        0.5 if mixed else None,
        [1, 2, 3, 4] if mixed else None,
        torch.zeros(rows, classes, dtype=torch.float16),
    ]
    torch.save(batch, sink)
    estimate = sum(pickle_layout(rows, 1, classes, mixed=mixed).values())
    written = len(sink.getvalue())
    if b".format_version" not in sink.getvalue():
        written += 320  # two small records that older torch did not write
    assert estimate == pytest.approx(written, rel=0.01)


def test_an_empty_pool_is_shown(tmp_path: Path, cli: Cli) -> None:
    write_pool(tmp_path / "pool", []).close()
    assert json.loads(cli("inspect", tmp_path / "pool", "--json").stdout)["rows"] == 0
    assert cli("inspect", tmp_path / "pool").exit_code == 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["inspect"], 2, "Missing argument"),
        (["inspect", "nowhere"], 1, "not a label pool"),
        (["inspect", "nowhere", "--jsn"], 2, "No such option"),
        (["inspct", "nowhere"], 2, "No such command"),
    ],
)
def test_bad_input(cli: Cli, words: list[str], code: int, message: str) -> None:
    result = cli(*words)
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not result.stdout


def test_nothing_but_json_on_stdout(tmp_path: Path, cli: Cli) -> None:
    write_pool(tmp_path / "pool", make_batches()).close()
    assert isinstance(json.loads(cli("inspect", tmp_path / "pool", "--json").stdout), dict)
