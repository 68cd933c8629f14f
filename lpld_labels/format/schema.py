"""The on-disk layout: names, paths, versions and columns. A test checks that SPEC.md states the same."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import pyarrow as pa

from lpld_labels.format.limits import MAX_PATH_BYTES

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

# A row group ends with the batch that reaches its limit. A shard ends with the batch that reaches any of its
# three limits. SHARD_BATCHES bounds a writer's memory for tiny batches: each batch takes about 4 kB.
VIEW_ROWS_PER_GROUP = 8192
LABEL_BYTES_PER_GROUP = 96 * 1024
SHARD_LABEL_BYTES = 64 * 1024 * 1024
SHARD_VIEW_ROWS = 1 << 20
SHARD_BATCHES = 4096

# Paths come from untrusted files: each must stay inside its folder and name the same file on every system.
PATH_PATTERNS = {  # Regular expressions by file role. Writers choose {name}.
    "batches": r"batches-[0-9a-f]{8}\.parquet",
    "images": r"images\.parquet",
    "views": r"views/{name}\.parquet",
    "labels": r"labels/{name}\.parquet",
    "codec": r"codec/{name}",
    "packed": r"packed/{name}\.parquet",
}
_NAME = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}"
_COMPILED = {role: re.compile(pattern.replace("{name}", _NAME)) for role, pattern in PATH_PATTERNS.items()}

_FORBIDDEN: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE | re.MULTILINE), expected)
    for pattern, expected in (
        (r"[\x00-\x09\x0b-\x1f\x7f]", "a path without control characters"),
        (r"[\ud800-\udfff]", "a path that is valid UTF-8"),
        (r"^/|[\\:]", "a relative path with '/', without '\\' and ':'"),
        (r"(?:^|/)\.{0,2}(?:/|$)", "a path without empty, '.' or '..' parts"),
        (
            r"(?:^|/)(?:con|prn|aux|nul|com[1-9]|lpt[1-9])(?:\.[^/\n]*)?(?:/|$)",
            "a path without names that Windows reserves",
        ),
    )
)

Component = Literal[
    "crop", "flip", "mix_index", "mix_strength", "mix_box", "labels", "codec", "keys", "packed", "container"
]
COMPONENTS: tuple[Component, ...] = get_args(Component)  # The paper's six, then four of the format.

LabelKind = Literal["logits", "probabilities"]
MixKind = Literal["none", "cutmix", "mixup"]
Views = Literal["stored", "drawn"]
RESIZE_CODES = ("torch", "pil", "pil_bicubic")  # Resize backends that SPEC.md defines.


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a pool file. component: the storage component that its bytes count towards."""

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
"""First columns of a labels file, by the codec's granularity. The codec's payload columns follow them."""


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Return the Arrow schema that consists of these columns."""
    return pa.schema([pa.field(c.name, c.type, nullable=c.nullable) for c in columns])


VIEW_SCHEMA = arrow_schema(VIEW_COLUMNS)
IMAGE_SCHEMA = arrow_schema(IMAGE_COLUMNS)
BATCH_SCHEMA = arrow_schema(BATCH_COLUMNS)
PACKED_SCHEMA = arrow_schema(PACKED_COLUMNS)


def pool_path_problem(path: str, role: str) -> str | None:
    """Return None if `path` is valid for a pool file of this role, else a description of a valid path."""
    if _COMPILED[role].fullmatch(path) is None:
        return f"a path such as {PATH_PATTERNS[role].replace('{name}', 'NAME').replace(chr(92), '')}"
    return None


def image_paths_problem(paths: Sequence[str]) -> tuple[int, str] | None:
    """Return (index of an invalid path, description of a valid path), or None if all paths are valid."""
    text = "\n".join(paths)
    long = max(map(len, paths), default=0) > MAX_PATH_BYTES // 4  # A character has at most 4 bytes.
    if long or text.count("\n") >= max(len(paths), 1) or any(rule.search(text) for rule, _ in _FORBIDDEN):
        for number, path in enumerate(paths):
            problem = _image_path_problem(path)
            if problem is not None:
                return number, problem
    twice = repeated_path(paths)
    return None if twice is None else (len(paths) - 1 - paths[::-1].index(twice), "every path once")


def _image_path_problem(path: str) -> str | None:
    if "\n" in path:
        return "a path without control characters"
    for rule, expected in _FORBIDDEN:
        if rule.search(path):
            return expected
    return None if len(path.encode()) <= MAX_PATH_BYTES else f"a path of at most {MAX_PATH_BYTES} bytes"


def repeated_path(paths: Iterable[str]) -> str | None:
    """Return a path that occurs more than once (ignoring the case of ASCII letters), or None."""
    seen: set[bytes] = set()
    for path in paths:
        folded = path.encode("utf-8", "surrogatepass").lower()
        if folded in seen:
            return path
        seen.add(folded)
    return None
