"""`inspect --card`: the hub's own library finds what the card promises, and the card cannot be misled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import Result

from lpld_labels import PoolReader, PoolWriter, Teacher
from lpld_labels.format.manifest import LineageStep
from lpld_labels.inspect.card import card_text
from lpld_labels.pool.own_files import is_untouched_card
from lpld_labels.render.images import find_images
from lpld_labels.transforms.copy import merge_pools
from tests.cli.build_runs import one_line_error
from tests.factories import make_batches, make_header, make_images
from tests.lpld_labels.loader.loader_pools import build, write_images

Cli = Callable[..., Result]

SHOW = """
import json, sys
import datasets

datasets.disable_progress_bars()
pool, names = sys.argv[1], sys.argv[2].split(",")
found = {}
for name in names:
    table = datasets.load_dataset(pool, name, split="train")
    row = table[0]
    first = {key: [type(value).__name__, getattr(value, "size", value)] for key, value in row.items()}
    found[name] = {"rows": len(table), "columns": table.column_names, "first": first}
    if name == "images":
        found["classes"] = getattr(table.features["class"], "names", None)
        found["kind"] = type(table.features["image"]).__name__
        found["pixel"] = row["image"].getpixel((0, 0)) if name == "images" and "image" in row else None
print(json.dumps(found, default=repr))
"""


def shown(pool: Path, home: Path, *names: str) -> dict[str, object]:
    """Load configurations with Hugging Face's `datasets`, without a network and with a home of its own."""
    environment = {
        **os.environ,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    ended = subprocess.run(
        [sys.executable, "-c", SHOW, str(pool), ",".join(names)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, object] = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    folder = write_images(tmp_path / "images")
    with build(tmp_path / "plain", folder, codec="f16:plain") as pool:
        merge_pools([pool], tmp_path / "packed", images=find_images(pool, folder))
    return tmp_path / "packed"


def require_digests_shown() -> None:
    """Skip where `datasets` is so old that it knows no column of bytes of a fixed size, as digests are."""
    datasets = pytest.importorskip("datasets")
    try:
        datasets.Features.from_arrow_schema(pa.schema([("digest", pa.binary(16))]))
    except ValueError as error:
        pytest.skip(f"datasets {datasets.__version__} is too old: {error}")


def test_datasets_shows_views_pictures_and_labels(cli: Cli, packed: Path, tmp_path: Path) -> None:
    require_digests_shown()
    result = cli("inspect", packed, "--card", "--license", "CC-BY-4.0", "--name", "Thirty images")
    assert result.exit_code == 0, result.output
    found = shown(packed, tmp_path / "home", "views", "images", "labels", "image_table")
    with PoolReader(packed) as pool:
        batch = pool.read((0, 0))
        rows = pool.manifest.counts.rows
        widths, heights = pool.images.widths, pool.images.heights
    views, labels, images, table = (found[name] for name in ("views", "labels", "images", "image_table"))
    assert isinstance(views, dict)
    assert isinstance(labels, dict)
    assert isinstance(images, dict)
    assert isinstance(table, dict)
    assert views["rows"] == labels["rows"] == rows
    assert views["first"]["image"] == ["int", int(batch.images[0])]
    assert labels["first"]["labels"] == ["list", batch.labels[0].tolist()]
    assert images["rows"] == table["rows"] == 30
    assert images["columns"] == ["row", "image", "class"]
    assert images["first"]["image"] == ["PngImageFile", [int(widths[0]), int(heights[0])]]
    assert found["kind"] == "Image"
    assert found["classes"] == [f"class{number}" for number in range(6)]
    assert found["pixel"] is not None
    # It is no part of the pool.
    assert cli("verify", packed).exit_code == 0


def test_without_images_inside_their_table_is_shown(cli: Cli, tmp_path: Path) -> None:
    build(tmp_path / "pool", write_images(tmp_path / "images"), codec="int8").close()
    assert cli("inspect", tmp_path / "pool", "--card").exit_code == 0
    text = (tmp_path / "pool" / "README.md").read_text()
    assert "config_name: labels" not in text
    assert "license" not in text
    assert 'pool_loader("pool", "IMAGES", batch_size=64)' in text


def test_the_card_says_what_there_is(cli: Cli, packed: Path) -> None:
    assert (
        cli("encode", packed, packed.with_name("small"), "--codec", "int8", "--views", "drawn").exit_code == 0
    )
    result = cli("inspect", packed.with_name("small"), "--card", "-")
    assert result.exit_code == 0
    with PoolReader(packed.with_name("small")) as pool:
        digest = pool.manifest.content_digest
    text = result.stdout
    for part in (
        digest,
        "The images are inside.",
        'pool_loader("small", batch_size=64)',
        "lpld-labels encode",
        "| labels |",
        "| images |",
        "T = 20:",
        "mean",
        'lpld-labels verify "small"',
    ):
        assert part in text, part
    assert "config_name: views" not in text
    assert not (packed.with_name("small") / "README.md").exists()


def test_edited_cards_are_only_replaced_on_demand(cli: Cli, packed: Path) -> None:
    card = packed / "README.md"
    cli("inspect", packed, "--card")
    assert is_untouched_card(card)
    assert "already up to date" in cli("inspect", packed, "--card").stderr
    assert cli("inspect", packed, "--card", "--license", "mit").exit_code == 0
    assert 'license: "mit"' in card.read_text()
    card.write_text(card.read_text().replace("# packed", "# My pool"))
    result = cli("inspect", packed, "--card")
    assert result.exit_code == 1
    one_line_error(result)
    assert "# My pool" in card.read_text()
    # And nothing of a pool with words of its own is thrown away.
    assert cli("prune", packed.with_name("plain"), packed, "--ratio", 2, "--overwrite").exit_code == 1
    assert cli("inspect", packed, "--card", "--overwrite").exit_code == 0
    assert cli("prune", packed.with_name("plain"), packed, "--ratio", 2, "--overwrite").exit_code == 0
    assert not card.exists()


HOSTILE = "x`` ```\n# big | <script>alert(1)</script> [a](javascript:1) \x1b[31m"


def test_nothing_leaves_its_cell(tmp_path: Path) -> None:
    header = replace(make_header(), teachers=(Teacher(name=HOSTILE),), ensemble=HOSTILE)
    steps = tuple(
        LineageStep(operation=name, parameters={"fidelity": {"kept": {HOSTILE: HOSTILE}}, "codec": HOSTILE})
        for name in ("build", "encode", HOSTILE)
    )
    with PoolWriter(tmp_path / "pool", header=header, images=make_images()) as writer:
        writer.extend(make_batches(1, 1))
        manifest = writer.commit(lineage=steps)
    text = card_text(manifest, name=HOSTILE)
    outside = []
    fence = ""
    for line in text.splitlines():
        if fence:
            fence = "" if line == fence else fence
        elif line.startswith("```"):
            fence = line[: len(line) - len(line.lstrip("`"))]
        else:
            outside.append(line)
    assert not fence
    front = outside.index("---", 1)
    assert "<script>" not in "\n".join(outside[front:])
    (named,) = (line for line in outside[:front] if "script" in line)
    assert json.loads(named.removeprefix("pretty_name: ")).startswith("x`` ``` # big |")
    assert "\x1b" not in text
    assert len([line for line in outside if line.startswith("# ")]) == 1
