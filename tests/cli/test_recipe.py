"""`inspect --recipe` and `build --like`: a manifest, images and teacher make a pool again, to the digest."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from lpld_cli.recipe import recipe

from lpld_labels import PoolReader, PoolWriter
from lpld_labels.format.manifest import LineageStep
from lpld_labels.pool.pool_files import manifest_of
from lpld_labels.transforms.selection import kept_count, ratio_that_keeps
from tests.cli.build_runs import one_line_error
from tests.factories import make_batches, make_header, make_images, write_pool
from tests.lpld_core.image_folders import NETWORK, SIDE, write_images

Cli = Callable[..., Result]
TEACHER = f"--teacher {NETWORK} --teacher-weights random --size {SIDE} --threads 1"
SMALL = f"{TEACHER} --epochs 5 --batch-size 5 --seed 3"
OTHER = NETWORK.replace("width=8", "width=12")

PASTS: dict[str, tuple[str, ...]] = {
    "plain": (f"build IMAGES POOL {SMALL} --mix none --no-flip --crop-scale 0.3 0.9",),
    "mixup, drawn": (f"build IMAGES POOL {SMALL} --mix mixup --views drawn",),
    "patches, cut-out, pil": (
        f"build IMAGES POOL {SMALL} --patches 2 --cutout 0.4 --resize pil --mix cutmix",
    ),
    "packed later": (
        f"build IMAGES POOL1 {SMALL} --ratio 8",
        "encode POOL1 POOL2 --codec int8",
        "copy POOL2 POOL --images IMAGES",
    ),
    "ratio, int8": (f"build IMAGES POOL {SMALL} --mix cutmix --ratio 3.7 --codec int8",),
    "replayable": (f"build IMAGES POOL {SMALL} --replayable-by lpld --codec topk:2:8",),
    "ensemble": (f"build IMAGES POOL {SMALL} --teacher {OTHER} --teacher-weights random --ratio 4",),
    "grown": (
        f"build IMAGES POOL {SMALL} --ratio 8",
        f"build IMAGES POOL {SMALL} --ratio 2",
    ),
    "pruned twice": (
        f"build IMAGES POOL1 {SMALL} --mix cutmix",
        "prune POOL1 POOL2 --ratio 3",
        "prune POOL2 POOL --ratio 1.5",
    ),
    "pruned to a budget": (f"build IMAGES POOL1 {SMALL}", "prune POOL1 POOL --budget 96%"),
    "pruned by a metric": (
        f"build IMAGES POOL1 {SMALL}",
        "prune POOL1 POOL --ratio 2 --seed 9 --by confidence --prefer hard",
    ),
    "klt": (f"build IMAGES POOL1 {SMALL}", "encode POOL1 POOL --codec klt --fidelity 0.9"),
    "pruned, then klt, drawn": (
        f"build IMAGES POOL1 {SMALL} --mix cutmix",
        "prune POOL1 POOL2 --ratio 2",
        "encode POOL2 POOL --codec klt --fidelity 0.8 --views drawn",
    ),
    "encoded, then pruned, views changed": (
        f"build IMAGES POOL1 {SMALL} --pack",
        "encode POOL1 POOL2 --codec int8",
        "prune POOL2 POOL3 --ratio 2 --level epoch",
        "encode POOL3 POOL --views drawn",
    ),
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "folder")


def run(cli: Cli, place: Path, images: Path, line: str) -> Result:
    """Run a command in which capital words stand for paths."""
    words = [
        str(images) if word == "IMAGES" else str(place / word) if word.startswith("POOL") else word
        for word in shlex.split(line)
    ]
    result = cli(*words)
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.parametrize("name", PASTS)
def test_the_manifest_alone_makes_the_pool_again(name: str, cli: Cli, images: Path, tmp_path: Path) -> None:
    for line in PASTS[name]:
        run(cli, tmp_path, images, line)
    wanted = manifest_of(tmp_path / "POOL")
    manifest = tmp_path / "published.json"
    shutil.move(tmp_path / "POOL" / "pool.json", manifest)
    for path in sorted(tmp_path.glob("POOL*")):
        shutil.rmtree(path)

    told = json.loads(cli("inspect", manifest, "--recipe", "--json").stdout)
    assert told["content_digest"] == wanted.content_digest
    lines = [line for line in told["lines"] if not line.startswith("#")]
    for line in lines:
        assert line.startswith("lpld-labels ")
        run(cli, tmp_path, images, line.removeprefix("lpld-labels "))
    made = manifest_of(tmp_path / "POOL")
    assert made.content_digest == wanted.content_digest
    assert bool(made.files_of("packed")) == bool(wanted.files_of("packed"))

    result = cli("build", images, tmp_path / "again", "--like", manifest, "--json")
    assert result.exit_code == 0, result.output
    if not json.loads(result.stdout)["same_content_as_like"]:
        assert len(lines) > 1
        assert "inspect --recipe prints these commands" in result.stderr
        return
    found = manifest_of(tmp_path / "again")
    assert found.content_digest == wanted.content_digest
    assert (found.views, bool(found.files_of("packed"))) == (wanted.views, bool(wanted.files_of("packed")))


def test_a_pool_grows_from_its_manifest_alone(cli: Cli, images: Path, tmp_path: Path) -> None:
    """From 40x to 20x: what a 20x build makes, and in place only the difference is labelled."""
    long = SMALL.replace("--epochs 5", "--epochs 16")
    run(cli, tmp_path, images, f"build IMAGES POOL {long} --mix cutmix --ratio 40")
    run(cli, tmp_path, images, f"build IMAGES POOL20 {long} --mix cutmix --ratio 20")
    assert [manifest_of(tmp_path / pool).counts.batches for pool in ("POOL", "POOL20")] == [2, 4]
    wanted = manifest_of(tmp_path / "POOL20").content_digest
    alone = shutil.copyfile(tmp_path / "POOL" / "pool.json", tmp_path / "alone.json")
    cli("build", images, tmp_path / "again", "--like", alone, "--ratio", 20)
    assert manifest_of(tmp_path / "again").content_digest == wanted
    like = ("--like", tmp_path / "POOL", "--ratio", 20, "--json")
    facts = json.loads(cli("build", images, tmp_path / "POOL", *like).stdout)
    assert (facts["labelled_batches"], facts["content_digest"]) == (2, wanted)
    # And from 20x, whose manifest it is now, to 10x.
    ten = json.loads(cli("build", images, tmp_path / "ten", "--like", alone, "--ratio", 10, "--json").stdout)
    assert ten["batches"] == 8


def test_other_options_change_what_they_say_and_nothing_else(cli: Cli, images: Path, tmp_path: Path) -> None:
    run(cli, tmp_path, images, f"build IMAGES POOL {SMALL} --mix cutmix --ratio 4")
    result = cli("build", images, tmp_path / "other", "--like", tmp_path / "POOL", "--seed", 4)
    assert result.exit_code == 0, result.output
    assert "warning" not in result.stderr
    before, after = manifest_of(tmp_path / "POOL"), manifest_of(tmp_path / "other")
    assert after.header.seed == 4
    assert replace(after.header, seed=3, lineage=()) == replace(before.header, lineage=())


def test_other_weights_are_refused_unless_meant(cli: Cli, images: Path, tmp_path: Path) -> None:
    run(cli, tmp_path, images, f"build IMAGES POOL {SMALL} --ratio 8")
    document = json.loads((tmp_path / "POOL" / "pool.json").read_text())
    document["teachers"][0]["weights_digest"] = "0" * 64
    alone = tmp_path / "alone.json"
    alone.write_text(json.dumps(document))
    result = cli("build", images, tmp_path / "out", "--like", alone)
    assert result.exit_code == 1
    one_line_error(result)
    assert "is not the pool's" in result.stderr
    assert not (tmp_path / "out").exists()
    again = cli("build", images, tmp_path / "out", "--like", alone, *shlex.split(TEACHER))
    assert again.exit_code == 0, again.output


def test_other_images_are_labelled_and_said_to_be_others(cli: Cli, images: Path, tmp_path: Path) -> None:
    run(cli, tmp_path, images, f"build IMAGES POOL {SMALL} --ratio 8")
    others = write_images(tmp_path / "others", per_class=8)
    result = cli("build", others, tmp_path / "out", "--like", tmp_path / "POOL", "--json")
    assert json.loads(result.stdout)["same_content_as_like"] is False
    assert "warning: the content is not that of" in result.stderr


def test_what_is_not_known_is_a_remark(tmp_path: Path) -> None:
    steps = (
        LineageStep(
            operation="import",
            parameters={
                "source": "a b",
                "format": "lpld",
                "settings": {
                    "torch_era": "old",
                    "batch_size": 128,
                    "mean": [0.5, 0.25, 1],
                    "teachers": ["a", "b"],
                },
                "holes": [{"file": "x", "why": "gone"}],
            },
        ),
        LineageStep(operation="plan", parameters={"settings": {"budget": 3000, "codecs": ["klt"]}}),
        LineageStep(operation="prune", parameters={"ratio": "many"}),
        LineageStep(operation="dreamt\nrm -rf ~"),
    )
    with PoolWriter(tmp_path / "pool", header=make_header(), images=make_images()) as writer:
        writer.extend(make_batches(1, 1))
        writer.commit(lineage=steps)
    imported, plan, prune, unknown = recipe(manifest_of(tmp_path / "pool"))
    places, options = imported.split(" --images IMAGES ")
    assert places == "lpld-labels import 'a b' POOL1"
    assert options == ("--format lpld --skip-bad --torch-era old --teacher a --teacher b --mean 0.5,0.25,1")
    assert plan == "lpld-labels plan POOL1 --apply POOL2 --budget 3000 --codec klt"
    assert prune == "# prune: how to repeat this step is not recorded"
    assert unknown == "# dreamt rm -rf ~: how to repeat this step is not recorded"
    with write_pool(tmp_path / "bare", make_batches(1, 1)) as bare:
        assert recipe(bare.manifest) == ["# how this pool was made is not recorded"]


def test_a_ratio_keeps_exactly_as_many() -> None:
    for candidates in (1, 7, 80, 333, 3001):
        for kept in range(1, candidates + 1, max(1, candidates // 50)):
            assert kept_count(candidates, ratio_that_keeps(kept, candidates)) == kept


def test_like_needs_a_pool_that_was_built(cli: Cli, images: Path, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", make_batches(1, 2)).close()
    result = cli("build", images, tmp_path / "out", "--like", tmp_path / "pool")
    assert result.exit_code == 1
    assert "not labelled by build" in result.stderr
    with PoolReader(tmp_path / "pool") as pool:
        assert pool.manifest.header.lineage == ()
