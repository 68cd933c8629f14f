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
README_FILE = "README.md"
"""For people; not part of the pool."""
IMAGES_FILE = "images.parquet"
VIEWS_DIRECTORY = "views"
LABELS_DIRECTORY = "labels"
CODEC_DIRECTORY = "codec"
PACKED_DIRECTORY = "packed"
POOL_DIRECTORIES = (VIEWS_DIRECTORY, LABELS_DIRECTORY, CODEC_DIRECTORY, PACKED_DIRECTORY)

VIEW_ROWS_PER_GROUP = 8192
"""A views row group closes at the first whole batch at or above this many rows."""
LABEL_BYTES_PER_GROUP = 96 * 1024
"""A labels row group closes at the first whole batch at or above this many payload bytes."""
SHARD_LABEL_BYTES = 64 * 1024 * 1024
SHARD_VIEW_ROWS = 1 << 20
SHARD_BATCHES = 4096
"""A shard closes at the first whole batch at or above any of the three limits. The last is for very small
batches: one takes some 4 kB of memory while its shard is gathered or merged, however few labels it has."""

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
RESIZE_CODES = ("torch", "pil", "pil_bicubic")
"""Names of resize code that SPEC.md gives a meaning."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a pool file: its Arrow type, when it is null, and whose bytes it counts as."""

    name: str
    type: pa.DataType
    component: Component
    nullable: bool = False


def _view(name: str, type_: pa.DataType, component: Component, nullable: bool = False) -> Column:
    return Column(name=name, type=type_, component=component, nullable=nullable)


VIEW_COLUMNS: tuple[Column, ...] = (
    _view("epoch", pa.int32(), "keys"),
    _view("batch", pa.int32(), "keys"),
    _view("slot", pa.int32(), "keys"),
    _view("image", pa.int32(), "keys"),
    _view("crop_top", pa.int32(), "crop"),
    _view("crop_left", pa.int32(), "crop"),
    _view("crop_height", pa.int32(), "crop"),
    _view("crop_width", pa.int32(), "crop"),
    _view("flip", pa.bool_(), "flip"),
    _view("mix_slot", pa.int32(), "mix_index", nullable=True),
    _view("mix_strength", pa.float64(), "mix_strength", nullable=True),
    _view("mix_top", pa.int32(), "mix_box", nullable=True),
    _view("mix_left", pa.int32(), "mix_box", nullable=True),
    _view("mix_bottom", pa.int32(), "mix_box", nullable=True),
    _view("mix_right", pa.int32(), "mix_box", nullable=True),
    _view("cutout_top", pa.int32(), "mix_box", nullable=True),
    _view("cutout_left", pa.int32(), "mix_box", nullable=True),
    _view("cutout_bottom", pa.int32(), "mix_box", nullable=True),
    _view("cutout_right", pa.int32(), "mix_box", nullable=True),
    _view("cutout_red", pa.uint8(), "mix_box", nullable=True),
    _view("cutout_green", pa.uint8(), "mix_box", nullable=True),
    _view("cutout_blue", pa.uint8(), "mix_box", nullable=True),
    _view(
        "patch_order",
        pa.list_(pa.field("element", pa.uint8(), nullable=False)),
        "mix_box",
        nullable=True,
    ),
)

IMAGE_COLUMNS: tuple[Column, ...] = (
    Column(name="image", type=pa.int32(), component="container"),
    Column(name="path", type=pa.string(), component="container"),
    Column(name="class", type=pa.int32(), component="container"),
    Column(name="width", type=pa.int32(), component="container"),
    Column(name="height", type=pa.int32(), component="container"),
    Column(name="digest", type=pa.binary(16), component="container", nullable=True),
)

PACKED_COLUMNS: tuple[Column, ...] = (
    Column(name="row", type=pa.int32(), component="packed"),
    Column(
        name="image",
        type=pa.struct(
            [pa.field("bytes", pa.binary(), nullable=False), pa.field("path", pa.string(), nullable=False)]
        ),
        component="packed",
    ),
    Column(name="class", type=pa.int32(), component="packed"),
)

BATCH_COLUMNS: tuple[Column, ...] = (
    Column(name="epoch", type=pa.int32(), component="container"),
    Column(name="batch", type=pa.int32(), component="container"),
    Column(name="rows", type=pa.int32(), component="container"),
    Column(name="shard", type=pa.int32(), component="container"),
    Column(name="position", type=pa.int32(), component="container"),
    Column(name="first_row", type=pa.int64(), component="container"),
    Column(name="group_offset", type=pa.int64(), component="container"),
    Column(name="group_bytes", type=pa.int32(), component="container"),
    Column(name="label_bytes", type=pa.int32(), component="container"),
    Column(name="mix_strength", type=pa.float64(), component="container", nullable=True),
    Column(name="views_digest", type=pa.binary(8), component="container"),
    Column(name="digest", type=pa.binary(16), component="container"),
)

LABEL_KEY_COLUMNS: dict[str, tuple[Column, ...]] = {
    "view": (
        Column(name="epoch", type=pa.int32(), component="keys"),
        Column(name="batch", type=pa.int32(), component="keys"),
        Column(name="slot", type=pa.int32(), component="keys"),
    ),
    "batch": (
        Column(name="epoch", type=pa.int32(), component="keys"),
        Column(name="batch", type=pa.int32(), component="keys"),
    ),
}
"""Key columns of a labels file, by the codec's granularity; its payload columns follow them."""


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Return the Arrow schema of the columns."""
    return pa.schema([pa.field(c.name, c.type, nullable=c.nullable) for c in columns])


VIEW_SCHEMA = arrow_schema(VIEW_COLUMNS)
IMAGE_SCHEMA = arrow_schema(IMAGE_COLUMNS)
BATCH_SCHEMA = arrow_schema(BATCH_COLUMNS)
PACKED_SCHEMA = arrow_schema(PACKED_COLUMNS)
