"""The image table and the batch index, as rows: checked, and compared with the manifest."""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .files import FileEntry, load, need
from .manifest import NAME, Manifest, folded
from .parquet import Row, Table, message

Key = tuple[int, int]
_RESERVED = re.compile(r"(con|prn|aux|nul|com[1-9]|lpt[1-9])(\..*)?", re.DOTALL)


def text(value: str) -> bytes:
    return struct.pack("<I", len(value.encode())) + value.encode()


def key_of(row: Row) -> Key:
    return row["epoch"], row["batch"]


def span_of(entry: Row) -> Key:
    """Return where the payload pages of a batch's row group are, and their bytes."""
    return entry["group_offset"], entry["group_bytes"]


def is_strength(value: Any) -> bool:
    """Whether a value is a mix strength: 0 to 1, and not -0.0."""
    return value is not None and 0 <= value <= 1 and math.copysign(1, value) == 1


def _proven_rows(root: Path, entry: FileEntry) -> list[Row]:
    return Table(entry, load(root, entry, proven=True), message(entry.role)).all_rows()


def read_images(root: Path, manifest: Manifest) -> list[Row]:
    (file,) = manifest.of_role("images")
    images, where = _proven_rows(root, file), file.path
    for number, image in enumerate(images):
        need(image["image"] == number, where, "images do not count 0, 1, 2, ...")
        need(0 <= image["class"] < manifest.classes, where, f"class {image['class']}")
        need(all(1 <= image[side] <= 65535 for side in ("width", "height")), where, "width or height")
        _check_path(image["path"], where)
    need(len({folded(image["path"]) for image in images}) == len(images), where, "a path occurs twice")
    return images


def _check_path(path: str, where: str) -> None:
    need(len(path.encode()) <= 4096, where, "a path is too long")
    need(not re.search(r"[\x00-\x1f\x7f\\:]", path), where, f"path {path!a}")
    for part in path.split("/"):  # an absolute path begins with an empty part
        need(part not in ("", ".", ".."), where, f"path {path!a}")
        need(not _RESERVED.fullmatch(folded(part)), where, f"path {path!a} is reserved")


def images_digest(images: Sequence[Row]) -> bytes:
    digest = hashlib.sha256(text("lpld-image-table") + struct.pack("<Q", len(images)))
    for image in images:
        name = b"\0" + text(image["path"]) if image["digest"] is None else b"\1" + image["digest"]
        digest.update(struct.pack("<I", image["class"]) + name)
    return digest.digest()


def read_index(root: Path, manifest: Manifest) -> dict[Key, Row]:
    (file,) = manifest.of_role("batches")
    entries = _proven_rows(root, file)
    shards: list[list[Row]] = [[] for _ in manifest.of_role("labels")]
    last = (-1, -1)
    for entry in entries:
        key, rows = key_of(entry), entry["rows"]
        where = f"{file.path} {key}"
        need(min(key) >= 0 and last < key, where, "below 0, or out of order")
        last = key
        need(1 <= rows <= manifest.batch_size, where, f"{rows} rows")
        need(0 <= entry["shard"] < len(shards), where, f"shard {entry['shard']}")
        shards[entry["shard"]].append(entry)
        mixed = manifest.drawn and manifest.how["mix"] != "none"
        strength = entry["mix_strength"]
        need(is_strength(strength) if mixed else strength is None, where, f"mix_strength {strength}")
        left = manifest.counts["images"] - entry["batch"] * manifest.batch_size
        need(not manifest.drawn or rows == min(left, manifest.batch_size), where, "no batch of its epoch")
    for number, batches in enumerate(shards):
        _check_shard(manifest, number, batches, file.path)
    counts = {
        "images": manifest.counts["images"],
        "epochs": len({entry["epoch"] for entry in entries}),
        "batches": len(entries),
        "incomplete_batches": sum(entry["rows"] < manifest.batch_size for entry in entries),
        "rows": sum(entry["rows"] for entry in entries),
    }
    need(counts == manifest.counts, f"{NAME} counts", f"the batch index has {counts}")
    return {key_of(entry): entry for entry in entries}


def _check_shard(manifest: Manifest, shard: int, batches: Sequence[Row], index: str) -> None:
    """Refuse positions that do not count up, row groups that overlap, and a views file of other rows."""
    labels = manifest.of_role("labels")[shard]
    rows, end, span, left = 0, 4, (0, 0), 0
    for position, entry in enumerate(batches):
        where = f"{index} {key_of(entry)}"
        need((entry["position"], entry["first_row"]) == (position, rows), where, "position or first_row")
        rows += entry["rows"]
        if span_of(entry) != span:  # the first batch of a row group
            need(left == 0, where, "label_bytes before it do not fill their row group")
            span = span_of(entry)
            need(span[0] >= end and span[1] > 0, where, "its row group overlaps another")
            left, end = span[1], sum(span)
            need(end <= labels.bytes - (labels.footer_bytes or 0), where, "its row group leaves the file")
        need(0 <= entry["label_bytes"] <= left, where, "label_bytes")
        left -= entry["label_bytes"]
    need(left == 0, f"{index} shard {shard}", "label_bytes do not fill their row group")
    views = manifest.of_role("views")
    need(not views or views[shard].rows == rows, index, f"views of shard {shard} have other rows")
