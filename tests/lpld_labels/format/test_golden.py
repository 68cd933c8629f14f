"""Pools of format version 1 stay readable, bit for bit, for ever.

The pools in tests/golden/v1 were written once, when the format was closed, and are never written
again; NAME.json beside them holds what they contain. A change that breaks these tests breaks
users' pools: raise the format version instead.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpld_labels import PoolReader
from lpld_labels.codecs import CODECS
from lpld_labels.inspect.check import check_pool
from tests.factories import assert_same_views
from tests.golden.drawing_vectors import vectors
from tests.golden.expected import views_from_json

GOLDEN = Path(__file__).parents[2] / "golden" / "v1"
POOLS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())


def test_every_codec_has_a_golden_pool() -> None:
    assert {PoolReader(GOLDEN / name).manifest.codec.name for name in POOLS} == set(CODECS)


@pytest.mark.parametrize("name", POOLS)
def test_a_golden_pool_reads_as_it_was_written(name: str) -> None:
    document = json.loads((GOLDEN / f"{name}.json").read_text())
    with PoolReader(GOLDEN / name) as pool:
        assert pool.manifest.content_digest == document["content_digest"]
        assert [list(key) for key in pool.keys] == [batch["key"] for batch in document["batches"]]
        for batch in document["batches"]:
            expected = views_from_json(batch)
            found = pool.read(expected.key)
            assert_same_views(found, expected)
            assert str(found.labels.dtype) == batch["dtype"]
            data = np.ascontiguousarray(found.labels).tobytes()
            if pool.codec.name == "klt":
                # The last bits of a matrix product are the processor's; check_pool compares the integers.
                labels = np.frombuffer(bytes.fromhex(batch["labels"]), found.labels.dtype)
                np.testing.assert_allclose(found.labels.ravel(), labels, atol=1e-5)
            elif "labels" in batch:
                assert data.hex() == batch["labels"]
            else:
                assert hashlib.sha256(data).hexdigest() == batch["labels_sha256"]
    assert check_pool(GOLDEN / name).whole


def test_views_are_drawn_as_they_were() -> None:
    assert vectors() == json.loads((GOLDEN / "drawing.json").read_text(), object_hook=_tuples)


def _tuples(document: dict[str, Any]) -> dict[str, Any]:
    """Return an object with pairs as Python has them: ranges of an augmentation, boxes."""
    return {
        name: tuple(value) if name in ("crop_scale", "crop_ratio", "box") and value is not None else value
        for name, value in document.items()
    }
