"""A second reader, written from SPEC.md alone, agrees with the product and refuses what SPEC.md refuses.

A change of the format changes both readers.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpld_labels import PoolReader
from lpld_labels.pool.packing import packed_images
from tests.independent_reader import Refused, drawing, open_pool, verify
from tests.independent_reader.views import CROP, CUTOUT, FILL, MIX_BOX, views_digest

TESTS = Path(__file__).parent
GOLDEN = TESTS / "golden"
POOLS = sorted(path.name for path in (GOLDEN / "v1").iterdir() if path.is_dir())
REFUSED = sorted(path.name for path in (GOLDEN / "refuse").iterdir())
VECTORS = json.loads((GOLDEN / "v1" / "drawing.json").read_text())


@pytest.mark.parametrize("name", POOLS)
def test_it_reads_every_golden_pool(name: str) -> None:
    document = json.loads((GOLDEN / "v1" / f"{name}.json").read_text())
    pool = verify(GOLDEN / "v1" / name)
    assert pool.content_digest() == document["content_digest"]
    assert [list(key) for key in pool.index] == [batch["key"] for batch in document["batches"]]
    for key, expected in zip(pool.index, document["batches"], strict=True):
        found = pool.read(key)
        assert _views(found.views).items() <= expected.items()
        _same_labels(found.labels, expected, exact="klt" not in name)


def _views(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return rows of views as the golden documents have them."""
    first = rows[0]

    def columns(*names: str) -> list[list[int]]:
        return [[row[name] for name in names] for row in rows]

    mix = {
        "partner": [row["mix_slot"] for row in rows],
        "strength": float.hex(first["mix_strength"] or 0.0),
        "box": None if first["mix_top"] is None else [first[name] for name in MIX_BOX],
    }
    cutout = {"boxes": columns(*CUTOUT), "fill": columns(*FILL)}
    return {
        "key": [first["epoch"], first["batch"]],
        "images": [row["image"] for row in rows],
        "crops": columns(*CROP),
        "flips": [row["flip"] for row in rows],
        "mix": None if first["mix_slot"] is None else mix,
        "cutout": None if first["cutout_top"] is None else cutout,
        "patch_order": None if first["patch_order"] is None else [row["patch_order"] for row in rows],
    }


def _same_labels(found: np.ndarray[Any, np.dtype[Any]], batch: dict[str, Any], *, exact: bool) -> None:
    stored = np.ascontiguousarray(found, batch["dtype"])
    if "labels" not in batch:
        assert hashlib.sha256(stored.tobytes()).hexdigest() == batch["labels_sha256"]
    elif exact:
        assert stored.tobytes().hex() == batch["labels"]
    else:
        expected = np.frombuffer(bytes.fromhex(batch["labels"]), batch["dtype"]).reshape(stored.shape)
        np.testing.assert_allclose(stored, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", POOLS)
def test_the_product_has_the_same_images(name: str) -> None:
    pool = open_pool(GOLDEN / "v1" / name)
    with PoolReader(GOLDEN / "v1" / name) as product:
        table = product.images
        columns = (table.paths, table.classes, table.widths, table.heights, table.digests)
        assert [
            tuple(image[name] for name in ("path", "class", "width", "height", "digest"))
            for image in pool.images
        ] == list(zip(*columns, strict=True))
        packed = packed_images(product)
        assert pool.packed_images() == ([] if packed is None else [packed.read(n) for n in range(len(table))])


def _use(path: Path) -> None:
    pool = open_pool(path)
    assert pool.images
    for key in pool.index:
        pool.read(key)


@pytest.mark.parametrize("name", REFUSED)
def test_it_refuses_what_must_be_refused(name: str) -> None:
    path = GOLDEN / "refuse" / name
    stage = (path / "reason.txt").read_text().split()[0]
    with pytest.raises(Refused):
        {"open": open_pool, "read": _use, "verify": verify}[stage](path)


def test_streams_and_functions_are_those_of_the_vectors() -> None:
    for stream in VECTORS["streams"]:
        draws = drawing.generator(stream["seed"], *stream["place"]).draws(len(stream["draws"]))
        assert [draw.hex() for draw in draws] == stream["draws"]
    for function in (drawing.exp, drawing.log):
        for x, y in VECTORS[function.__name__]:
            assert function(float.fromhex(x)).hex() == y
    for rank in VECTORS["ranks"]:
        assert drawing.rank(rank["seed"], rank["epoch"], rank["batch"]) == rank["rank"]


@pytest.mark.parametrize("vector", VECTORS["batches"])
def test_views_are_drawn_as_in_the_vectors(vector: dict[str, Any]) -> None:
    strength = vector["mix_strength"]
    rows = drawing.draw_views(
        vector["augmentation"],
        list(zip(VECTORS["heights"], VECTORS["widths"], strict=True)),
        vector["seed"],
        tuple(vector["views"]["key"]),
        VECTORS["batch_size"],
        None if strength is None else float.fromhex(strength),
    )
    assert _views(rows) == vector["views"]
    assert views_digest(rows).hex() == vector["views_digest"]


def test_it_imports_nothing_of_the_project() -> None:
    allowed = {*sys.stdlib_module_names, "numpy", "pyarrow", "zstandard", "pcodec"}
    files = sorted((TESTS / "independent_reader").glob("*.py"))
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert {name.name.split(".")[0] for name in node.names} <= allowed, file
            elif isinstance(node, ast.ImportFrom):
                inside = node.level == 1
                assert inside or (node.level == 0 and str(node.module).split(".")[0] in allowed), file
