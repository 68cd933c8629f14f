"""The on-disk layout in one place: names, versions and columns (limits are in limits.py).

SPEC.md describes the same things in words; a test compares the two, so change both together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import pyarrow as pa

FORMAT_NAME = "lpld-label-pool"
FORMAT_VERSION = 1

MANIFEST_FILE = "pool.json"
README_FILE = "README.md"  # For people; not part of the pool.
IMAGES_FILE = "images.parquet"
VIEWS_DIRECTORY = "views"
LABELS_DIRECTORY = "labels"
CODEC_DIRECTORY = "codec"
PACKED_DIRECTORY = "packed"
POOL_DIRECTORIES = (VIEWS_DIRECTORY, LABELS_DIRECTORY, CODEC_DIRECTORY, PACKED_DIRECTORY)

# A row group closes at the first whole batch at or above its limit, a shard at any of its three. The last is
# for very small batches: each takes some 4 kB of memory while its shard is gathered or merged.
VIEW_ROWS_PER_GROUP = 8192
LABEL_BYTES_PER_GROUP = 96 * 1024
SHARD_LABEL_BYTES = 64 * 1024 * 1024
SHARD_VIEW_ROWS = 1 << 20
SHARD_BATCHES = 4096

Component = Literal[
    "crop", "flip", "mix_index", "mix_strength", "mix_box", "labels", "codec", "keys", "packed", "container"
]
COMPONENTS: tuple[Component, ...] = get_args(Component)
"""The paper's six storage components, then what a real container adds to them."""

LabelKind = Literal["logits", "probabilities"]
LABEL_KINDS: tuple[LabelKind, ...] = get_args(LabelKind)
MixKind = Literal["none", "cutmix", "mixup"]
Views = Literal["stored", "drawn"]
VIEWS: tuple[Views, ...] = get_args(Views)
RESIZE_CODES = ("torch", "pil", "pil_bicubic")  # Resize code that SPEC.md defines.


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a pool file: its Arrow type, when it is null, and whose bytes it counts as."""

    name: str
    type: pa.DataType
    component: Component
    nullable: bool = False


def _columns(
    type_: pa.DataType, component: Component, *names: str, nullable: bool = False
) -> tuple[Column, ...]:
    return tuple(Column(name=name, type=type_, component=component, nullable=nullable) for name in names)


_PATCHES = pa.list_(pa.field("element", pa.uint8(), nullable=False))
_CUTOUT = ("cutout_top", "cutout_left", "cutout_bottom", "cutout_right")
VIEW_COLUMNS: tuple[Column, ...] = (
    *_columns(pa.int32(), "keys", "epoch", "batch", "slot", "image"),
    *_columns(pa.int32(), "crop", "crop_top", "crop_left", "crop_height", "crop_width"),
    *_columns(pa.bool_(), "flip", "flip"),
    *_columns(pa.int32(), "mix_index", "mix_slot", nullable=True),
    *_columns(pa.float64(), "mix_strength", "mix_strength", nullable=True),
    *_columns(pa.int32(), "mix_box", "mix_top", "mix_left", "mix_bottom", "mix_right", nullable=True),
    *_columns(pa.int32(), "mix_box", *_CUTOUT, nullable=True),
    *_columns(pa.uint8(), "mix_box", "cutout_red", "cutout_green", "cutout_blue", nullable=True),
    *_columns(_PATCHES, "mix_box", "patch_order", nullable=True),
)

IMAGE_COLUMNS: tuple[Column, ...] = (
    *_columns(pa.int32(), "container", "image"),
    *_columns(pa.string(), "container", "path"),
    *_columns(pa.int32(), "container", "class", "width", "height"),
    *_columns(pa.binary(16), "container", "digest", nullable=True),
)

_IMAGE_FILE = pa.struct(
    [pa.field("bytes", pa.binary(), nullable=False), pa.field("path", pa.string(), nullable=False)]
)
PACKED_COLUMNS: tuple[Column, ...] = (
    *_columns(pa.int32(), "packed", "row"),
    *_columns(_IMAGE_FILE, "packed", "image"),
    *_columns(pa.int32(), "packed", "class"),
)

BATCH_COLUMNS: tuple[Column, ...] = (
    *_columns(pa.int32(), "container", "epoch", "batch", "rows", "shard", "position"),
    *_columns(pa.int64(), "container", "first_row", "group_offset"),
    *_columns(pa.int32(), "container", "group_bytes", "label_bytes"),
    *_columns(pa.float64(), "container", "mix_strength", nullable=True),
    *_columns(pa.binary(8), "container", "views_digest"),
    *_columns(pa.binary(16), "container", "digest"),
)

LABEL_KEY_COLUMNS: dict[str, tuple[Column, ...]] = {
    "view": _columns(pa.int32(), "keys", "epoch", "batch", "slot"),
    "batch": _columns(pa.int32(), "keys", "epoch", "batch"),
}
"""Key columns of a labels file, by the codec's granularity; its payload columns follow them."""


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Return the Arrow schema of the columns."""
    return pa.schema([pa.field(c.name, c.type, nullable=c.nullable) for c in columns])


VIEW_SCHEMA = arrow_schema(VIEW_COLUMNS)
IMAGE_SCHEMA = arrow_schema(IMAGE_COLUMNS)
BATCH_SCHEMA = arrow_schema(BATCH_COLUMNS)
PACKED_SCHEMA = arrow_schema(PACKED_COLUMNS)
