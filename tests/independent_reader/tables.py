"""Image table, batch index and views, as rows: their checks and digests."""

import hashlib
import math
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .manifest import NAME, Manifest, Row, load, need
from .parquet import Table, message

Key = tuple[int, int]
CROP = ("crop_top", "crop_left", "crop_height", "crop_width")
MIX_BOX = ("mix_top", "mix_left", "mix_bottom", "mix_right")
CUTOUT = ("cutout_top", "cutout_left", "cutout_bottom", "cutout_right")
FILL = ("cutout_red", "cutout_green", "cutout_blue")
_NULL_TOGETHER = (("mix_slot", "mix_strength"), MIX_BOX, (*CUTOUT, *FILL), ("patch_order",))
_SQUARES = {n * n for n in range(1, 16)}
_RESERVED = re.compile(r"(con|prn|aux|nul|com[1-9]|lpt[1-9])(\..*)?", re.DOTALL | re.IGNORECASE | re.ASCII)


def text(value: str) -> bytes:
    return struct.pack("<I", len(value.encode())) + value.encode()


def key_of(row: Row) -> Key:
    return row["epoch"], row["batch"]


def is_strength(value: Any) -> bool:
    """Whether a value is a mix strength: 0 to 1, and not -0.0."""
    return value is not None and 0 <= value <= 1 and math.copysign(1, value) == 1


def read_images(root: Path, manifest: Manifest) -> list[Row]:
    (file,) = manifest.of_role("images")
    images, where = Table(file, load(root, file, proven=True), message("images")).all_rows(), file["path"]
    for number, image in enumerate(images):
        need(image["image"] == number, where, "images do not count 0, 1, 2, ...")
        need(0 <= image["class"] < manifest.classes, where, f"class {image['class']}")
        need(all(1 <= image[side] <= 65535 for side in ("width", "height")), where, "width or height")
        path = image["path"]
        need(len(path.encode()) <= 4096, where, "a path is too long")
        need(not re.search(r"[\x00-\x1f\x7f\\:]", path), where, f"path {path!a}")
        for part in path.split("/"):  # an absolute path begins with an empty part
            need(part not in ("", ".", "..") and not _RESERVED.fullmatch(part), where, f"path {path!a}")
    paths = {image["path"].encode().lower() for image in images}  # folds ASCII capitals
    need(len(paths) == len(images), where, "a path occurs twice")
    return images


def images_digest(images: Sequence[Row]) -> bytes:
    digest = hashlib.sha256(text("lpld-image-table") + struct.pack("<Q", len(images)))
    for image in images:
        name = b"\0" + text(image["path"]) if image["digest"] is None else b"\1" + image["digest"]
        digest.update(struct.pack("<I", image["class"]) + name)
    return digest.digest()


def read_index(root: Path, manifest: Manifest) -> dict[Key, Row]:
    """Return the batches by key. `span`: where the payload pages of their row group are, and their bytes."""
    (file,) = manifest.of_role("batches")
    entries = Table(file, load(root, file, proven=True), message("batches")).all_rows()
    shards: list[list[Row]] = [[] for _ in manifest.of_role("labels")]
    last = (-1, -1)
    for entry in entries:
        key, count, where = key_of(entry), entry["rows"], f"batch {key_of(entry)}"
        entry["span"] = (entry["group_offset"], entry["group_bytes"])
        need(min(key) >= 0 and last < key, where, "below 0, or out of order")
        last = key
        need(1 <= count <= manifest.batch_size, where, f"{count} rows")
        need(0 <= entry["shard"] < len(shards), where, f"shard {entry['shard']}")
        shards[entry["shard"]].append(entry)
        mixed = manifest.drawn and manifest.how["mix"] != "none"
        strength = entry["mix_strength"]
        need(is_strength(strength) if mixed else strength is None, where, f"mix_strength {strength}")
        left = manifest.counts["images"] - entry["batch"] * manifest.batch_size
        need(not manifest.drawn or count == min(left, manifest.batch_size), where, "no batch of its epoch")
    for number, batches in enumerate(shards):
        _check_shard(manifest, number, batches, file["path"])
    epochs, rows = {entry["epoch"] for entry in entries}, [entry["rows"] for entry in entries]
    incomplete = sum(count < manifest.batch_size for count in rows)
    counts = {
        "epochs": len(epochs),
        "batches": len(rows),
        "incomplete_batches": incomplete,
        "rows": sum(rows),
    }
    need(counts.items() <= manifest.counts.items(), f"{NAME} counts", f"the batch index has {counts}")
    return {key_of(entry): entry for entry in entries}


