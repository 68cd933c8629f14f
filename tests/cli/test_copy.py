"""`copy`: to and from addresses, merged, with images in and out. A pool with its images needs no folder."""

from pathlib import Path

import pytest

from lpld_labels.pool.pool_files import manifest_of
from tests.cli.build_runs import TEACHER, Cli, facts, one_line_error, passed
from tests.factories import make_batches, write_pool
from tests.lpld_core.image_folders import NETWORK, write_images


def test_parts_are_merged(cli: Cli, tmp_path: Path) -> None:
    batches = make_batches(2, 4)
    whole = write_pool(tmp_path / "whole", batches).manifest
    parts = [tmp_path / "one", tmp_path / "two"]
    for number, part in enumerate(parts):
        write_pool(part, batches[number::2]).close()
    found = facts(cli("copy", *parts, tmp_path / "merged", "--json"))
    assert (found["batches"], found["content_digest"]) == (8, whole.content_digest)


def test_images_go_in_and_out(cli: Cli, built: Path, images: Path, tmp_path: Path) -> None:
    packed, again = tmp_path / "packed", tmp_path / "again"
    found = facts(cli("copy", built, packed, "--images", images, "--json"))
    assert found["images"] == 27
    assert found["bytes"] > found["image_bytes"] > sum(path.stat().st_size for path in images.rglob("*.png"))
    assert found["content_digest"] == manifest_of(built).content_digest
    assert "finished before" in passed(cli("copy", built, packed, "--images", images)).stderr
    found = facts(cli("copy", packed, again, "--unpack", "--json"))
    assert (found["images"], found["written"]) == (27, 27)
    for path in sorted(images.rglob("*.png")):
        assert (again / path.relative_to(images)).read_bytes() == path.read_bytes()
    assert "finished before" in passed(cli("copy", packed, again, "--unpack")).stderr
    changed = write_images(tmp_path / "changed", per_class=10)
    refused = cli("copy", built, tmp_path / "out", "--images", changed)
    one_line_error(refused, "has changed since it was labelled")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("remote", [False, True], ids=["here", "s3"])
def test_a_packed_pool_is_enough_for_every_command(
    cli: Cli,
    built: Path,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    remote: bool,
) -> None:
    monkeypatch.setenv("LPLD_LABELS_CACHE", str(tmp_path / "cache"))
    pool = f"{request.getfixturevalue('bucket')}/packed" if remote else str(tmp_path / "packed")
    passed(cli("copy", built, pool, "--images", images))
    student = ("--student", NETWORK, "--threads", 1, "--epochs", 1, "--preset", "tiny")
    passed(cli("train", pool, "--out", tmp_path / "own", *student))
    passed(cli("train", built, "--images", images, "--out", tmp_path / "folder", *student))
    weights = [(tmp_path / name / "student.safetensors").read_bytes() for name in ("own", "folder")]
    assert weights[0] == weights[1]
    assert "true: 27 rows" in passed(cli("verify", pool, *TEACHER, "--batches", 3)).stdout
    page = facts(cli("report", pool, "--out", tmp_path / "page.html", "--json"))
    assert (tmp_path / "page.html").read_text().count("data:image/jpeg") > page["views"] > 0
    smaller = tmp_path / "smaller"
    passed(cli("prune", pool, smaller, "--ratio", 2))
    passed(cli("verify", smaller, *TEACHER, "--batches", 1))
    lines = facts(cli("inspect", pool, "--recipe", "--json"))["lines"]
    assert lines[-1] == "lpld-labels copy POOL1 POOL --images IMAGES"
    assert facts(cli("inspect", f"{pool}/pool.json", "--recipe", "--json"))["lines"] == lines
    assert "The images are inside." in passed(cli("inspect", pool, "--card", "-")).stdout
    assert f"{pool}/README.md" in passed(cli("inspect", pool, "--card")).stdout
    passed(cli("copy", pool, tmp_path / "again", "--unpack"))
    for path in sorted(images.rglob("*.png")):
        assert (tmp_path / "again" / path.relative_to(images)).read_bytes() == path.read_bytes()
