"""The hub's own library finds what a card promises, and no name in a pool can mislead its reader."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lpld_labels import PoolReader, PoolWriter, Teacher
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.manifest import LineageStep
from lpld_labels.inspect.card import card_text, class_folders
from lpld_labels.render.images import find_images
from lpld_labels.transforms.copy import merge_pools
from tests.factories import make_batch, make_batches, make_header, make_images, run_python, write_pool
from tests.lpld_labels.loader.loader_pools import build, write_images

SHOW = """
import json, sys
import datasets

datasets.disable_progress_bars()
found = {}
for name in sys.argv[2:]:
    table = datasets.load_dataset(sys.argv[1], name, split="train")
    row = table[0]
    found[name] = {key: [type(value).__name__, getattr(value, "size", value)] for key, value in row.items()}
    found[name]["rows"] = len(table)
    if name == "images":
        found["classes"] = table.features["class"].names
print(json.dumps(found, default=repr))
"""


def shown(pool: Path, home: Path, *names: str) -> dict[str, Any]:
    """Load configurations with Hugging Face's `datasets`, without a network and with a home of its own."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    ended = run_python(SHOW, pool, *names, check=False, env={**os.environ, "HF_HOME": str(home), **offline})
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def test_datasets_shows_views_pictures_and_labels(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    try:
        datasets.Features.from_arrow_schema(pa.schema([("digest", pa.binary(16))]))
    except ValueError as error:
        pytest.skip(f"datasets {datasets.__version__} knows no bytes of a fixed size: {error}")
    folder = write_images(tmp_path / "images")
    with build(tmp_path / "plain", folder, codec="f16:plain") as plain:
        merge_pools([plain], tmp_path / "packed", images=find_images(plain, folder))
    with PoolReader(tmp_path / "packed") as pool:
        text = card_text(pool.manifest, name="Thirty images", classes=class_folders(pool.images))
        (tmp_path / "packed" / "README.md").write_text(text)
        batch, rows = pool.read((0, 0)), pool.manifest.counts.rows
        size = [int(pool.images.widths[0]), int(pool.images.heights[0])]
    found = shown(tmp_path / "packed", tmp_path / "home", "views", "images", "labels", "image_table")
    assert found["views"]["rows"] == found["labels"]["rows"] == rows
    assert found["views"]["image"] == ["int", int(batch.images[0])]
    assert found["labels"]["labels"] == ["list", batch.labels[0].tolist()]
    assert found["images"]["rows"] == found["image_table"]["rows"] == 30
    assert set(found["images"]) == {"row", "image", "class", "rows"}
    assert found["images"]["image"] == ["PngImageFile", size]
    assert found["classes"] == [f"class{number}" for number in range(6)]


@pytest.mark.parametrize(
    ("rows", "batches"),
    [((8, 8), "in 2 batches of 8. "), ((8, 3), "in 2 batches of up to 8. "), ((3, 3), "in 2 batches. ")],
)
def test_a_title_is_no_address_and_batches_are_as_long_as_they_are(
    tmp_path: Path, rows: tuple[int, ...], batches: str
) -> None:
    made = [make_batch(0, number, rows=count) for number, count in enumerate(rows)]
    with write_pool(tmp_path / "pool", made, header=make_header(batch_size=8)) as pool:
        text = card_text(pool.manifest, name="Cats, dogs and owls, 10x")
    assert batches in text
    titled = [line for line in text.splitlines() if "Cats" in line]
    assert titled == ['pretty_name: "Cats, dogs and owls, 10x"', "# Cats, dogs and owls, 10x"]
    for line in ('pool_loader("POOL", "IMAGES", ', 'load_dataset("POOL", "views")', "verify POOL\n"):
        assert line in text
    assert "POOL is the directory or address of this pool" in text


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
    with pytest.raises(InvalidArgumentError, match=r"invalid pool name.*--name"):
        card_text(manifest, name="a\udcff")
    assert len([line for line in outside if line.startswith("# ")]) == 1
