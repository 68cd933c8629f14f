"""Packed images for a golden pool, written with pyarrow alone."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from lpld_labels import ImageTable

SCHEMA = pa.schema(
    [
        pa.field("row", pa.int32(), nullable=False),
        pa.field(
            "image",
            pa.struct(
                [
                    pa.field("bytes", pa.binary(), nullable=False),
                    pa.field("path", pa.string(), nullable=False),
                ]
            ),
            nullable=False,
        ),
        pa.field("class", pa.int32(), nullable=False),
    ],
    # What viewers of datasets look for.
    metadata={"huggingface": json.dumps({"info": {"features": {"image": {"_type": "Image"}}}})},
)
SETTINGS: dict[str, Any] = {
    "compression": {"row": "zstd", "image.bytes": "none", "image.path": "zstd", "class": "zstd"},
    "use_dictionary": False,
    "write_page_checksum": True,
    "data_page_size": 1 << 30,
}


def pictures(table: ImageTable) -> list[bytes]:
    """Return a PNG file for each image of a table."""
    files = []
    for number, (width, height) in enumerate(zip(table.widths, table.heights, strict=True)):
        pixels = np.random.default_rng(number).integers(0, 4, (height, width, 3)) * 60
        sink = io.BytesIO()
        Image.fromarray(pixels.astype(np.uint8)).save(sink, "PNG")
        files.append(sink.getvalue())
    return files


def known_by(table: ImageTable, files: Sequence[bytes]) -> ImageTable:
    """Return the table with the digests of these files."""
    return replace(table, digests=[hashlib.sha256(data).digest()[:16] for data in files])


def packed_file(first: int, files: Sequence[bytes], table: ImageTable, **settings: Any) -> bytes:
    """Return images `first` and on as a packed file of two row groups."""
    rows = range(first, first + len(files))
    images = [{"bytes": data, "path": table.paths[row]} for row, data in zip(rows, files, strict=True)]
    columns: list[Any] = [
        pa.array(rows, pa.int32()),
        pa.array(images, SCHEMA.field("image").type),
        pa.array([int(table.classes[row]) for row in rows], pa.int32()),
    ]
    sink = io.BytesIO()
    group = max(1, len(files) // 2)
    pq.write_table(
        pa.Table.from_arrays(columns, schema=SCHEMA), sink, row_group_size=group, **(SETTINGS | settings)
    )
    return sink.getvalue()


def add_packed(pool: Path, table: ImageTable, files: Sequence[bytes]) -> None:
    """Put images into a pool, in two files, and name them in its manifest."""
    manifest = json.loads((pool / "pool.json").read_text())
    (pool / "packed").mkdir()
    middle = len(files) // 2
    for name, first, last in (("a", 0, middle), ("b", middle, len(files))):
        data = packed_file(first, files[first:last], table)
        length = int.from_bytes(data[-8:-4], "little") + 8
        (pool / "packed" / f"{name}.parquet").write_bytes(data)
        manifest["components"]["packed"] += len(data)
        manifest["files"].append(
            {
                "path": f"packed/{name}.parquet",
                "role": "packed",
                "bytes": len(data),
                "rows": last - first,
                "digest": hashlib.sha256(data).hexdigest(),
                "footer_bytes": length,
                "footer_digest": hashlib.sha256(data[-length:]).hexdigest(),
            }
        )
    (pool / "pool.json").write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
