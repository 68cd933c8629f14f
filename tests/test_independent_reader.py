"""A reader written from SPEC.md alone, by somebody who had not seen the code, agrees with the goldens.

Whoever changes the format must change both readers.
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

from tests.independent_reader import Refused, open_pool, verify

TESTS = Path(__file__).parent
GOLDEN = TESTS / "golden"
POOLS = sorted(path.name for path in (GOLDEN / "v1").iterdir() if path.is_dir())
REFUSED = sorted(path.name for path in (GOLDEN / "refuse").iterdir())


@pytest.mark.parametrize("name", POOLS)
def test_it_reads_every_golden_pool(name: str) -> None:
    document = json.loads((GOLDEN / "v1" / f"{name}.json").read_text())
    verify(GOLDEN / "v1" / name)
    pool = open_pool(GOLDEN / "v1" / name)
    assert pool.manifest.content_digest == document["content_digest"]
    assert [list(key) for key in pool.keys] == [batch["key"] for batch in document["batches"]]
    for key, batch in zip(pool.keys, document["batches"], strict=True):
        _same_labels(pool.read(key).labels, batch, exact="klt" not in name)


def _same_labels(found: np.ndarray[Any, np.dtype[Any]], batch: dict[str, Any], *, exact: bool) -> None:
    stored = np.ascontiguousarray(found, batch["dtype"])
    if "labels" not in batch:
        assert hashlib.sha256(stored.tobytes()).hexdigest() == batch["labels_sha256"]
    elif exact:
        assert stored.tobytes().hex() == batch["labels"]
    else:
        expected = np.frombuffer(bytes.fromhex(batch["labels"]), batch["dtype"]).reshape(stored.shape)
        np.testing.assert_allclose(stored, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", REFUSED)
def test_it_refuses_what_must_be_refused(name: str) -> None:
    with pytest.raises(Refused):
        verify(GOLDEN / "refuse" / name)


def test_it_imports_nothing_of_the_project() -> None:
    allowed = {*sys.stdlib_module_names, "numpy", "pyarrow", "zstandard", "pcodec", "pytest"}
    files = sorted((TESTS / "independent_reader").glob("*.py"))
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert {name.name.split(".")[0] for name in node.names} <= allowed, file
            elif isinstance(node, ast.ImportFrom):
                inside = node.level == 1
                assert inside or (node.level == 0 and str(node.module).split(".")[0] in allowed), file
