"""`inspect`: contents and size, and the card. Recipes are in test_recipe.py."""

from pathlib import Path

from lpld_labels.format.manifest import LineageStep
from lpld_labels.pool.pool_files import manifest_of
from tests.cli.build_runs import Cli, facts, passed
from tests.factories import make_batch, make_header, make_images, write_pool
from tests.lpld_labels.loader.loader_pools import build, write_images


def test_contents_and_size_are_shown(tmp_path: Path, cli: Cli) -> None:
    images = make_images(20, classes=10)
    batches = [make_batch(0, b, images=images, rows=8 if b < 2 else 3) for b in range(3)]
    lineage = (LineageStep(operation="build", parameters={"ratio": 4}),)
    write_pool(tmp_path / "pool", batches, header=make_header(lineage=lineage), images=images).close()
    summary = facts(cli("inspect", tmp_path / "pool", "--json"))
    assert (summary["batches"], summary["incomplete_batches"], summary["rows"]) == (3, 1, 19)
    assert summary["lineage"] == [{"operation": "build", "parent_digest": None, "parameters": {"ratio": 4}}]
    text = passed(cli("inspect", tmp_path / "pool")).stdout
    assert "build (ratio 4)" in text
    assert "(1 incomplete)" in text


def test_an_empty_pool_is_shown(tmp_path: Path, cli: Cli) -> None:
    write_pool(tmp_path / "pool", []).close()
    assert facts(cli("inspect", tmp_path / "pool", "--json"))["rows"] == 0
    passed(cli("inspect", tmp_path / "pool"))


def test_the_card_says_what_there_is(cli: Cli, tmp_path: Path) -> None:
    plain, small = tmp_path / "plain", tmp_path / "small"
    build(plain, write_images(tmp_path / "images"), codec="f16:plain").close()
    words = ("inspect", plain, "--card", "--license", "CC-BY-4.0", "--name", "Thirty images")
    passed(cli(*words))
    text = (plain / "README.md").read_text()
    assert "already up to date" in passed(cli(*words)).stderr
    assert "config_name: views" in text
    assert "config_name: labels" in text
    assert 'license: "cc-by-4.0"' in text.lower()
    assert "# Thirty images" in text
    passed(cli("verify", plain, "--strict"))
    passed(cli("encode", plain, small, "--codec", "int8", "--views", "drawn"))
    text = passed(cli("inspect", small, "--card", "-")).stdout
    for part in (
        manifest_of(small).content_digest,
        'pool_loader("POOL", "IMAGES", batch_size=64)',
        "lpld-labels encode",
        "| labels |",
        "T = 20:",
        "mean",
        "lpld-labels verify POOL --images IMAGES",
    ):
        assert part in text, part
    for part in ("config_name: views", "config_name: labels", "license"):
        assert part not in text
    assert not (small / "README.md").exists()
