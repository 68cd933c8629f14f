"""Pools of format version 1 stay readable, bit for bit, for ever.

The pools in tests/golden/v1 were written once by the first release of the format and are never written
again; expected.json beside them holds what they contain. A change that breaks these tests breaks
users' pools: raise the format version instead.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpld_labels import BatchKey, Box, CutOut, LabelBatch, Mix, PoolReader
from lpld_labels.codecs import CODECS
from lpld_labels.inspection.check import check_pool
from tests.factories import assert_same_views

GOLDEN = Path(__file__).parents[2] / "golden" / "v1"
POOLS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())


def as_json(batch: LabelBatch) -> dict[str, Any]:
    """Return a batch as JSON values; labels as the bits of their floats."""
    mix, cutout = batch.mix, batch.cutout
    return {
        "key": list(batch.key),
        "images": batch.images.tolist(),
        "crops": batch.crops.tolist(),
        "flips": batch.flips.tolist(),
        "mix": None
        if mix is None
        else {"partner": mix.partner.tolist(), "strength": mix.strength.hex(), "box": mix.box},
        "cutout": None if cutout is None else {"boxes": cutout.boxes.tolist(), "fill": cutout.fill.tolist()},
        "patch_order": None if batch.patch_order is None else batch.patch_order.tolist(),
        "dtype": str(batch.labels.dtype),
        "labels": np.ascontiguousarray(batch.labels).tobytes().hex(),
    }


def from_json(document: dict[str, Any]) -> LabelBatch:
    """Undo `as_json`."""
    mix, cutout = document["mix"], document["cutout"]
    labels = np.frombuffer(bytes.fromhex(document["labels"]), np.dtype(document["dtype"]).newbyteorder("<"))
    return LabelBatch(
        key=BatchKey(*document["key"]),
        images=np.array(document["images"], np.int32),
        crops=np.array(document["crops"], np.int32),
        flips=np.array(document["flips"], bool),
        mix=None
        if mix is None
        else Mix(
            partner=np.array(mix["partner"], np.int32),
            strength=float.fromhex(mix["strength"]),
            box=None if mix["box"] is None else Box(*mix["box"]),
        ),
        cutout=None
        if cutout is None
        else CutOut(boxes=np.array(cutout["boxes"], np.int32), fill=np.array(cutout["fill"], np.uint8)),
        patch_order=None if document["patch_order"] is None else np.array(document["patch_order"], np.uint8),
        labels=labels.reshape(len(document["images"]), -1),
    )


def test_there_are_golden_pools() -> None:
    assert {PoolReader(GOLDEN / name).manifest.codec.name for name in POOLS} == set(CODECS)


@pytest.mark.parametrize("name", POOLS)
def test_a_golden_pool_reads_as_it_was_written(name: str) -> None:
    document = json.loads((GOLDEN / f"{name}.json").read_text())
    with PoolReader(GOLDEN / name) as pool:
        assert pool.manifest.content_digest == document["content_digest"]
        assert [list(key) for key in pool.keys] == [batch["key"] for batch in document["batches"]]
        for expected in map(from_json, document["batches"]):
            found = pool.read(expected.key)
            assert_same_views(found, expected)
            assert found.labels.dtype == expected.labels.dtype
            if name == "klt":
                # A matrix product; its last bits are the processor's. The integers behind it are exact:
                # check_pool compares their digest.
                np.testing.assert_allclose(found.labels, expected.labels, atol=1e-5)
            else:
                assert found.labels.tobytes() == expected.labels.tobytes()
    assert check_pool(GOLDEN / name).whole
