"""Everything in a pool that follows from something else, computed anew by SPEC.md alone.

A case changes one thing and signs the rest again, so that it is refused for the one thing alone.
"""

import hashlib
import io
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.independent_reader.tables import text, views_digest

_COMPONENTS = (
    *("crop", "flip", "mix_index", "mix_strength", "mix_box"),
    *("labels", "codec", "keys", "packed", "container"),
)
KEYS = ("epoch", "batch", "slot", "image")
_VIEW_COMPONENTS = {"flip": "flip", "mix_slot": "mix_index", "mix_strength": "mix_strength"}

Row = dict[str, Any]


def _packed(kind: str, rows: Sequence[Row], *columns: str) -> bytes:
    values = [[row[column] for column in columns] for row in rows]
    return np.array(values).astype(kind).tobytes()


def canonical(codec: str, rows: Sequence[Row]) -> bytes:
    """Return the canonical bytes of a batch whose codec has one row per view."""
    if codec == "int8":
        scales, offsets = _packed("<f4", rows, "scale"), _packed("<f4", rows, "offset")
        return scales + offsets + b"".join(row["codes"] for row in rows)
    kind = {"f16": "<f2", "f32": "<f4"}[codec]
    return b"".join(np.array(row["labels"]).astype(kind).tobytes() for row in rows)


def signed_index(index: Any, codec: str, views: Sequence[Row], labels: Sequence[Row]) -> Any:
    """Return the index of one shard with the digests of these views and labels."""
    short, digests = [], []
    start = 0
    for count in index["rows"].to_pylist():
        shown = views_digest(views[start : start + count])
        stored = canonical(codec, labels[start : start + count])
        short.append(shown[:8])
        digests.append(hashlib.sha256(shown + stored).digest()[:16])
        start += count
    for name, values in (("views_digest", short), ("digest", digests)):
        field = index.schema.field(name)
        index = index.set_column(index.schema.get_field_index(name), field, pa.array(values, field.type))
    return index


def content_digest(manifest: dict[str, Any], images: pa.Table, index: Any) -> str:
    """Return the content digest of a pool whose codec has no identity bytes."""
    how = manifest["augmentation"]
    state = hashlib.sha256(text("lpld-label-pool") + struct.pack("<I", manifest["classes"]))
    state.update(text(manifest["label_kind"]) + text(manifest["codec"]["name"]) + struct.pack("<I", 0))
    state.update(struct.pack("<II", how["output_height"], how["output_width"]) + text(how["resize"]))
    state.update(struct.pack("<I", len(manifest["teachers"])))
    for teacher in manifest["teachers"]:
        known = teacher["mean"] is not None
        state.update(b"\1" + struct.pack("<6d", *teacher["mean"], *teacher["std"]) if known else b"\0")
    state.update(_images_digest(images) + struct.pack("<Q", index.num_rows))
    state.update(b"".join(index["digest"].to_pylist()))
    return state.hexdigest()


def _images_digest(images: pa.Table) -> bytes:
    state = hashlib.sha256(text("lpld-image-table") + struct.pack("<Q", images.num_rows))
    for row in images.to_pylist():
        known = row["digest"]
        state.update(struct.pack("<i", row["class"]))
        state.update(b"\0" + text(row["path"]) if known is None else b"\1" + known)
    return state.digest()


def components(files: Sequence[tuple[str, bytes]]) -> dict[str, int]:
    """Return bytes by component of files, each given as (role, bytes)."""
    total = dict.fromkeys(_COMPONENTS, 0)
    for role, data in files:
        rest = len(data)
        for name, size in _chunks(data) if role in ("views", "labels") else ():
            rest -= size
            total[_owner(role, name)] += size
        total[role if role in ("codec", "packed") else "container"] += rest
    return total


def _chunks(data: bytes) -> list[tuple[str, int]]:
    metadata = pq.read_metadata(io.BytesIO(data))
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    return [(chunk.path_in_schema.split(".")[0], chunk.total_compressed_size) for chunk in chunks]


def _owner(role: str, column: str) -> str:
    if column in KEYS:
        return "keys"
    if role == "labels":
        return "labels"
    return "crop" if column.startswith("crop_") else _VIEW_COMPONENTS.get(column, "mix_box")
