"""What golden pools hold, as JSON: batches with labels as the bits of their floats.

`python -m tests.golden.expected tests/golden/v1/NAME` writes it for a new pool. Pools that are there are
never written again: users have pools like them.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from lpld_labels import BatchKey, Box, CutOut, LabelBatch, Mix, PoolReader, ViewBatch

LONG = 20_000
"""Labels of more bytes than this are there by their digest alone."""


def views_json(batch: ViewBatch) -> dict[str, Any]:
    """Return the views of a batch as JSON values."""
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
    }


def as_json(batch: LabelBatch) -> dict[str, Any]:
    """Return a batch as JSON values; labels as the bits of their floats, or their SHA-256 where many."""
    data = np.ascontiguousarray(batch.labels).tobytes()
    labels = (
        {"labels": data.hex()} if len(data) <= LONG else {"labels_sha256": hashlib.sha256(data).hexdigest()}
    )
    return {**views_json(batch), "dtype": str(batch.labels.dtype), **labels}


def views_from_json(document: dict[str, Any]) -> ViewBatch:
    """Undo `views_json`."""
    mix, cutout = document["mix"], document["cutout"]
    return ViewBatch(
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
    )


def main(pool: Path) -> None:
    with PoolReader(pool) as reader, pool.with_suffix(".json").open("x") as out:
        batches = [as_json(batch) for batch in reader]
        document = {"content_digest": reader.manifest.content_digest, "batches": batches}
        out.write(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
