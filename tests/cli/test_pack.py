"""`copy` with images in and out, `build --pack`: from an image folder to a student with the pool alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from lpld_labels import PoolReader
from lpld_labels.pool.packing import packed_images
from tests.cli.build_runs import one_line_error
from tests.lpld_core.image_folders import NETWORK, SIDE, write_images

Cli = Callable[..., Result]
TEACHER = ("--teacher", NETWORK, "--teacher-weights", "random", "--size", SIDE, "--threads", 1)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "folder")


def run(cli: Cli, *words: object) -> Result:
    result = cli(*words)
    assert result.exit_code == 0, result.output
    return result


def build(cli: Cli, images: Path, out: Path, *words: object) -> Path:
    run(cli, "build", images, out, *TEACHER, "--epochs", 2, "--batch-size", 9, *words)
    return out


def test_pack_and_unpack(cli: Cli, images: Path, tmp_path: Path) -> None:
    pool, packed, again = build(cli, images, tmp_path / "pool"), tmp_path / "packed", tmp_path / "again"
    facts = json.loads(run(cli, "copy", pool, packed, "--images", images, "--json").stdout)
    assert facts["images"] == 27
    assert facts["bytes"] > facts["image_bytes"] > sum(path.stat().st_size for path in images.rglob("*.png"))
    assert facts["content_digest"] == json.loads(run(cli, "inspect", pool, "--json").stdout)["content_digest"]
    assert "finished before" in run(cli, "copy", pool, packed, "--images", images).stderr
    facts = json.loads(run(cli, "copy", packed, again, "--unpack", "--json").stdout)
    assert (facts["images"], facts["written"]) == (27, 27)
    for path in sorted(images.rglob("*.png")):
        assert (again / path.relative_to(images)).read_bytes() == path.read_bytes()
    assert "finished before" in run(cli, "copy", packed, again, "--unpack").stderr
    # What was unpacked is an image folder like any other.
    assert "whole" in run(cli, "verify", pool, "--images", again, *TEACHER[:-2]).stdout


def test_a_packed_pool_is_enough_for_every_command(cli: Cli, images: Path, tmp_path: Path) -> None:
    pool = build(cli, images, tmp_path / "pool", "--pack")
    student = ("--student", NETWORK, "--threads", 1, "--epochs", 1, "--preset", "tiny")
    run(cli, "train", pool, "--out", tmp_path / "own", *student)
    run(cli, "train", pool, "--images", images, "--out", tmp_path / "folder", *student)
    weights = [(tmp_path / name / "student.safetensors").read_bytes() for name in ("own", "folder")]
    assert weights[0] == weights[1]
    assert "true: 27 rows" in run(cli, "verify", pool, *TEACHER, "--batches", 3).stdout
    page = json.loads(run(cli, "report", pool, "--out", tmp_path / "page.html", "--json").stdout)
    assert page["views"] > 0
    assert (tmp_path / "page.html").read_text().count("data:image/jpeg") > page["views"]
    smaller = tmp_path / "smaller"
    run(cli, "prune", pool, smaller, "--ratio", 2)
    run(cli, "verify", smaller, *TEACHER, "--batches", 1)


def test_building_again_packs_what_is_there_and_growing_keeps_it(
    cli: Cli, images: Path, tmp_path: Path
) -> None:
    pool = build(cli, images, tmp_path / "pool", "--ratio", 3)
    digest = PoolReader(pool).manifest.content_digest
    build(cli, images, pool, "--ratio", 3, "--pack")
    with PoolReader(pool) as found:
        assert found.manifest.content_digest == digest
        files = found.manifest.files_of("packed")
    assert files
    build(cli, images, pool)
    with PoolReader(pool) as found:
        assert found.manifest.counts.batches == 6
        assert found.manifest.files_of("packed") == files
        assert packed_images(found) is not None
    run(cli, "verify", pool)


def test_a_changed_image_is_refused(cli: Cli, images: Path, tmp_path: Path) -> None:
    pool = build(cli, images, tmp_path / "pool")
    other = write_images(tmp_path / "other", per_class=10)
    result = cli("copy", pool, tmp_path / "out", "--images", other)
    assert result.exit_code == 1
    one_line_error(result)
    assert "has changed since it was labelled" in result.stderr
    assert not (tmp_path / "out").exists()
