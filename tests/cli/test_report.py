from pathlib import Path

import pytest

from tests.cli.build_runs import Cli, facts, one_line_error, passed
from tests.factories import make_batches, make_header, write_pool
from tests.lpld_labels.inspect.pages import picture_folder, read_page


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    table = picture_folder(tmp_path / "images", ["ant", "bee", "cat"])
    batches = make_batches(5, 8, rows=16, classes=3, images=table)
    write_pool(tmp_path / "pool", batches, header=make_header(3, 16), images=table).close()
    return tmp_path / "pool"


def test_a_page_is_written_and_its_size_told(cli: Cli, pool: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    result = passed(cli("report", pool, "--images", tmp_path / "images", "--out", out))
    assert "96 views shown" in result.stdout
    page = read_page(out.read_bytes())
    for text in ("ant", "Its size", "Crop area", "resnet18"):
        assert text in page.text, text
    assert len([1 for name, _ in page.tags if name == "image"]) == 3 * 96
    # Our own page is replaced.
    found = facts(cli("report", pool, "--out", out, "--json"))
    assert found["rows_looked_at"] == 640
    assert found["bytes"] == out.stat().st_size
    assert isinstance(found["warnings"], list)


def test_a_page_replaces_nothing_but_a_page(cli: Cli, pool: Path, tmp_path: Path) -> None:
    manifest = (pool / "pool.json").read_bytes()
    (tmp_path / "mine.html").write_text("<p>mine</p>")
    one_line_error(cli("report", pool, "--out", pool / "pool.json"), "inside an input")
    one_line_error(cli("report", pool, "--out", tmp_path / "mine.html"), "not a page")
    assert (pool / "pool.json").read_bytes() == manifest
    assert (tmp_path / "mine.html").read_text() == "<p>mine</p>"


def test_pools_side_by_side_say_how_each_came_from_which(cli: Cli, pool: Path, tmp_path: Path) -> None:
    """The pool, its pruning and its klt encoding."""
    pruned, coded = tmp_path / "pruned", tmp_path / "coded"
    passed(cli("prune", pool, pruned, "--ratio", 10))
    passed(cli("encode", pool, coded, "--codec", "klt", "--fidelity", "0.9"))
    found = facts(cli("report", coded, pruned, pool, "--json"))
    relations = {
        (r["first"], r["second"]): (r["steps"], r["shared"], r["identical"]) for r in found["relations"]
    }
    assert relations == {
        ("coded", "pruned"): ([], 4, 0),
        ("pool", "coded"): (["encode"], 40, 0),
        ("pool", "pruned"): (["prune"], 4, 4),
    }
    klt, random, original = found["pools"]
    assert klt["kept"]["against"] == "pool"
    assert klt["kept"]["kept"]["20"] > 0.85
    assert random["kept"] is original["kept"] is None
    words = " ".join(passed(cli("report", pool, pruned, coded)).stdout.split())
    assert "pruned came from pool: pruned 10x (its lineage says so)." in words
    assert "pool (40 batches) and pruned (4) share 4, 4 of them identical bit for bit." in words
    assert "coded came from pool: encoded from f16 to klt (its lineage says so)." in words
    assert "pruned (4 batches) and coded (40) share 4, 0 of them identical bit for bit." in words
