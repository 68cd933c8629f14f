"""`inspect`: contents and size, and the card. Recipes are in test_recipe.py."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch

from lpld_labels.format import schema
from lpld_labels.format.manifest import LineageStep
from lpld_labels.inspect.summary import pickle_layout
from lpld_labels.pool.own_files import is_untouched_card
from lpld_labels.pool.pool_files import manifest_of
from tests.cli.build_runs import Cli, facts, one_line_error, passed
from tests.factories import make_batch, make_batches, make_header, make_images, write_pool
from tests.lpld_labels.loader.loader_pools import build, write_images

COMPONENTS = list(schema.COMPONENTS)


@pytest.mark.parametrize("codec", ["f16", "f16:plain", "int8"])
def test_every_byte_is_accounted_for(tmp_path: Path, cli: Cli, codec: str) -> None:
    path = tmp_path / "pool"
    write_pool(path, make_batches(3, 4, cutout=True, patches=2), codec=codec).close()
    summary = facts(cli("inspect", path, "--json"))
    expected = "format_version classes images epochs batches rows batch_size codec bytes ratio content_digest"
    assert set(summary) >= {*expected.split(), "lineage"}
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
    summary = facts(cli("inspect", tmp_path / "pool", "--json"))
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
    text = passed(cli("inspect", tmp_path / "pool")).stdout
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
    assert facts(cli("inspect", tmp_path / "pool", "--json"))["rows"] == 0
    passed(cli("inspect", tmp_path / "pool"))


def test_the_card_says_what_there_is(cli: Cli, tmp_path: Path) -> None:
    plain, small = tmp_path / "plain", tmp_path / "small"
    build(plain, write_images(tmp_path / "images"), codec="f16:plain").close()
    passed(cli("inspect", plain, "--card", "--license", "CC-BY-4.0", "--name", "Thirty images"))
    text = (plain / "README.md").read_text()
    assert "config_name: views" in text
    assert "config_name: labels" in text
    assert 'license: "cc-by-4.0"' in text.lower()
    assert "# Thirty images" in text
    passed(cli("verify", plain, "--strict"))
    passed(cli("encode", plain, small, "--codec", "int8", "--views", "drawn"))
    text = passed(cli("inspect", small, "--card", "-")).stdout
    for part in (
        manifest_of(small).content_digest,
        'pool_loader("small", "IMAGES", batch_size=64)',
        "lpld-labels encode",
        "| labels |",
        "T = 20:",
        "mean",
        'lpld-labels verify "small"',
    ):
        assert part in text, part
    for part in ("config_name: views", "config_name: labels", "license"):
        assert part not in text
    assert not (small / "README.md").exists()


def test_edited_cards_are_only_replaced_on_demand(cli: Cli, tmp_path: Path) -> None:
    pool, card = tmp_path / "pool", tmp_path / "pool" / "README.md"
    for name in ("pool", "other"):
        write_pool(tmp_path / name, make_batches()).close()
    passed(cli("inspect", pool, "--card"))
    assert is_untouched_card(card)
    assert "already up to date" in passed(cli("inspect", pool, "--card")).stderr
    passed(cli("inspect", pool, "--card", "--license", "mit"))
    assert 'license: "mit"' in card.read_text()
    card.write_text(card.read_text().replace("# pool", "# My pool"))
    one_line_error(cli("inspect", pool, "--card"))
    assert "# My pool" in card.read_text()
    # Nor is a pool replaced that has words of its own.
    assert cli("prune", tmp_path / "other", pool, "--ratio", 2, "--overwrite").exit_code == 1
    passed(cli("inspect", pool, "--card", "--overwrite"))
    passed(cli("prune", tmp_path / "other", pool, "--ratio", 2, "--overwrite"))
    assert not card.exists()
