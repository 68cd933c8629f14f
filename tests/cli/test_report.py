from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.factories import make_batches, make_header, write_pool
from tests.lpld_labels.inspect.pages import picture_folder, read_page

Cli = Callable[..., Result]


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    table = picture_folder(tmp_path / "images", ["ant", "bee", "cat"])
    batches = make_batches(5, 8, rows=16, classes=3, images=table)
    write_pool(tmp_path / "pool", batches, header=make_header(3, 16), images=table).close()
    return tmp_path / "pool"


def test_a_page_is_written_and_its_size_told(cli: Cli, pool: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    result = cli("report", pool, "--images", tmp_path / "images", "--out", out)
    assert result.exit_code == 0, result.output
    assert "96 views shown" in result.stdout
    page = read_page(out.read_bytes())
    for text in ("ant", "Its size", "Crop area", "resnet18"):
        assert text in page.text, text
    assert len([1 for name, _ in page.tags if name == "image"]) == 3 * 96


def test_a_page_replaces_nothing_but_a_page(cli: Cli, pool: Path, tmp_path: Path) -> None:
    manifest = (pool / "pool.json").read_bytes()
    (tmp_path / "mine.html").write_text("<p>mine</p>")
    places = {pool / "pool.json": "inside an input", pool / "new.html": "inside an input"}
    places |= {tmp_path / "mine.html": "not a page", tmp_path: "directory"}
    for place, said in places.items():
        done = cli("report", pool, "--out", place)
        assert done.exit_code != 0
        assert said in " ".join(done.stderr.split()), place
        assert "Traceback" not in done.stderr
    assert (pool / "pool.json").read_bytes() == manifest
    assert (tmp_path / "mine.html").read_text() == "<p>mine</p>"
    assert not (pool / "new.html").exists()
    for _ in range(2):
        assert cli("report", pool, "--out", tmp_path / "page.html").exit_code == 0


def test_json_says_what_was_found(cli: Cli, pool: Path, tmp_path: Path) -> None:
    result = cli("report", pool, "--out", tmp_path / "r.html", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["rows_looked_at"] == 640
    assert found["bytes"] == (tmp_path / "r.html").stat().st_size
    assert isinstance(found["warnings"], list)


@pytest.mark.parametrize("codec", [("int4",), ("klt", "--fidelity", "0.9"), ("topk:1",)])
def test_a_comparison_says_what_a_codec_kept(
    cli: Cli, pool: Path, tmp_path: Path, codec: tuple[str, ...]
) -> None:
    coded = tmp_path / "coded"
    assert cli("encode", pool, coded, "--codec", *codec).exit_code == 0
    result = cli("report", coded, pool, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["pools"][0]["kept"]
    assert found["against"] == "pool"
    assert 0.3 < found["kept"]["20"] < 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--images", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_one_line(cli: Cli, pool: Path, tmp_path: Path, more: list[str], said: str) -> None:
    result = cli("report", pool, "--out", tmp_path / "r.html", *more)
    assert result.exit_code == 1
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "r.html").exists()


def test_pools_side_by_side_say_how_each_came_from_which(cli: Cli, pool: Path, tmp_path: Path) -> None:
    """The pool, its pruning and its klt encoding."""
    pruned, coded = tmp_path / "pruned", tmp_path / "coded"
    assert cli("prune", pool, pruned, "--ratio", 10).exit_code == 0
    encoded = cli("encode", pool, coded, "--codec", "klt", "--fidelity", "0.9")
    assert encoded.exit_code == 0, encoded.stderr
    result = cli("report", coded, pruned, pool, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
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
    table = cli("report", pool, pruned, coded)
    assert table.exit_code == 0
    words = " ".join(table.stdout.split())
    assert "pruned came from pool: pruned 10x (its lineage says so)." in words
    assert "pool (40 batches) and pruned (4) share 4, 4 of them identical bit for bit." in words
    assert "coded came from pool: encoded from f16 to klt (its lineage says so)." in words
    assert "pruned (4 batches) and coded (40) share 4, 0 of them identical bit for bit." in words