def _check_shard(manifest: Manifest, shard: int, batches: Sequence[Row], index: str) -> None:
    """Refuse positions that do not count up, row groups that overlap, and a views file of other rows."""
    labels = manifest.of_role("labels")[shard]
    rows, end, span, left = 0, 4, (0, 0), 0
    for position, entry in enumerate(batches):
        where = f"{index} {key_of(entry)}"
        need((entry["position"], entry["first_row"]) == (position, rows), where, "position or first_row")
        rows += entry["rows"]
        if entry["span"] != span:  # the first batch of a row group
            need(left == 0, where, "label_bytes before it do not fill their row group")
            span = entry["span"]
            need(span[0] >= end and span[1] > 0, where, "its row group overlaps another")
            left, end = span[1], sum(span)
            need(end <= labels["bytes"] - labels["footer_bytes"], where, "its row group leaves the file")
        need(0 <= entry["label_bytes"] <= left, where, "label_bytes")
        left -= entry["label_bytes"]
    need(left == 0, f"{index} shard {shard}", "label_bytes do not fill their row group")
    views = manifest.of_role("views")
    need(not views or views[shard]["rows"] == rows, index, f"views of shard {shard} have other rows")


def check_views(views: Sequence[Row], images: Sequence[Row], size: tuple[int, int], where: str) -> None:
    """Refuse views out of range. `size`: height and width of a view."""
    for names in _NULL_TOGETHER:
        nulls = {row[name] is None for row in views for name in names}
        need(len(nulls) == 1, where, f"{names} are null in part")
    first = views[0]
    need(first["mix_top"] is None or first["mix_slot"] is not None, where, "a mix box without a partner")
    for slot, row in enumerate(views):
        need(row["slot"] == slot, where, "slots do not count 0, 1, 2, ...")
        need(0 <= row["image"] < len(images), where, f"image {row['image']}")
        image = images[row["image"]]
        top, left, height, width = (row[name] for name in CROP)
        need(top >= 0 and left >= 0 and height >= 1 and width >= 1, where, "crop out of range")
        need(top + height <= image["height"] and left + width <= image["width"], where, "crop is too large")
        if row["mix_slot"] is not None:
            need(0 <= row["mix_slot"] < len(views), where, f"partner {row['mix_slot']}")
            need(is_strength(row["mix_strength"]), where, f"mix_strength {row['mix_strength']}")
            need(all(row[n] == first[n] for n in ("mix_strength", *MIX_BOX)), where, "mixed in two ways")
        for box in (MIX_BOX, CUTOUT):
            if row[box[0]] is not None:
                top, left, bottom, right = (row[name] for name in box)
                need(0 <= top <= bottom <= size[0] and 0 <= left <= right <= size[1], where, f"{box}")
        order = row["patch_order"]
        if order is not None:
            need(len(order) in _SQUARES and len(order) == len(first["patch_order"]), where, "patch_order")
            need(sorted(order) == list(range(len(order))), where, "patch_order is not a permutation")


def views_digest(views: Sequence[Row]) -> bytes:
    def packed(kind: str, *names: str) -> bytes:
        return np.array([[row[name] for name in names] for row in views]).astype(kind).tobytes()

    first = views[0]
    mixed, boxed, cut = (first[name] is not None for name in ("mix_slot", "mix_top", "cutout_top"))
    kinds = ((1 if boxed else 2) if mixed else 0, cut + 2 * len(first["patch_order"] or ()))
    digest = hashlib.sha256(struct.pack("<5q", first["epoch"], first["batch"], len(views), *kinds))
    digest.update(packed("<i4", "image") + packed("<i4", *CROP) + packed("u1", "flip"))
    if mixed:
        digest.update(packed("<i4", "mix_slot") + struct.pack("<d", first["mix_strength"]))
    if mixed and boxed:
        digest.update(struct.pack("<4q", *(first[name] for name in MIX_BOX)))
    if cut:
        digest.update(packed("<i4", *CUTOUT) + packed("u1", *FILL))
    for row in views:
        digest.update(bytes(row["patch_order"] or ()))
    return digest.digest()
