"""`inspect --recipe`: a manifest, images and teacher make a pool again, to the digest."""

import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import Result
from lpld_cli.recipe import recipe

from lpld_labels import PoolWriter
from lpld_labels.format.manifest import LineageStep
from lpld_labels.pool.pool_files import manifest_of
from lpld_labels.transforms.prune import kept_count, ratio_that_keeps
from tests.cli.build_runs import Cli, facts, passed
from tests.factories import make_batches, make_header, make_images, write_pool
from tests.lpld_core.image_folders import NETWORK, SIDE

TEACHER = f"--teacher {NETWORK} --teacher-weights random --size {SIDE} --threads 1"
SMALL = f"{TEACHER} --epochs 5 --batch-size 5 --seed 3"
ENSEMBLE = f"{SMALL} --teacher {NETWORK.replace('width=8', 'width=12')} --teacher-weights random"

PASTS: dict[str, tuple[str, ...]] = {
    "views of every kind": (f"build IMAGES POOL {SMALL} --patches 2 --cutout 0.4 --resize pil --mix cutmix",),
    "mixup, drawn": (f"build IMAGES POOL {SMALL} --mix mixup --views drawn --no-flip --crop-scale 0.3 0.9",),
    "packed later": (
        f"build IMAGES POOL1 {SMALL} --ratio 3.7",
        "encode POOL1 POOL2 --codec int8",
        "copy POOL2 POOL --images IMAGES",
    ),
    "ensemble, replayable": (f"build IMAGES POOL {ENSEMBLE} --replayable-by lpld --codec topk:2:8",),
    "grown": (
        f"build IMAGES POOL {SMALL} --ratio 8",
        f"build IMAGES POOL {SMALL} --ratio 2",
    ),
    "pruned twice": (
        f"build IMAGES POOL1 {SMALL} --mix none",
        "prune POOL1 POOL2 --budget 96%",
        "prune POOL2 POOL --ratio 1.5 --seed 9 --by confidence --prefer hard",
    ),
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


def run(cli: Cli, place: Path, images: Path, line: str) -> Result:
    """Run a command in which capital words stand for paths."""
    words = [
        str(images) if word == "IMAGES" else str(place / word) if word.startswith("POOL") else word
        for word in shlex.split(line)
    ]
    return passed(cli(*words))


@pytest.mark.parametrize("name", PASTS)
def test_the_manifest_alone_makes_the_pool_again(name: str, cli: Cli, images: Path, tmp_path: Path) -> None:
    for line in PASTS[name]:
        run(cli, tmp_path, images, line)
    wanted = manifest_of(tmp_path / "POOL")
    manifest = tmp_path / "published.json"
    shutil.move(tmp_path / "POOL" / "pool.json", manifest)
    for path in sorted(tmp_path.glob("POOL*")):
        shutil.rmtree(path)

    told = facts(cli("inspect", manifest, "--recipe", "--json"))
    assert told["content_digest"] == wanted.content_digest
    lines = [line for line in told["lines"] if not line.startswith("#")]
    for line in lines:
        assert line.startswith("lpld-labels ")
        run(cli, tmp_path, images, line.removeprefix("lpld-labels "))
    made = manifest_of(tmp_path / "POOL")
    assert made.content_digest == wanted.content_digest
    assert bool(made.files_of("packed")) == bool(wanted.files_of("packed"))


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
    assert options == ("--torch-era old --teacher a --teacher b --mean 0.5,0.25,1 --format lpld --skip-bad")
    assert plan == "lpld-labels plan POOL1 --apply POOL2 --budget 3000 --codec klt"
    assert prune == "# prune: how to repeat this step is not recorded"
    assert unknown == "# dreamt rm -rf ~: how to repeat this step is not recorded"
    with write_pool(tmp_path / "bare", make_batches(1, 1)) as bare:
        assert recipe(bare.manifest) == ["# the pool does not record how it was made"]


def test_a_ratio_keeps_exactly_as_many() -> None:
    for candidates in (1, 7, 80, 333, 3001):
        for kept in range(1, candidates + 1, max(1, candidates // 50)):
            assert kept_count(candidates, ratio_that_keeps(kept, candidates)) == kept
