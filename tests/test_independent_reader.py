"""A second reader, written from SPEC.md alone, agrees with the product and refuses what SPEC.md refuses."""

import ast
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpld_labels import PoolReader
from lpld_labels.format import digests
from lpld_labels.pool.packing import packed_images
from tests.golden.expected import views_from_json
from tests.independent_reader import Pool, Refused, drawing, verify
from tests.independent_reader.tables import views_digest

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
    for key, batch in zip(pool.index, document["batches"], strict=True):
        views, labels, _ = pool.read(key)
        # Every field of every view is in this digest.
        assert views_digest(views) == digests.views_digest(views_from_json(batch))
        _same_labels(labels, batch, exact="klt" not in name)
    with PoolReader(GOLDEN / "v1" / name) as product:
        table, packed = product.images, packed_images(product)
        columns = (table.paths, table.classes, table.widths, table.heights, table.digests)
        found = [tuple(image.values())[1:] for image in pool.images]  # without their numbers
        assert found == list(zip(*columns, strict=True))
        assert pool.packed_images() == ([packed.read(row) for row in range(len(table))] if packed else [])


def _same_labels(found: np.ndarray[Any, np.dtype[Any]], batch: dict[str, Any], *, exact: bool) -> None:
    stored = np.ascontiguousarray(found, batch["dtype"])
    if "labels" not in batch:
        assert hashlib.sha256(stored.tobytes()).hexdigest() == batch["labels_sha256"]
    elif exact:
        assert stored.tobytes().hex() == batch["labels"]
    else:
        expected = np.frombuffer(bytes.fromhex(batch["labels"]), batch["dtype"]).reshape(stored.shape)
        np.testing.assert_allclose(stored, expected, atol=1e-5 * np.abs(expected).max())


def _use(path: Path) -> None:
    pool = Pool(path)
    assert pool.images
    for key in pool.index:
        pool.read(key)


@pytest.mark.parametrize("name", REFUSED)
def test_it_refuses_what_must_be_refused(name: str) -> None:
    path = GOLDEN / "refuse" / name
    stage = (path / "reason.txt").read_text().split()[0]
    with pytest.raises(Refused):
        {"open": Pool, "read": _use, "verify": verify}[stage](path)


def test_streams_and_functions_are_those_of_the_vectors() -> None:
    for stream in VECTORS["streams"]:
        draws = drawing.generator(stream["seed"], *stream["place"])
        assert [next(draws).hex() for _ in stream["draws"]] == stream["draws"]
    for function in (drawing.exp, drawing.log):
        for x, y in VECTORS[function.__name__]:
            assert function(float.fromhex(x)).hex() == y


@pytest.mark.parametrize("vector", VECTORS["batches"])
def test_views_are_drawn_as_in_the_vectors(vector: dict[str, Any]) -> None:
    sizes = list(zip(VECTORS["heights"], VECTORS["widths"], strict=True))
    key, strength = vector["views"]["key"], vector["mix_strength"]
    strength = None if strength is None else float.fromhex(strength)
    place = (vector["seed"], tuple(key), VECTORS["batch_size"], strength)
    rows = drawing.draw_views(vector["augmentation"], sizes, *place)
    assert views_digest(rows).hex() == vector["views_digest"]


def test_it_imports_nothing_of_the_project() -> None:
    allowed = {*sys.stdlib_module_names, "numpy", "pyarrow", "zstandard", "pcodec"}
    files = sorted((TESTS / "independent_reader").glob("*.py"))
    assert files
    for node in (node for file in files for node in ast.walk(ast.parse(file.read_text()))):
        if isinstance(node, ast.Import):
            assert {name.name.split(".")[0] for name in node.names} <= allowed
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1 or (node.level == 0 and str(node.module).split(".")[0] in allowed)
